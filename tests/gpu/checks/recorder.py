"""That torch counts as the recorder believes, and tells it what it must hear."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from memviz.runner.measure.accelerator import Accelerator, find_accelerator
from memviz.runner.measure.cuda_device import CudaDevice
from memviz.runner.record.log import counts_of
from memviz.runner.record.memory_history import RecordedHistory
from memviz.runner.record.recording import trace_of
from memviz.runner.step import RunStep
from memviz.runner.workloads import workload_named
from memviz.trace.load import load_trace
from memviz.trace.model import About, Action, Category, Trace
from tests.gpu.checks.asked import Answers, asked
from tests.gpu.comparing import gpu_of, out_of_memory_at
from tests.gpu.machine import RECORD, ROOT

_MiB = 1 << 20


def _numbers(trace: Trace, action: Action) -> int:
    return int((gpu_of(trace).events.action == action).sum())


def counts(_folder: Path) -> Answers:
    """A training step on other threads and streams too: as many events as torch counts, and books that agree."""
    accelerator = find_accelerator()
    workload = workload_named("transformer_block", {"width": "1024", "inner": "4096", "vocabulary": "8192"})
    model = workload.build()
    with CudaDevice(accelerator=accelerator) as device:
        before = counts_of(accelerator.api, 0)
        model = device.place(model)
        step = RunStep(workload, device, model, device.inputs(workload), torch.optim.AdamW(model.parameters()))
        for _ in range(2):
            with device.phase("step"):
                step()
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            handed_over = torch.ones(3 * _MiB, device="cuda")
        handed_over.record_stream(torch.cuda.current_stream())
        del handed_over
        torch.cuda.empty_cache()
        trace = device.finish()
        after = counts_of(accelerator.api, 0)
    assert before is not None and after is not None
    yield asked("alloc events for each counted allocation", after.allocs - before.allocs, _numbers(trace, Action.ALLOC))
    requested = _numbers(trace, Action.FREE_REQUESTED)
    yield asked("free_requested events for each counted free", after.frees - before.frees, requested)
    peaks = device.peaks
    assert peaks is not None
    yield asked("allocated peak of the trace", peaks.allocated.reported, peaks.allocated.from_trace)
    yield asked("reserved peak of the trace", peaks.reserved.reported, peaks.reserved.from_trace)
    yield asked("why they differ", "", peaks.allocated.reason + peaks.reserved.reason)
    labels = gpu_of(trace).event_labels
    assert labels is not None
    allocs = gpu_of(trace).events.action == Action.ALLOC
    nameless = float((labels.category[allocs] == Category.UNKNOWN).mean())
    yield asked("share of allocations without a category below 0.2", "< 0.2", nameless, ok=nameless < 0.2)
    times = np.diff(gpu_of(trace).events.time_us)
    yield asked("events in order of time", 0, int((times < 0).sum()))


def first_allocation(_folder: Path, accelerator: Accelerator | None = None) -> Answers:
    """A history asked for before CUDA started begins with the program's first allocation."""
    accelerator = accelerator or find_accelerator()
    yield asked("looking for a GPU starts no driver", False, torch.cuda.is_initialized())
    history = RecordedHistory(accelerator)
    accelerator.when_used(history.start)
    yield asked("waiting for CUDA starts no driver", False, torch.cuda.is_initialized())
    kept = torch.ones(5 * _MiB, device=accelerator.kind)
    taken = history.take()
    history.stop()
    events = gpu_of(trace_of(taken.snapshot, About("measured"))).events
    first = int(events.size[events.action == Action.ALLOC][0]) if len(events) else 0
    yield asked("size of the first allocation recorded", kept.nbytes, first)


_SCRIPT = """
import torch
model = torch.nn.Linear(3072, 1024, device="cuda")
for _ in range(3):
    model(torch.ones(64, 3072, device="cuda")).sum().backward()
"""


def command(folder: Path, program: str = _SCRIPT, record: Sequence[str] = RECORD) -> Answers:
    """`python -m memviz record` on a script of two lines."""
    script, file = folder / "script.py", folder / "recorded.pickle"
    script.write_text(program, encoding="utf-8")
    line = [*record, "--overwrite", "-o", str(file), str(script)]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True)
    yield asked("its exit status", 0, done.returncode)
    is_one = done.stderr.startswith("memviz: ") and done.stderr.count("\n") == 1
    yield asked("its words", "one line, of what was written", done.stderr[-500:], ok=is_one)
    events = gpu_of(load_trace(file)).events
    yield asked("size of the first allocation", 4 * 3072 * 1024, int(events.size[events.action == Action.ALLOC][0]))


def out_of_memory(_folder: Path, accelerator: Accelerator | None = None) -> Answers:
    """The observer is told before the error, and what was live then is in the trace although it is gone by now."""
    accelerator = accelerator or _short_of_memory()
    words = ""
    with CudaDevice(accelerator=accelerator) as device:
        held = [torch.empty(96 * _MiB, dtype=torch.uint8, device=accelerator.kind) for _ in range(3)]
        try:
            held.append(torch.empty(256 * _MiB, dtype=torch.uint8, device=accelerator.kind))
        except RuntimeError as error:
            words = str(error)
        held.clear()
        told = device.history.at_out_of_memory is not None
        trace = device.finish()
    yield asked("memory ran out", True, "out of memory" in words)
    yield asked("the observer was told", True, told)
    yield asked("the event", {"served": 3, "asked": 256 * _MiB}, out_of_memory_at(gpu_of(trace)))
    live = int(gpu_of(trace).blocks.requested.sum())
    yield asked("live at the end of the trace", 3 * 96 * _MiB, live)


def _short_of_memory() -> Accelerator:
    torch.cuda.init()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(512 * _MiB / total)
    return find_accelerator()
