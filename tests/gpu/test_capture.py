"""Runs and programs recorded, on a card that is not there."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from memviz.runner.measure import cuda_device
from memviz.runner.plan import plan_of
from memviz.runner.request import Request
from memviz.runner.run import load_run
from memviz.trace.load import load_trace
from memviz.trace.model import Action
from tests.gpu import programs
from tests.gpu.capture import take_run
from tests.gpu.comparing import gpu_of, out_of_memory_at
from tests.gpu.not_there import NotThere
from tests.gpu.programs import PROGRAMS, Program, program_named
from tests.gpu.recorded import record
from tests.gpu.runs import RUNS
from tests.runner.torch_storages import watching_torch

MiB = 1 << 20
TINY = {
    "width": "256",
    "inner": "512",
    "vocabulary": "512",
    "sequence": "32",
    "key_value_heads": "2",
    "parts": "2",
    "micro_batches": "2",
    "dtype": "fp32",
}


@pytest.mark.parametrize("run", RUNS, ids=lambda each: each.name)
def test_every_run_is_one_that_the_command_line_accepts(run):
    plan = plan_of(Request.from_json({**run.request, "on": "cuda"}))
    assert tuple(sorted(optimization.name for optimization in plan.optimizations)) == tuple(
        sorted(dict(run.optimizations))
    )


@pytest.mark.slow
def test_a_run_is_kept_with_its_peaks_and_its_trace(tmp_path, monkeypatch):
    monkeypatch.setattr(cuda_device, "FILLED_SECONDS", 0.0)
    gpu = NotThere()
    request = {"workload": "transformer_block", "settings": TINY}
    with watching_torch(gpu):
        found = take_run(request, tmp_path / "a.pickle.gz", gpu.accelerator)
    trace, run = load_run(tmp_path / found["file"])
    assert (found["ran_out"], found["events"]) == ("", trace.event_count)
    assert found["peak_allocated_bytes"] == run.peak_allocated_bytes > run.weights_bytes
    assert run.mode == "measured"
    assert found["seconds"]["median"] > 0


def recorded(program: Program, gpu: NotThere, path: Any, **limit: Any) -> tuple[dict[str, Any], Any]:
    known = {"total": 100 * MiB, "limit": None, **limit}
    with watching_torch(gpu):
        found = record(program, path, gpu, torch.device("cpu"), **known)
    return found, gpu_of(load_trace(path))


def counted(device: Any) -> dict[str, int]:
    actions = device.events.action
    return {"allocs": int((actions == Action.ALLOC).sum()), "frees": int((actions == Action.FREE_REQUESTED).sum())}


@pytest.mark.slow
@pytest.mark.parametrize("name", [each.name for each in PROGRAMS if not each.needs_cuda and not each.limit_bytes])
def test_a_program_leaves_as_many_events_as_were_counted(name, tmp_path, monkeypatch):
    for constant, value in (("_WORDS", 32), ("_WIDTH", 32), ("_LAYERS", 1), ("_LENGTHS", (8, 12)), ("_BATCH", 2)):
        monkeypatch.setattr(programs, constant, value)
    program = program_named(name)
    if name.startswith("plain"):
        whole = programs._split
        monkeypatch.setattr(programs, "_split", lambda first, last, x, n: whole(first, last, x[:1, :2], n))
    found, device = recorded(program, NotThere(), tmp_path / "a.pickle.gz")
    assert counted(device) == found["counted"]
    assert found["counted"]["allocs"] > 3
    assert found["peak_allocated_bytes"] > 0


def test_only_what_the_recorded_part_did_is_in_the_peak(tmp_path):
    gpu = NotThere()

    def begin(_device: torch.device) -> Any:
        kept = gpu.malloc(3 * MiB)
        gpu.free(gpu.malloc(40 * MiB))
        return lambda: (gpu.free(gpu.malloc(11 * MiB)), kept)

    found, device = recorded(Program("late", "", begin), gpu, tmp_path / "a.pickle.gz")
    assert (found["peak_allocated_bytes"], counted(device)) == (14 * MiB, {"allocs": 1, "frees": 1})


def test_running_out_is_kept_as_it_was(tmp_path):
    gpu = NotThere(limit=50 * MiB)

    def begin(_device: torch.device) -> Any:
        return lambda: [gpu.malloc(20 * MiB) for _ in range(3)]

    found, device = recorded(Program("grows", "", begin), gpu, tmp_path / "a.pickle.gz", limit=50 * MiB)
    assert found["ran_out"].startswith("CUDA out of memory. Tried to allocate")
    assert (found["fraction"], gpu.fraction) == (0.5, 0.5)
    assert out_of_memory_at(device) == {"served": 2, "asked": 20 * MiB}
    assert not gpu.is_recording
