"""A real training loop on the CPU, recorded like a GPU's: the labels of each tensor in the file."""

import errno
import os
import pickle
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import memviz
from memviz.allocator.context import NCCL_FACT
from memviz.analysis.annotations import annotated
from memviz.analysis.lifetimes import lifetimes
from memviz.analysis.purpose.phases import label_of_rows
from memviz.errors import UsageError
from memviz.results.summary import summary_result
from memviz.runner.record import memory_history
from memviz.runner.record.memory_history import is_recording
from memviz.trace.load import load_trace
from memviz.trace.memviz_labels import ChildMemory
from memviz.trace.model import Action, Category, Phase, Trace
from memviz.ui.payloads.timelines import timeline_value
from tests.runner.fake_gpu import FakeGpu, OutOfMemoryError
from tests.runner.torch_storages import watching_torch

WIDTH = 64
MiB = 1 << 20


class Model(nn.Module):
    def __init__(self, *, checkpointed: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.second = nn.Linear(2 * WIDTH, WIDTH, bias=False)
        self.checkpointed = checkpointed

    def forward(self, x: Tensor) -> Tensor:
        if self.checkpointed:
            return checkpoint(self._inner, x, use_reentrant=False)
        return self._inner(x)

    def _inner(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x)))


def labels(trace: Trace, *, begun: bool = False) -> Counter[tuple[str, str, str, int]]:
    """Count allocations by (category, phase, module, size); `begun`: only those with an event."""
    device = trace.devices[0]
    lives = lifetimes(device)
    columns = [label_of_rows(device, each) for each in ("category", "phase", "module")]
    rows = zip(*columns, lives.size.tolist(), lives.start.tolist(), strict=True)
    kept = [row for row in rows if row[-1] >= 0 or not begun]
    return Counter((Category(c).label, Phase(p).name.lower(), trace.strings[m], size) for c, p, m, size, _ in kept)


def of(found: Counter[tuple[str, str, str, int]], category: str) -> dict[tuple[str, str, int], int]:
    return {(phase, module, size): n for (what, phase, module, size), n in found.items() if what == category}


def train(gpu: FakeGpu, model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 2) -> None:
    with watching_torch(gpu):
        for _ in range(steps):
            output = model(torch.ones(8, WIDTH))
            output.pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()


def recorded(path: Path | None = None, *, checkpointed: bool = False, **more: Any) -> memviz.recording:
    gpu = FakeGpu()
    with watching_torch(gpu):
        model = Model(checkpointed=checkpointed)
        for parameter in model.parameters():
            parameter.detach().clone()
    for parameter in model.parameters():
        gpu.adopted.setdefault(parameter.untyped_storage().data_ptr(), parameter.untyped_storage().nbytes())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with memviz.recording(path, model=model, optimizer=optimizer, accelerator=gpu.accelerator, **more) as done:
        train(gpu, model, optimizer)
    return done


WEIGHT = 4 * 2 * WIDTH * WIDTH
HIDDEN = 4 * 8 * 2 * WIDTH
OUTPUT = 4 * 8 * WIDTH


@pytest.mark.parametrize(
    ("smi", "outside", "scope"),
    [
        ("GPU-1, OWN, 700\nGPU-1, 1, 9000\nGPU-0, OWN, 9\n", 698, "of this process"),
        ("GPU-1, 1, 9000\n", 3998, "of the whole card, other processes included"),
        ("GPU-1, OWN, [N/A]\n", 3998, "of the whole card, other processes included"),
    ],
)
def test_what_the_driver_counts_beyond_pytorch_is_a_line_of_the_bill(
    tmp_path: Path, smi: str, outside: int, scope: str
) -> None:
    gpu = FakeGpu()
    gpu.get_device_properties = lambda index: SimpleNamespace(uuid=f"GPU-{1 - index}")  # type: ignore[attr-defined]
    gpu.mem_get_info = lambda index: (6_000 * MiB, 10_000 * MiB)  # type: ignore[attr-defined]
    accelerator = replace(gpu.accelerator, ask_driver=lambda *question: smi.replace("OWN", str(os.getpid())))
    with memviz.recording(tmp_path / "run.pickle", accelerator=accelerator):
        gpu.malloc(100)
    trace = load_trace(tmp_path / "run.pickle")
    reserved, beside = summary_result(trace).bill_of("0").rows  # type: ignore[union-attr]
    assert (reserved.most_bytes, reserved.basis) == (2 * MiB, "measured")
    assert (beside.name, beside.least_bytes, beside.most_bytes) == ("outside PyTorch", outside * MiB, outside * MiB)
    assert beside.basis == "measured" and scope in beside.source


