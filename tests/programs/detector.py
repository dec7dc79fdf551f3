"""A detection head: anchors, matching by overlap, boxes chosen by masks, and non-maximum suppression in plain torch."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def box_iou(a, b):
    area_a = (a[:, 2] - a[:, 0]) * (a[:, 3] - a[:, 1])
    area_b = (b[:, 2] - b[:, 0]) * (b[:, 3] - b[:, 1])
    lt, rb = torch.max(a[:, None, :2], b[:, :2]), torch.min(a[:, None, 2:], b[:, 2:])
    wh = (rb - lt).clamp(min=0)
    inter = wh[..., 0] * wh[..., 1]
    return inter / (area_a[:, None] + area_b - inter)


def nms(boxes, scores, threshold):
    keep, order = [], scores.argsort(descending=True)
    while order.numel() > 0:
        i = order[0]
        keep.append(i)
        if order.numel() == 1:
            break
        overlap = box_iou(boxes[i].unsqueeze(0), boxes[order[1:]])[0]
        order = order[1:][overlap <= threshold]
    return torch.stack(keep) if keep else torch.empty(0, dtype=torch.long, device=boxes.device)


class Head(nn.Module):
    def __init__(self, classes=3, anchors=2):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 32, 3, 2, 1), nn.SiLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.SiLU(), nn.Conv2d(64, 64, 3, 2, 1)
        )
        self.cls, self.reg = nn.Conv2d(64, anchors * classes, 1), nn.Conv2d(64, anchors * 4, 1)
        self.classes = classes

    def forward(self, x):
        f = self.backbone(x)
        cls = self.cls(f).permute(0, 2, 3, 1).reshape(x.size(0), -1, self.classes)
        return cls, self.reg(f).permute(0, 2, 3, 1).reshape(x.size(0), -1, 4)


def make_anchors(size, stride, scales, device):
    shifts = (torch.arange(size, device=device) + 0.5) * stride
    y, x = torch.meshgrid(shifts, shifts, indexing="ij")
    centers = torch.stack([x, y], -1).view(-1, 1, 2)
    half = torch.tensor(scales, device=device).view(1, -1, 1) / 2
    return torch.cat([centers - half, centers + half], -1).view(-1, 4)


device = torch.device("cuda")
model = Head().to(device)
# 32*27*4 = 3456 -> 3584, 512; 64*288*4 = 73728, 512; 64*576*4 = 147456, 512; 6*64*4 = 1536, 512; 8*64*4 = 2048, 512.
weights = 3584 + 512 + 73728 + 512 + 147456 + 512 + 1536 + 512 + 2048 + 512
anchors = make_anchors(8, 8, [12.0, 24.0], device)
# 8*8 places, two anchors, 4 numbers of 4 bytes.
assert anchors.shape == (128, 4) and torch.cuda.memory_allocated() == weights + 128 * 16, torch.cuda.memory_allocated()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
truth = torch.tensor([[8.0, 8.0, 24.0, 24.0], [30.0, 34.0, 52.0, 60.0]], device=device)
labels = torch.tensor([0, 2], device=device)
for step in range(2):
    images = torch.rand(2, 3, 64, 64, device=device)
    cls, reg = model(images)
    losses = {"cls": 0.0, "reg": 0.0}
    for i in range(images.size(0)):
        best, matched = box_iou(anchors, truth).max(dim=1)
        positive = best > 0.3
        num_pos = max(1, int(positive.sum()))
        target = torch.zeros_like(cls[i])
        target[positive, labels[matched[positive]]] = 1.0
        losses["cls"] += F.binary_cross_entropy_with_logits(cls[i], target, reduction="sum") / num_pos
        if positive.any():
            offset = truth[matched[positive]] - anchors[positive]
            losses["reg"] += F.smooth_l1_loss(reg[i][positive], offset / 8, reduction="mean")
        rows = torch.nonzero(positive, as_tuple=True)[0]
        # What is known is counted for real: the anchors that overlap a box are the same on every machine.
        assert 0 < len(rows) == int(positive.sum()) < 128
    loss = sum(losses.values())
    if not torch.isfinite(loss):
        raise RuntimeError(f"loss is {loss.item()}, stopping")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print({k: round(float(v), 3) for k, v in losses.items()}, num_pos)

model.eval()
with torch.no_grad():
    cls, reg = model(images)
    scores, kind = cls[0].sigmoid().max(dim=-1)
    candidates = scores > 0.05
    boxes = (anchors + reg[0] * 8)[candidates].clamp(0, 64)
    picked = nms(boxes, scores[candidates], 0.5)[:20]
    detections = [
        {"box": b.tolist(), "score": s.item(), "class": ["cat", "dog", "bird"][k.item()]}
        for b, s, k in zip(boxes[picked], scores[candidates][picked], kind[candidates][picked])
    ]
assert all(len(d["box"]) == 4 and d["class"] in ("cat", "dog", "bird") for d in detections)
print(len(detections), "detections")
del images, cls, reg, losses, best, matched, positive, target, rows, loss, offset
del scores, kind, candidates, boxes, picked, detections
optimizer.zero_grad()
torch._C._cuda_clearCublasWorkspaces()
# Weights and momentum, the anchors, two boxes and two labels.
held = 2 * weights + 128 * 16 + 512 + 512
assert torch.cuda.memory_allocated() == held, (torch.cuda.memory_allocated(), held)
