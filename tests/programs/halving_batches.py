"""The largest batch that fits: try, and halve it when memory runs out."""

from __future__ import annotations

import gc

import torch
from torch import nn

WIDTH = 8192
device = torch.device("cuda")
model = nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.GELU(), nn.Linear(WIDTH, 1, bias=False)).to(device)
optimizer = torch.optim.AdamW(model.parameters())
weights = WIDTH * WIDTH * 4 + WIDTH * 4
assert torch.cuda.memory_allocated() == weights


def train_step(batch_size: int) -> None:
    x = torch.randn(batch_size, WIDTH, device=device)
    loss = model(x).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


free, total = torch.cuda.mem_get_info()
# One batch takes WIDTH * 4 bytes a row, and the step holds at least two of them.
batch = 1
while batch * WIDTH * 4 <= total:
    batch *= 2
failures = 0
while batch:
    try:
        train_step(batch)
        break
    except torch.cuda.OutOfMemoryError as error:
        assert "CUDA out of memory" in str(error) and "Tried to allocate" in str(error)
        failures += 1
        batch //= 2
    except RuntimeError as error:
        if "out of memory" not in str(error):
            raise
        raise AssertionError("torch raises its own class") from error
    optimizer.zero_grad(set_to_none=True)
    gc.collect()
    torch.cuda.empty_cache()

assert failures >= 2 and batch * WIDTH * 4 * 2 < total
print(f"batch {batch} after {failures} failures")
print(f"peak {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB of {total / 2**30:.1f}")
assert torch.cuda.memory_stats()["num_ooms"] == failures
torch.cuda.empty_cache()
torch._C._cuda_clearCublasWorkspaces()
# Weights and Adam's two moments.
assert torch.cuda.memory_allocated() == 3 * weights, (torch.cuda.memory_allocated(), 3 * weights)