def test_every_tensor_of_two_training_steps_is_known():
    found = labels(recorded().trace)
    assert of(found, "parameter") == {("unknown", "first", WEIGHT): 1, ("unknown", "second", WEIGHT): 1}
    assert of(found, "gradient") == {("backward", "first", WEIGHT): 2, ("backward", "second", WEIGHT): 2}
    assert of(found, "optimizer state") == {("step", "first", WEIGHT): 1, ("step", "second", WEIGHT): 1}
    assert of(found, "input") == {("unknown", "", OUTPUT): 2}
    assert of(found, "output") == {("forward", "second", OUTPUT): 2}
    # The first layer's output is handed on to the activation function, which keeps its own.
    assert of(found, "activation") == {("forward", "", HIDDEN): 2, ("forward", "first", HIDDEN): 2}


def test_what_a_checkpoint_computes_again_is_an_activation_made_in_backward():
    plain, again = (of(labels(recorded(checkpointed=each).trace), "activation") for each in (False, True))
    assert {phase for phase, _, _ in plain} == {"forward"}
    assert ("backward", "first", HIDDEN) in again or ("backward", "second", OUTPUT) in again


def intervals(trace: Trace) -> list[tuple[str, int, int]]:
    found = annotated(trace.devices[0])
    names = [trace.strings[each] for each in found.name]
    return list(zip(names, found.start_event.tolist(), found.end_event.tolist(), strict=True))


def test_phases_stand_as_annotations_around_their_events_and_the_file_says_the_same(tmp_path):
    done = recorded(tmp_path / "run.pickle")
    found = intervals(done.trace)
    assert [name for name, _, _ in found] == ["forward", "backward", "optimizer step"] * 2
    ends = [end for _, _, end in found]
    assert all(start >= before for (_, start, _), before in zip(found[1:], ends, strict=False))
    read = load_trace(tmp_path / "run.pickle")
    assert labels(read) == labels(done.trace)
    assert (read.about.origin, read.about.on, read.about.facts["torch"]) == ("measured", "Fake GPU", "2.13.0")
    assert read.about.facts == done.trace.about.facts
    assert intervals(read) == intervals(done.trace)


def test_torchs_own_words_are_all_in_the_file(tmp_path):
    gpu = FakeGpu()
    original = gpu._snapshot
    gpu._snapshot = lambda: {**original(), "something_new": [1, 2, 3]}
    with memviz.recording(tmp_path / "run.pickle", accelerator=gpu.accelerator):
        gpu.malloc(1000)
    written = pickle.loads((tmp_path / "run.pickle").read_bytes())
    assert written["something_new"] == [1, 2, 3]
    assert [each["action"] for each in written["device_traces"][0]] == ["segment_alloc", "alloc"]


def test_gradients_do_not_change_under_the_hooks_and_the_model_is_left_as_it_was():
    torch.manual_seed(0)
    model = Model()

    def gradients() -> list[Tensor]:
        model.zero_grad()
        model(torch.ones(8, WIDTH)).pow(2).mean().backward()
        return [parameter.grad.clone() for parameter in model.parameters()]

    plain = gradients()
    gpu = FakeGpu()
    with memviz.recording(model=model, accelerator=gpu.accelerator):
        gpu.malloc(1000)
        watched = gradients()
    assert all(torch.equal(*pair) for pair in zip(plain, watched, strict=True))
    hooks = [hook for module in model.modules() for hook in (*module._forward_hooks, *module._forward_pre_hooks)]
    assert hooks == []


