"""Holders of tensors, noted in a real process: tensors of the CPU, recorded like a GPU's."""

import gc
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import memviz
from memviz.analysis.annotations import annotated
from memviz.analysis.findings.finding import FindingKind
from memviz.analysis.findings.ranking import findings
from memviz.analysis.health import health
from memviz.analysis.holders import held_by
from memviz.analysis.lifetimes import lifetimes
from memviz.integrations.steps import RecordedSteps
from memviz.predictor import holders
from memviz.trace.load import load_trace
from memviz.trace.model import HolderKind, Trace
from tests.runner.fake_gpu import FakeGpu, OutOfMemoryError
from tests.runner.torch_storages import watching_torch

WIDTH = 64
BATCH = 8 * WIDTH * 4


def by_holder(trace: Trace, event: int | None = None) -> dict[str, int]:
    opened = memviz.open(trace)
    live = opened.peak() if event is None else opened.live_at(event=event)
    return {group.label: group.bytes for group in live.by("holder").groups}


def chains(trace: Trace) -> set[tuple[HolderKind, str]]:
    device = trace.devices[0]
    found = (held_by(trace, device, row) for row in range(len(lifetimes(device))))
    return {(one.kind, one.chain) for one in found if one is not None}


def train(path: Path | None, steps: int = 5, **options: Any) -> Trace:
    """Record a loop that collects losses with their graphs."""
    gpu = FakeGpu()
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    with (
        memviz.recording(path, model=model, optimizer=optimizer, accelerator=gpu.accelerator, **options) as done,
        watching_torch(gpu),
    ):
        for step in range(steps):
            loss = model(torch.ones(8, WIDTH)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(model(torch.ones(8, WIDTH)).exp().sum())
            memviz.mark(f"after step {step}")
    assert done.trace is not None
    return done.trace


@pytest.mark.slow
def test_a_list_of_losses_is_found_in_a_real_process_and_stays_in_the_file(tmp_path):
    trace = train(tmp_path / "run.pickle", holders=True)
    last = len(trace.devices[0].events) - 1
    # Of each loss: the input, the hidden layer after its activation, and the result of exp.
    assert by_holder(trace, last)["losses (autograd graph)"] == 5 * 3 * BATCH
    read = load_trace(tmp_path / "run.pickle")
    assert by_holder(read, last) == by_holder(trace, last)
    assert chains(read) == chains(trace)
    assert (HolderKind.ATTRIBUTE, "model.0.weight.grad (local of train)") in chains(read)

    (finding,) = [one for one in findings(read, read.devices[0]) if one.holder]
    assert (finding.kind, finding.holder, finding.bytes) == (FindingKind.KEPT_BY_GRAPH, "losses", 4 * 3 * BATCH)
    assert "grows by 6.00 KiB" in finding.sentence and "alone_recorded_holders.py:" in finding.line


@pytest.mark.slow
def test_pytorchs_own_viewer_opens_the_file(tmp_path):
    train(tmp_path / "run.pickle", holders=True)
    from torch.cuda import _memory_viz

    with (tmp_path / "run.pickle").open("rb") as file:
        snapshot = pickle.load(file)
    assert snapshot["memviz"]["holders"]
    assert "<html>" in _memory_viz.trace_plot(snapshot).lower()


def test_a_mark_is_an_annotation_and_a_moment():
    trace = train(None, steps=3, holders=True)
    device = trace.devices[0]
    found = annotated(device)
    names = [trace.strings[name] for name in found.name]
    assert [name for name in names if name.startswith("after")] == [f"after step {step}" for step in range(3)]
    at = int(found.start_event[names.index("after step 1")])
    assert device.holders is not None and at in device.holders.event.tolist()


def test_nothing_is_looked_for_unless_it_was_asked_for(monkeypatch):
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(holders, "find_holders", refuse)
    assert train(None, steps=2).devices[0].holders is None
    memviz.mark("where nothing is recorded")


def test_memory_that_runs_out_is_explained_before_the_error_lets_go_of_it(tmp_path):
    gpu = FakeGpu(limit=1_000_000)

    def step() -> None:
        with watching_torch(gpu):
            batch = torch.ones(8, WIDTH)
            hidden = (batch.requires_grad_() * 2).exp()
        gpu.malloc(2_000_000)
        raise AssertionError(hidden)

    kept = [torch.ones(1)]
    with (
        pytest.raises(OutOfMemoryError),
        memviz.recording(tmp_path / "run.pickle", accelerator=gpu.accelerator),
    ):
        with watching_torch(gpu):
            kept.append(torch.zeros(WIDTH, WIDTH))
        step()
    trace = load_trace(tmp_path / "run.pickle")
    held = chains(trace)
    assert (HolderKind.VARIABLE, "batch (local of step)") in held
    assert (HolderKind.VARIABLE, "hidden (local of step)") in held
    assert any(kind is HolderKind.CONTAINER and chain.startswith("kept[1] (local of test_") for kind, chain in held)
    assert not [kind for kind, _ in held if kind is HolderKind.EXCEPTION]


def test_the_time_for_all_walks_of_a_recording_is_limited():
    gpu = FakeGpu()
    kept = []
    with memviz.recording(accelerator=gpu.accelerator, holders=True) as done:
        for number in range(3):
            with watching_torch(gpu):
                kept.append(torch.ones(WIDTH))
            memviz.mark(f"moment {number}")
            done.log.holder_seconds = 60.0 * (number < 1)
    assert {chain.partition(" ")[0] for _, chain in chains(done.trace)} == {"kept[0]", "kept[1]"}
    # The third moment, and the end.
    (note,) = [note for note in health(done.trace) if note.code == "holders_cut"]
    assert "at 2 moments" in note.text


def test_a_search_that_its_time_limit_ends_says_so(tmp_path, monkeypatch):
    gpu = FakeGpu()
    kept = []
    monkeypatch.setattr(holders, "MOST_SECONDS", 0.0)
    with memviz.recording(tmp_path / "run.pickle", accelerator=gpu.accelerator, holders=True), watching_torch(gpu):
        kept.append(torch.ones(WIDTH))
    assert "holders_cut" in [note.code for note in health(load_trace(tmp_path / "run.pickle"))]
    with memviz.predicting(holders=True) as predicted:
        kept.append(torch.ones(WIDTH, device="cuda"))
    assert "holders_cut" in [note.code for note in health(predicted.trace)]
    monkeypatch.undo()
    with memviz.predicting(holders=True) as predicted:
        kept.append(torch.ones(WIDTH, device="cuda"))
    assert "holders_cut" not in [note.code for note in health(predicted.trace)]


def test_a_cycle_that_waits_is_told_from_what_a_variable_holds():
    gpu = FakeGpu()
    gc.disable()
    try:
        with memviz.recording(accelerator=gpu.accelerator, holders=True) as done, watching_torch(gpu):
            cycle: list[Any] = [torch.ones(WIDTH)]
            cycle.append(cycle)
            del cycle
            memviz.mark("before the next batch")
            batch = torch.ones(2 * WIDTH)
        assert {kind for kind, _ in chains(done.trace)} == {HolderKind.UNCOLLECTED_CYCLE, HolderKind.VARIABLE}
        del batch
    finally:
        gc.enable()


def test_what_only_cpp_keeps_is_not_held_by_the_last_variable():
    """A capsule of DLPack has the storage, and no tensor of Python does."""
    gpu = FakeGpu()
    with memviz.recording(accelerator=gpu.accelerator, holders=True) as done, watching_torch(gpu):
        batch, kept = torch.ones(WIDTH), torch.ones(2 * WIDTH)
        memviz.mark("both are variables")
        capsule = torch.utils.dlpack.to_dlpack(batch)
        del batch
        memviz.mark("one is in C++ only")
    assert by_holder(done.trace) == {"PyTorch, in C++": 4 * WIDTH, "kept": 8 * WIDTH}
    del capsule, kept


@pytest.mark.slow
def test_trainers_note_holders_too(tmp_path):
    steps = RecordedSteps(tmp_path / "memory.pickle", first=1, last=2, holders=True)
    with memviz.predicting("L4"):
        model = nn.Linear(WIDTH, WIDTH, device="cuda")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        steps.prepare()
        for number in (1, 2):
            steps.step_begins(number, model, optimizer)
            model(torch.ones(8, WIDTH, device="cuda")).sum().backward()
            optimizer.step()
            steps.step_ends(number)
    assert "model.weight" in by_holder(load_trace(tmp_path / "memory.pickle"))
