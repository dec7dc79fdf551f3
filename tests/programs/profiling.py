"""Looks at its own memory: history, snapshots, statistics and the profiler, around two phases of training."""

import os
import pickle
import sys

import torch
from torch import nn

out = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("TMPDIR", "/tmp")
os.makedirs(out, exist_ok=True)
torch.cuda.memory._record_memory_history(max_entries=100_000)
model = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(4)]).cuda()
# 256*256*4 = 262144 and 1024.
weights = 4 * (262144 + 1024)
assert torch.cuda.memory_allocated() == weights
opt = torch.optim.RMSprop(model.parameters(), lr=1e-3, momentum=0.9)


def train(steps):
    for _ in range(steps):
        x = torch.randn(64, 256, device="cuda")
        with torch.profiler.record_function("## forward ##"):
            loss = model(x).sum()
        with torch.profiler.record_function("## backward ##"):
            loss.backward()
        opt.step()
        opt.zero_grad()


train(2)
first = os.path.join(out, "warm.pickle")
torch.cuda.memory._dump_snapshot(first)
torch.cuda.memory._record_memory_history(enabled=None)
train(1)
torch.cuda.memory._record_memory_history(enabled="all", stacks="python", max_entries=1000)
torch.cuda.reset_peak_memory_stats()
train(1)
second = os.path.join(out, "steady.pickle")
torch.cuda.memory._dump_snapshot(second)
torch.cuda.memory._record_memory_history(enabled=None)
for path in (first, second):
    with open(path, "rb") as f:
        snapshot = pickle.load(f)
    events = snapshot["device_traces"][0]
    assert sum(segment["total_size"] for segment in snapshot["segments"]) == torch.cuda.memory_reserved()
    print(os.path.basename(path), len(events), "events,", len(snapshot["segments"]), "segments")
allocs = [e for e in events if e["action"] == "alloc"]
frees = [e for e in events if e["action"] == "free_completed"]
assert len(allocs) == len(frees) > 10
stats = torch.cuda.memory_stats()
assert stats["allocated_bytes.all.peak"] == torch.cuda.max_memory_allocated() > stats["allocated_bytes.all.current"]
assert stats["reserved_bytes.all.current"] == torch.cuda.memory_reserved()
assert stats["num_alloc_retries"] == stats["num_ooms"] == 0
print(torch.cuda.memory_summary(device=None, abbreviated=True))
torch._C._cuda_clearCublasWorkspaces()
# RMSprop with momentum keeps two tensors a weight.
assert torch.cuda.memory_allocated() == 3 * weights, (torch.cuda.memory_allocated(), 3 * weights)