def test_labels_survive_a_program_that_resets_its_figures():
    gpu, model = FakeGpu(), Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with memviz.recording(model=model, optimizer=optimizer, accelerator=gpu.accelerator) as done:
        train(gpu, model, optimizer, steps=1)
        gpu.allocs = gpu.frees = 0
        train(gpu, model, optimizer, steps=1)
    assert of(labels(done.trace), "gradient") == {("backward", "first", WEIGHT): 1, ("backward", "second", WEIGHT): 1}


def test_labels_stay_right_where_the_ring_lost_its_first_events():
    done = recorded(max_entries=40)
    assert len(done.trace.devices[0].events) == 40
    assert [note.code for note in done.trace.notes] == ["history_full"]
    whole, part = labels(recorded().trace), labels(done.trace, begun=True)
    assert of(part, "gradient") == {("backward", "first", WEIGHT): 1, ("backward", "second", WEIGHT): 1}
    assert part - whole == Counter()


class NoCounts(FakeGpu):
    """A backend like torch.xpu, which counts bytes but not allocations."""

    def memory_stats_as_nested_dict(self, _index: int | None = None) -> dict[str, Any]:
        return {"allocated_bytes": {"all": {"current": 1, "peak": 1}}}


def test_without_counts_what_is_there_at_the_end_is_still_known():
    gpu, model = NoCounts(), Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with memviz.recording(model=model, optimizer=optimizer, accelerator=gpu.accelerator) as done:
        train(gpu, model, optimizer)
    found = labels(done.trace)
    assert of(found, "optimizer state") == {("unknown", "first", WEIGHT): 1, ("unknown", "second", WEIGHT): 1}
    assert of(found, "gradient") == {}


def test_an_error_goes_on_and_the_recording_is_written(tmp_path):
    gpu = FakeGpu()
    with (
        pytest.raises(KeyError, match="mine") as caught,
        memviz.recording(tmp_path / "run.pickle", accelerator=gpu.accelerator),
    ):
        gpu.malloc(1000)
        raise KeyError("mine")
    assert caught.value.__notes__ == [f"memviz wrote the recording until now to {tmp_path / 'run.pickle'}."]
    assert len(load_trace(tmp_path / "run.pickle").devices[0].events) == 2
    assert not is_recording()


@pytest.mark.usefixtures("no_search_for_holders")
def test_out_of_memory_keeps_what_was_live_then(tmp_path):
    gpu = FakeGpu(limit=10_000)
    with (
        pytest.raises(OutOfMemoryError),
        memviz.recording(tmp_path / "run.pickle", accelerator=gpu.accelerator),
    ):
        held = gpu.malloc(8000)
        try:
            gpu.malloc(4000)
        finally:
            gpu.free(held)
    blocks = load_trace(tmp_path / "run.pickle").devices[0].blocks
    assert blocks.requested.sum() == 8000


def test_a_file_that_is_there_stays_unless_told_otherwise(tmp_path):
    path = tmp_path / "run.pickle"
    path.write_bytes(b"precious")
    gpu = FakeGpu()
    with pytest.raises(UsageError, match="not a writable folder"), memviz.recording(tmp_path / "no" / "run.pickle"):
        raise AssertionError("the program must not start")
    with pytest.raises(UsageError, match="already exists"), memviz.recording(path, accelerator=gpu.accelerator):
        raise AssertionError("the program must not start")
    assert path.read_bytes() == b"precious"
    with memviz.recording(path, overwrite=True, accelerator=gpu.accelerator):
        gpu.malloc(1000)
    assert len(load_trace(path).devices[0].events) == 2


