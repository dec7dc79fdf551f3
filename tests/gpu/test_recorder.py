"""Assumptions of the recorder: torch's counters are right, and out of memory is reported in time."""

import json
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from memviz.runner.jobs.worker_process import environment_of
from memviz.runner.measure.accelerator import find_accelerator
from memviz.runner.measure.cuda_device import CudaDevice
from memviz.runner.measure.measured_run import drawn_on, measure
from memviz.runner.plan import make_workload, plan_of
from memviz.runner.record.log import counts_of
from memviz.runner.request import Request
from memviz.runner.step import RunStep
from memviz.trace.load import load_trace
from memviz.trace.model import Action, Category, Trace
from tests.gpu.comparing import gpu_of, out_of_memory_at
from tests.gpu.conftest import ROOT, Python

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]

MiB = 1 << 20
_LARGE = {"sequence": "2048", "dim": "2048", "layers": "8"}
_GRACE_SECONDS = 30.0
"""Between SIGTERM and SIGKILL, with SLURM and Kubernetes."""


def event_count(trace: Trace, action: Action) -> int:
    return int((gpu_of(trace).events.action == action).sum())


def test_driver_and_pytorch_fit():
    find_accelerator().start()


def test_each_counted_allocation_has_an_event_on_every_thread_and_stream():
    accelerator = find_accelerator()
    workload = make_workload("transformer_block", {"width": "1024", "inner": "4096", "vocabulary": "8192"})
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
            shared = torch.ones(3 * MiB, device="cuda")
        shared.record_stream(torch.cuda.current_stream())
        del shared
        torch.cuda.empty_cache()
        trace = device.finish()
        after = counts_of(accelerator.api, 0)
    assert before is not None and after is not None and device.peaks is not None
    assert event_count(trace, Action.ALLOC) == after.allocs - before.allocs
    assert event_count(trace, Action.FREE_REQUESTED) == after.frees - before.frees
    assert not (device.peaks.allocated.difference or device.peaks.reserved.difference), device.peaks
    events, labels = gpu_of(trace).events, gpu_of(trace).event_labels
    assert labels is not None
    assert (labels.category[events.action == Action.ALLOC] == Category.UNKNOWN).mean() < 0.2
    assert (np.diff(events.time_us) >= 0).all()


_SCRIPT = """
import torch
model = torch.nn.Linear(3072, 1024, device="cuda")
for _ in range(3):
    model(torch.ones(64, 3072, device="cuda")).sum().backward()
"""


def test_a_recorded_script_begins_with_its_first_allocation(tmp_path, python: Python):
    script, file = tmp_path / "script.py", tmp_path / "recorded.pickle"
    script.write_text(_SCRIPT)
    done = python("-m", "memviz", "record", "-o", file, script)
    assert done.stderr.startswith("memviz: ") and done.stderr.count("\n") == 1
    events = gpu_of(load_trace(file)).events
    assert int(events.size[events.action == Action.ALLOC][0]) == 4 * 3072 * 1024


def test_out_of_memory_is_reported_while_all_is_still_live():
    total = torch.cuda.get_device_properties(0).total_memory
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.set_per_process_memory_fraction(512 * MiB / total)
    try:
        with CudaDevice(accelerator=find_accelerator()) as device:
            held = [torch.empty(96 * MiB, dtype=torch.uint8, device="cuda") for _ in range(3)]
            with pytest.raises(torch.OutOfMemoryError):
                torch.empty(256 * MiB, dtype=torch.uint8, device="cuda")
            held.clear()
            assert device.history.at_out_of_memory is not None
            trace = device.finish()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert out_of_memory_at(gpu_of(trace)) == {"served": 3, "asked": 256 * MiB}
    assert int(gpu_of(trace).blocks.requested.sum()) == 3 * 96 * MiB


_EXPANDABLE = """
import json, torch, warnings
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    kept = torch.ones(32 << 20, device="cuda")
snapshot = torch.cuda.memory._snapshot()
print(json.dumps({
    "settings": snapshot.get("allocator_settings", {}).get("expandable_segments"),
    "segments": any(segment.get("is_expandable") for segment in snapshot["segments"]),
    "warned": [str(warning.message) for warning in warned],
}))
"""


def test_a_snapshot_says_that_expandable_segments_are_on(python: Python):
    request = Request("feed_forward", optimizations=(("allocator_settings", {}),))
    done = python("-c", _EXPANDABLE, **environment_of(request))
    assert json.loads(done.stdout) == {"settings": True, "segments": True, "warned": []}


def test_weights_drawn_on_the_gpu_leave_nothing_there():
    accelerator = find_accelerator()
    accelerator.start()
    drawn_on(accelerator, plan_of(Request("feed_forward", _LARGE)).workload.build)
    figures = torch.cuda.memory_stats_as_nested_dict(0)
    assert {name: figures[f"{name}_bytes"]["all"]["current"] for name in ("allocated", "reserved")} == {
        "allocated": 0,
        "reserved": 0,
    }


def test_the_timed_run_needs_no_more_memory_than_the_recorded_one():
    accelerator = find_accelerator()
    accelerator.start()
    request = Request("feed_forward", {**_LARGE, "mode": "training"}, on="cuda", optimizer="adamw")
    run = measure(plan_of(request), lambda _: None, accelerator).run
    timed = torch.cuda.memory_stats_as_nested_dict(0)["allocated_bytes"]["all"]["peak"]
    assert run.seconds is not None
    assert timed <= 1.01 * run.peak_allocated_bytes


_MANY = """
import time, torch
def deeper(depth):
    return deeper(depth - 1) if depth else [torch.ones(8, device="cuda") for _ in range(20)]
for _ in range(10_000):
    deeper(30)
print("ready", flush=True)
while True:
    time.sleep(1)
"""


def test_a_recording_with_cpp_stacks_is_written_before_a_job_is_killed(tmp_path):
    """C++ stacks are looked up when a snapshot is used."""
    script, file = tmp_path / "many.py", tmp_path / "many.pickle"
    script.write_text(_MANY)
    command = [sys.executable, "-m", "memviz", "record", "--stacks", "all", "-o", str(file), str(script)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        began = time.perf_counter()
        process.send_signal(signal.SIGTERM)
        process.wait()
        seconds = time.perf_counter() - began
    assert file.exists()
    assert seconds <= _GRACE_SECONDS
