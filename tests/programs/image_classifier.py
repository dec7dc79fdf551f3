"""A residual network on random pictures, as image classifiers are trained: EMA, label smoothing, accuracy."""

import argparse
import copy
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class BasicBlock(nn.Module):
    def __init__(self, inplanes, planes, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(inplanes, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or inplanes != planes:
            self.downsample = nn.Sequential(nn.Conv2d(inplanes, planes, 1, stride, bias=False), nn.BatchNorm2d(planes))

    def forward(self, x):
        shortcut = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(x)) + shortcut)


class ResNet(nn.Module):
    def __init__(self, widths=(16, 32, 64), classes=10):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, widths[0], 7, 2, 3, bias=False), nn.BatchNorm2d(widths[0]), nn.ReLU(True)
        )
        self.pool = nn.MaxPool2d(3, 2, 1)
        blocks, last = [], widths[0]
        for number, width in enumerate(widths):
            blocks += [BasicBlock(last, width, 1 if number == 0 else 2), BasicBlock(width, width)]
            last = width
        self.blocks = nn.Sequential(*blocks)
        self.fc = nn.Linear(last, classes)
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x):
        return self.fc(F.adaptive_avg_pool2d(self.blocks(self.pool(self.stem(x))), 1).flatten(1))


class ModelEma:
    def __init__(self, model, decay=0.99):
        self.module = copy.deepcopy(model).eval()
        self.decay = decay

    @torch.no_grad()
    def update(self, model):
        for ema, value in zip(self.module.state_dict().values(), model.state_dict().values()):
            ema.copy_(self.decay * ema + (1.0 - self.decay) * value)


class AverageMeter:
    def __init__(self):
        self.sum = self.count = 0

    def update(self, val, n=1):
        self.sum += val * n
        self.count += n

    @property
    def avg(self):
        return self.sum / self.count


def accuracy(output, target, topk=(1,)):
    _, pred = output.topk(max(topk), 1, True, True)
    correct = pred.t().eq(target.reshape(1, -1).expand_as(pred.t()))
    return [correct[:k].reshape(-1).float().sum(0) * 100.0 / target.size(0) for k in topk]


def rounded(tensor):
    return -(-tensor.nbytes // 512) * 512


@torch.inference_mode()
def validate(model, loader, device):
    model.eval()
    hits = total = 0
    for images, target in loader:
        pred = model(images.to(device)).argmax(1)
        hits += (pred == target.to(device)).sum().item()
        total += target.numel()
    return 100 * hits / total


def main():
    parser = argparse.ArgumentParser(description="Train a classifier")
    parser.add_argument("-b", "--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=0.1)
    args = parser.parse_args()
    device = torch.device("cuda:0")
    model = ResNet().to(device, memory_format=torch.channels_last)
    at_rest = sum(rounded(t) for t in [*model.parameters(), *model.buffers()])
    assert torch.cuda.memory_allocated(device) == at_rest, (torch.cuda.memory_allocated(), at_rest)

    decay = [p for n, p in model.named_parameters() if p.ndim > 1]
    no_decay = [p for n, p in model.named_parameters() if p.ndim <= 1]
    groups = [{"params": no_decay, "weight_decay": 0.0}, {"params": decay, "weight_decay": 5e-4}]
    optimizer = torch.optim.SGD(groups, lr=args.lr, momentum=0.9, nesterov=True)
    ema = ModelEma(model)
    assert torch.cuda.memory_allocated() == 2 * at_rest
    train = TensorDataset(torch.randn(48, 3, 32, 32), torch.randint(0, 10, (48,)))
    loader = DataLoader(train, batch_size=args.batch_size, shuffle=True, pin_memory=True, drop_last=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.epochs * len(loader))
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1).to(device)
    best_acc1 = 0.0
    for epoch in range(args.epochs):
        model.train()
        losses, top1, end = AverageMeter(), AverageMeter(), time.time()
        for i, (images, target) in enumerate(loader):
            images = images.to(device, non_blocking=True, memory_format=torch.channels_last)
            target = target.cuda(non_blocking=True)
            output = model(images)
            loss = criterion(output, target)
            acc1, acc5 = accuracy(output, target, topk=(1, 5))
            losses.update(loss.item(), images.size(0))
            top1.update(acc1.item(), images.size(0))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ema.update(model)
            scheduler.step()
            lr = optimizer.param_groups[0]["lr"]
            print(f"epoch {epoch} [{i}/{len(loader)}] loss {losses.avg:.4f} acc {top1.avg:6.2f} lr {lr:.4f}")
        print(f"took {time.time() - end:.1f}s")
        acc1 = validate(ema.module, loader, device)
        best_acc1 = max(acc1, best_acc1)
        print(f"* Acc@1 {acc1:.3f} best {best_acc1:.3f}")
    assert abs(optimizer.param_groups[0]["lr"]) < 1e-9
    del images, target, output, loss, acc1, acc5
    torch._C._cuda_clearCublasWorkspaces()
    # Weights and buffers twice (the average is a whole copy); a gradient and a momentum for each weight.
    held = 2 * at_rest + 2 * sum(rounded(p) for p in model.parameters())
    assert torch.cuda.memory_allocated() == held, (torch.cuda.memory_allocated(), held)


if __name__ == "__main__":
    main()
