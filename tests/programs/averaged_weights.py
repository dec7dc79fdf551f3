"""Two averages of weights: stochastic weight averaging with its batch norms, and an exponential one by hand."""

import copy

import torch
import torch.nn as nn
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn

model = nn.Sequential(nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
model = model.append(nn.Linear(32, 10)).cuda()
average = AveragedModel(model)
shadow = copy.deepcopy(model).eval().requires_grad_(False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
schedule = SWALR(optimizer, swa_lr=0.05)
batches = [(torch.randn(8, 3, 16, 16), torch.randint(0, 10, (8,))) for _ in range(2)]
for x, y in batches:
    nn.functional.cross_entropy(model(x.cuda()), y.cuda()).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    average.update_parameters(model)
    schedule.step()
    with torch.no_grad():
        for kept, new in zip(shadow.parameters(), model.parameters()):
            kept.lerp_(new, 0.01)
        for kept, new in zip(shadow.buffers(), model.buffers()):
            kept.copy_(new)
update_bn(batches, average, device="cuda")
assert int(average.n_averaged) == 2
with torch.inference_mode():
    assert average(batches[0][0].cuda()).shape == shadow(batches[0][0].cuda()).shape == (8, 10)
kept = [t for m in (model, average.module, shadow) for t in (*m.parameters(), *m.buffers())]
assert all(t.is_cuda for t in kept)
