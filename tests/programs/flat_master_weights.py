"""Mixed precision by hand: fp16 weights, one flat fp32 copy of them, and a loss scale that follows overflows."""

import torch
import torch.nn as nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

model = nn.Sequential(nn.Linear(256, 512, bias=False), nn.ReLU(), nn.Linear(512, 256, bias=False)).cuda().half()
weights = list(model.parameters())
count = 2 * 256 * 512
master = nn.Parameter(_flatten_dense_tensors([p.detach().float() for p in weights]))
optimizer = torch.optim.Adam([master], fused=True)
scale = 20.0
for _ in range(3):
    loss = model(torch.randn(16, 256, device="cuda").half()).float().pow(2).mean()
    (loss * 2**scale).backward()
    if any(p.grad is None or not torch.isfinite(p.grad.sum()) for p in weights):
        scale -= 1
        model.zero_grad()
        continue
    master.grad = _flatten_dense_tensors([p.grad.data.detach().float() for p in weights])
    master.grad.mul_(1.0 / 2**scale)
    norm = master.grad.norm().item()
    optimizer.step()
    master.grad = None
    for p, new in zip(weights, _unflatten_dense_tensors(master.detach(), weights)):
        p.detach().copy_(new)
    model.zero_grad()
    scale += 1e-3
print(norm, scale)
del loss, new, p
torch._C._cuda_clearCublasWorkspaces()
# fp16 weights, the fp32 copy and its two moments, and the step in 4 bytes.
assert torch.cuda.memory_allocated() == count * (2 + 4 + 8) + 512, torch.cuda.memory_allocated()
