"""Two towers, InfoNCE with a queue of negatives, a momentum encoder and a learned temperature."""

import argparse
import copy

import torch
from torch import nn
from torch.nn import functional as F


def parse_args(argv=None):
    p = argparse.ArgumentParser()
    p.add_argument("--queue-size", type=int, default=256)
    p.add_argument("--dim", type=int, default=64)
    p.add_argument("--bs", type=int, default=32)
    p.add_argument("--m", type=float, default=0.99)
    p.add_argument("--amp", action="store_true")
    return p.parse_args(argv)


class Tower(nn.Module):
    def __init__(self, width, dim):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, 128), nn.ReLU(), nn.Linear(128, dim))

    def forward(self, x):
        return F.normalize(self.layers(x), dim=-1)


class MoCo(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.m, self.K = args.m, args.queue_size
        self.image, self.text = Tower(96, args.dim), Tower(48, args.dim)
        self.momentum = copy.deepcopy(self.image)
        for p in self.momentum.parameters():
            p.requires_grad = False
        self.logit_scale = nn.Parameter(torch.tensor(1 / 0.07).log())
        self.register_buffer("queue", F.normalize(torch.randn(args.dim, args.queue_size), dim=0))
        self.register_buffer("queue_ptr", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def _enqueue(self, keys):
        ptr = int(self.queue_ptr)
        assert self.K % keys.shape[0] == 0
        self.queue[:, ptr : ptr + keys.shape[0]] = keys.T
        self.queue_ptr[0] = (ptr + keys.shape[0]) % self.K

    @torch.no_grad()
    def _update(self):
        for q, k in zip(self.image.parameters(), self.momentum.parameters()):
            k.data = k.data * self.m + q.data * (1.0 - self.m)

    def forward(self, images, texts):
        i, t = self.image(images), self.text(texts)
        with torch.no_grad():
            self._update()
            k = self.momentum(images)
        scale = self.logit_scale.exp().clamp(max=100)
        positive = torch.einsum("nc,nc->n", [t, k]).unsqueeze(-1)
        negative = torch.einsum("nc,ck->nk", t, self.queue.clone().detach())
        logits = torch.cat([positive, negative], dim=1) * scale
        labels = torch.zeros(logits.shape[0], dtype=torch.long, device=logits.device)
        pairs = scale * i @ t.t()
        target = torch.arange(len(pairs)).to(pairs.device)
        loss = (
            F.cross_entropy(logits, labels) + (F.cross_entropy(pairs, target) + F.cross_entropy(pairs.t(), target)) / 2
        )
        self._enqueue(k)
        return loss, pairs


def main():
    args = parse_args()
    device = torch.device("cuda", torch.cuda.current_device())
    net = MoCo(args).cuda()
    # Image: 128*96*4 = 49152, 512, 64*128*4 = 32768, 512, twice with its copy; text: 128*48*4 = 24576 instead.
    image, text = 49152 + 512 + 32768 + 512, 24576 + 512 + 32768 + 512
    queue = args.dim * args.queue_size * 4 + 512
    rest = 2 * image + text + 512 + queue
    assert torch.cuda.memory_allocated() == rest, (torch.cuda.memory_allocated(), rest)
    opt = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], 0.03, momentum=0.9)
    scaler = torch.amp.GradScaler(enabled=args.amp)
    for it in range(10):
        images = torch.randn(args.bs, 96).cuda(device, non_blocking=True)
        texts = torch.randn(args.bs, 48).cuda(device, non_blocking=True)
        with torch.autocast("cuda", enabled=args.amp):
            loss, pairs = net(images, texts)
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        with torch.no_grad():
            net.logit_scale.clamp_(0, 4.6052)
        r1 = (pairs.argmax(1) == torch.arange(args.bs, device=device)).float().mean()
        if it % 5 == 0:
            print(f"[{it}] loss={loss.item():.3f} R@1={100 * r1:.1f} temp={1 / net.logit_scale.exp().item():.3f}")
    # Ten batches of 32 go round a queue of 256 and leave it at 64.
    assert net.queue_ptr.item() == 10 * args.bs % args.queue_size == 64
    opt.zero_grad(set_to_none=True)
    del images, texts, loss, pairs, r1
    torch._C._cuda_clearCublasWorkspaces()
    # A momentum for each weight that learns: both towers and the temperature.
    held = rest + image + text + 512
    assert torch.cuda.memory_allocated() == held, (torch.cuda.memory_allocated(), held)


if __name__ == "__main__":
    main()
