"""A checkpoint that is written and resumed: the weights again, the optimizer's state to the card, and random states."""

import os

import torch
import torch.nn as nn

model = nn.Sequential(nn.Linear(256, 512, bias=False), nn.Linear(512, 128, bias=False)).cuda()
weights = 4 * (256 * 512 + 512 * 128)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / 10))


def step():
    model(torch.randn(8, 256, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    schedule.step()


step()
os.makedirs("runs/1", exist_ok=True)
state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "schedule": schedule.state_dict(), "step": 1}
torch.save({**state, "rng": torch.get_rng_state(), "cuda_rng": torch.cuda.get_rng_state()}, "runs/1/last.pt.tmp")
os.replace("runs/1/last.pt.tmp", "runs/1/last.pt")
del state, model, optimizer, schedule
torch._C._cuda_clearCublasWorkspaces()
assert torch.cuda.memory_allocated() == 0, torch.cuda.memory_allocated()

newest = max(os.listdir("runs"), key=int)
model = nn.Sequential(nn.Linear(256, 512, bias=False), nn.Linear(512, 128, bias=False)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / 10))
found = torch.load(f"runs/{newest}/last.pt", map_location="cpu")
assert not found["model"]["0.weight"].is_cuda and found["step"] == 1
model.load_state_dict(found["model"])
optimizer.load_state_dict(found["optimizer"])
schedule.load_state_dict(found["schedule"])
torch.set_rng_state(found["rng"])
torch.cuda.set_rng_state(found["cuda_rng"])
# Weights, and two moments that went to the card because the weights are there; steps are counted on the host.
assert torch.cuda.memory_allocated() == 3 * weights, torch.cuda.memory_allocated()
assert all(value.is_cuda for value in optimizer.state[model[0].weight].values() if value.dim())
step()
assert abs(schedule.get_last_lr()[0] - 3e-4) < 1e-9
