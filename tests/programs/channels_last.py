"""A convolutional network in channels_last and bfloat16, with gradients of two small batches before each step."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Residual(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.one, self.two = nn.Conv2d(c, c, 3, padding=1, bias=False), nn.Conv2d(c, c, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(c), nn.GroupNorm(4, c)
        self.squeeze = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(c, c, 1), nn.Sigmoid())

    def forward(self, x):
        h = F.relu_(self.norm1(self.one(x)))
        h = self.norm2(self.two(h))
        return F.relu(x + h * self.squeeze(h), inplace=True)


net = nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1), Residual(32), nn.MaxPool2d(2), Residual(32), nn.AdaptiveAvgPool2d(1))
net = (
    net.append(nn.Flatten())
    .append(nn.Dropout(0.1))
    .append(nn.Linear(32, 10))
    .to("cuda", memory_format=torch.channels_last)
)
assert net[0].weight.is_contiguous(memory_format=torch.channels_last)
decayed = [p for p in net.parameters() if p.dim() > 1]
groups = [{"params": decayed, "weight_decay": 0.05}, {"params": [p for p in net.parameters() if p.dim() < 2]}]
optimizer = torch.optim.AdamW(groups, weight_decay=0.0)
warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=2)
schedule = torch.optim.lr_scheduler.SequentialLR(
    optimizer, [warm, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)], [2]
)
for step in range(2):
    for part in range(2):
        x = torch.randn(8, 3, 64, 64).to("cuda", memory_format=torch.channels_last, non_blocking=True)
        y = torch.randint(0, 10, (8,), device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            out = net(x)
            assert out.dtype == torch.bfloat16 and x.is_contiguous(memory_format=torch.channels_last)
            loss = F.cross_entropy(out, y, label_smoothing=0.1) / 2
        loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    schedule.step()
# A weight of so many bytes and two moments of it each, and counters of the batch norms.
state = [v for s in optimizer.state.values() for v in s.values() if v.dim()]
assert sum(v.nbytes for v in state) == 2 * sum(p.nbytes for p in net.parameters())
assert all(p.grad is None and p.is_cuda for p in net.parameters())
