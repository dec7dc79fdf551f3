"""Records the history of some steps and dumps it, as PyTorch's own guide to memory snapshots does."""

from __future__ import annotations

import logging
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn

logging.basicConfig(level=logging.INFO, stream=sys.stderr)
logger = logging.getLogger(__name__)
MAX_NUM_OF_MEM_EVENTS_PER_SNAPSHOT = 100_000
folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp())


def start_record_memory_history() -> None:
    if not torch.cuda.is_available():
        logger.info("CUDA unavailable. Not recording memory history")
        return
    torch.cuda.memory._record_memory_history(max_entries=MAX_NUM_OF_MEM_EVENTS_PER_SNAPSHOT)


def stop_record_memory_history() -> None:
    torch.cuda.memory._record_memory_history(enabled=None)


def export_memory_snapshot(name: str) -> Path:
    path = folder / f"{name}.pickle"
    torch.cuda.memory._dump_snapshot(str(path))
    return path


model = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024)).to("cuda:0")
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
start_record_memory_history()
for iteration in range(4):
    inputs = torch.randn(128, 1024, device="cuda:0")
    with torch.profiler.record_function("## forward ##"):
        loss = model(inputs).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if iteration == 1:
        export_memory_snapshot("two_steps")
written = export_memory_snapshot("four_steps")
snapshot = torch.cuda.memory._snapshot()
stop_record_memory_history()
after = export_memory_snapshot("nothing")

(events,) = snapshot["device_traces"]
actions = [event["action"] for event in events]
assert actions.count("alloc") >= actions.count("free_completed") > 0 and "snapshot" in actions
live = sum(
    block["size"] for segment in snapshot["segments"] for block in segment["blocks"] if block["state"] != "inactive"
)
assert live == torch.cuda.memory_allocated()
assert sum(segment["total_size"] for segment in snapshot["segments"]) == torch.cuda.memory_reserved()
own = [event for event in events if any(frame["filename"] == __file__ for frame in event["frames"])]
assert len(own) > 20
assert written.stat().st_size > after.stat().st_size > 0
print(len(events), "events,", len(own), "with this file's own lines")
