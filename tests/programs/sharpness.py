"""Sharpness-aware minimization: an optimizer around an optimizer, with two backward passes in a step."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class SAM(torch.optim.Optimizer):
    def __init__(self, params, base, rho=0.05, **kwargs):
        super().__init__(params, dict(rho=rho, **kwargs))
        self.base = base(self.param_groups, **kwargs)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def first_step(self):
        norms = [p.grad.norm(p=2).to("cuda") for group in self.param_groups for p in group["params"]]
        norm = torch.norm(torch.stack(norms), p=2)
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["old"] = p.data.clone()
                p.add_(p.grad * (group["rho"] / (norm + 1e-12)).to(p))
        self.zero_grad()

    @torch.no_grad()
    def second_step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.data = self.state[p]["old"]
        self.base.step()
        self.zero_grad()


model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 128)).cuda()
weights = 4 * (2 * 128 * 256 + 256 + 128)
optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
before = torch.cuda.memory_allocated()
for _ in range(2):
    x, y = torch.randn(32, 128, device="cuda"), torch.randint(0, 128, (32,), device="cuda")
    F.cross_entropy(model(x), y).backward()
    optimizer.first_step()
    F.cross_entropy(model(x), y, label_smoothing=0.1).backward()
    optimizer.second_step()
del x, y
torch._C._cuda_clearCublasWorkspaces()
# The weights themselves, which are the copies now, and momentum.
assert torch.cuda.memory_allocated() == 2 * weights, torch.cuda.memory_allocated()
assert before >= weights