def test_a_full_disk_leaves_no_half_a_file_and_the_recording_off(tmp_path, monkeypatch):
    def full(*_arguments: Any, **_named: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    gpu = FakeGpu()
    with pytest.raises(UsageError, match="No space left"):  # noqa: SIM117
        with memviz.recording(tmp_path / "run.pickle", accelerator=gpu.accelerator) as done:
            gpu.malloc(1000)
            monkeypatch.setattr(pickle, "dump", full)
    assert list(tmp_path.iterdir()) == []
    assert (is_recording(), gpu.is_recording) == (False, False)
    assert len(done.trace.devices[0].events) == 2


def test_nothing_allocated_is_said():
    gpu = FakeGpu()
    with pytest.raises(UsageError, match="Nothing was allocated"), memviz.recording(accelerator=gpu.accelerator):
        pass


def test_a_recording_that_is_off_needs_and_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Not even a word with torch: a program that records on some machines runs on others as if this were not there.
    monkeypatch.setattr("memviz.runner.record.recording.find_accelerator", None)
    path, model = tmp_path / "run.pickle", Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with memviz.recording(path, model=model, optimizer=optimizer, enabled=False) as recorded:
        assert not is_recording()
        with recorded.phase("validation"):
            recorded.label(model)
            model(torch.ones(1, WIDTH)).sum().backward()
        assert not model._forward_pre_hooks and not optimizer._optimizer_step_pre_hooks
    assert recorded.trace is None and not path.exists()
    with pytest.raises(UsageError, match="this recording is off"):
        recorded.take()


def test_the_resident_size_of_the_process_is_recorded_over_its_events(tmp_path: Path) -> None:
    path, gpu = tmp_path / "run.pickle", FakeGpu()
    gpu.host_memory_stats_as_nested_dict = lambda: {"allocated_bytes": {"current": 3 * MiB}}  # type: ignore[attr-defined]
    kept = []
    with memviz.recording(path, accelerator=gpu.accelerator):
        for number in range(3):
            gpu.malloc(MiB)
            # Larger than what the C library may take from memory that was freed.
            kept.append(torch.ones(64 * MiB, dtype=torch.uint8))
            memviz.mark(f"moment {number}")
    trace = load_trace(path)
    host = trace.devices[0].host
    assert host is not None and set(host.pinned.tolist()) == {3 * MiB}
    # Each tensor is there before the next event.
    allocs = np.flatnonzero(trace.devices[0].events.action == Action.ALLOC) + 1
    after = [int(host.total[np.searchsorted(host.event, event, side="right") - 1]) for event in allocs]
    assert all(later - earlier >= 48 * MiB for earlier, later in pairwise(after))
    assert timeline_value(trace, trace.devices[0], "key")["host"]["of"] == "resident"


def test_what_child_processes_have_for_themselves_is_recorded() -> None:
    """Such as data loader workers; 32 MiB are written in the child."""
    gpu, program = FakeGpu(), "data = bytes(range(256)) * (1 << 17); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        with memviz.recording(accelerator=gpu.accelerator) as done:
            gpu.malloc(MiB)
        child.communicate(b"\n")
    assert done.trace is not None
    children = ChildMemory.of(done.trace.about.facts)
    assert children.count >= 1 and (children.own_bytes or 0) >= 32 * MiB


def test_samples_of_a_long_recording_are_thinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_history, "_MOST_SAMPLES", 16)
    gpu = FakeGpu()
    with memviz.recording(accelerator=gpu.accelerator) as done:
        for number in range(100):
            gpu.malloc(MiB)
            memviz.mark(f"moment {number}")
    assert done.trace is not None and done.trace.devices[0].host is not None
    assert 8 <= len(done.trace.devices[0].host) <= 16
    assert "memviz host memory" not in [thread.name for thread in threading.enumerate()]


def test_groups_of_nccl_are_a_fact_of_the_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed import distributed_c10d

    groups = {_Group(8): ("cpu:gloo,cuda:nccl", None), _Group(2): ("gloo", None)}
    monkeypatch.setattr(distributed_c10d._World, "pg_map", groups)
    gpu = FakeGpu()
    with memviz.recording(accelerator=gpu.accelerator) as done:
        gpu.malloc(MiB)
    assert done.trace is not None and done.trace.about.facts[NCCL_FACT] == "1 of 8 ranks"


class _Group:
    def __init__(self, ranks: int) -> None:
        self.size = lambda: ranks
