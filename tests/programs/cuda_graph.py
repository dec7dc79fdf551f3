"""A training step captured as a CUDA graph and replayed on new data."""

from __future__ import annotations

import torch
from torch import nn

N, D_IN, HIDDEN, D_OUT = 640, 4096, 2048, 1024
model = nn.Sequential(nn.Linear(D_IN, HIDDEN), nn.Dropout(p=0.2), nn.Linear(HIDDEN, D_OUT), nn.Dropout(p=0.1)).cuda()
loss_fn = nn.MSELoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

static_input = torch.randn(N, D_IN, device="cuda")
static_target = torch.randn(N, D_OUT, device="cuda")

side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        optimizer.zero_grad(set_to_none=True)
        loss = loss_fn(model(static_input), static_target)
        loss.backward()
        optimizer.step()
torch.cuda.current_stream().wait_stream(side)

graph = torch.cuda.CUDAGraph()
optimizer.zero_grad(set_to_none=True)
with torch.cuda.graph(graph):
    static_prediction = model(static_input)
    static_loss = loss_fn(static_prediction, static_target)
    static_loss.backward()
    optimizer.step()

torch.cuda.synchronize()
allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
losses = []
for _ in range(10):
    data, target = torch.rand(N, D_IN, device="cuda"), torch.rand(N, D_OUT, device="cuda")
    static_input.copy_(data)
    static_target.copy_(target)
    graph.replay()
    losses.append(static_loss.item())
    del data, target
assert torch.cuda.memory_allocated() == allocated
# The new batches: 10 MiB exactly, which is as much as a segment of its own, and 2.5 MiB out of one of 20.
assert torch.cuda.memory_reserved() <= reserved + (10 + 20) * 2**20
pools = {segment["segment_pool_id"] for segment in torch.cuda.memory_snapshot()}
assert len(pools) == 2 and (0, 0) in pools, pools
print("losses", losses[:2], "allocated", allocated)
