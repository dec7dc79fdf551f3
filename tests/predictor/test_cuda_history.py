"""Snapshots that a program dumps itself: events, stacks and peaks."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from memviz.predictor.cuda.memory import HistoryWindow
from memviz.predictor.device import PredictedDevice
from memviz.trace.load import load_trace
from memviz.trace.model import NO_STACK, Action, Category, State, Trace
from tests.predictor.rows import A100, names
from tests.replays import replay

MiB = 1 << 20


def record(*args: Any, **kwargs: Any) -> None:
    torch.cuda.memory._record_memory_history(*args, **kwargs)


def dumped(folder: Path, name: str = "memory.pickle") -> Trace:
    torch.cuda.memory._dump_snapshot(str(folder / name))
    return load_trace(folder / name)


def has_stacks(trace: Trace, *actions: Action) -> set[bool]:
    events = trace.devices[0].events
    return set((events.stack[np.isin(events.action, actions)] != NO_STACK).tolist())


def test_a_window_begins_where_the_history_is_switched_on(tmp_path: Path) -> None:
    with PredictedDevice(A100) as device:
        before = torch.zeros(1000, device="cuda")
        gone = torch.zeros(5 * MiB, device="cuda")
        del gone
        record()
        held = torch.zeros(2000, device="cuda")
        large = torch.zeros(3 * MiB, device="cuda")
        del large
        trace = dumped(tmp_path)
    found = trace.devices[0]
    # The held tensor, and the large one that comes out of the cached 20 MiB and goes again.
    rows = list(zip(found.events.action.tolist(), found.events.size.tolist(), strict=True))
    assert rows == [(0, 8000), (0, 12 * MiB), (1, 12 * MiB), (2, 12 * MiB)]
    assert device.windows == (
        HistoryWindow(
            str(tmp_path / "memory.pickle"), 4, 12 * MiB + 12_000, 12 * MiB + 4096 + 8192, 2 * MiB + 20 * MiB
        ),
    )
    live = found.blocks.state == State.ACTIVE_ALLOCATED
    assert found.blocks.requested[live].tolist() == [4000, 8000]
    # The block from before has no frames.
    assert (found.blocks.stack[live] != NO_STACK).tolist() == [False, True]
    assert trace.about.origin == "predicted" and trace.about.on == A100.name
    assert replay(trace).exact
    del before, held


def test_each_dump_is_a_file_and_a_window_of_its_own(tmp_path: Path) -> None:
    model = nn.Linear(512, 512)
    with PredictedDevice(A100) as device:
        record(max_entries=100_000)
        model.cuda()
        optimizer = torch.optim.Adam(model.parameters())
        traces = []
        for step in range(2):
            model(torch.zeros(8, 512, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            traces.append(dumped(tmp_path, f"step{step}.pickle"))
        whole = device.finish().devices[0].events
    first, second = (trace.devices[0].events for trace in traces)
    # The second goes on where the first ended; in between torch notes the first dump.
    assert len(second) == len(whole) - 1 == device.windows[1].events
    assert second.action.tolist()[: len(first)] == first.action.tolist()
    assert second.action[len(first)] == Action.SNAPSHOT
    assert device.windows[1].peak_reserved_bytes == device.peak_reserved_bytes
    assert device.windows[1].peak_requested_bytes == device.peak_requested_bytes
    assert device.windows[1].peak_allocated_bytes == device.peak_allocated_bytes
    assert [window.file for window in device.windows] == [str(tmp_path / f"step{step}.pickle") for step in range(2)]
    labels = traces[1].devices[0].event_labels
    assert labels is not None and {Category.PARAMETER, Category.OPTIMIZER_STATE} <= set(labels.category.tolist())
    assert all(replay(trace).exact for trace in traces)


def test_the_ring_forgets_what_is_oldest(tmp_path: Path) -> None:
    with PredictedDevice(A100) as device:
        record(max_entries=3)
        torch.zeros(10 * MiB, device="cuda")
        for _ in range(2):
            torch.zeros(1000, device="cuda")
        events = dumped(tmp_path).devices[0].events
    assert list(zip(events.action.tolist(), events.size.tolist(), strict=True)) == [(0, 4000), (1, 4000), (2, 4000)]
    # The 40 MiB of the first tensor are in no event of the file, but still reserved.
    assert device.windows[0] == HistoryWindow(str(tmp_path / "memory.pickle"), 3, 4000, 4096, 42 * MiB)


def test_switched_off_it_is_empty_and_frees_no_frames(tmp_path: Path) -> None:
    with PredictedDevice(A100) as device:
        record()
        held = torch.zeros(1000, device="cuda")
        record(enabled=None)
        later = torch.zeros(1000, device="cuda")
        trace = dumped(tmp_path)
    live = trace.devices[0].blocks.state == State.ACTIVE_ALLOCATED
    assert len(trace.devices[0].events) == 0 and device.windows[0].events == 0
    assert (trace.devices[0].blocks.stack[live] != NO_STACK).tolist() == [True, False]
    assert device.windows[0].peak_requested_bytes == 8000
    del held, later


ALLOC, FREE = Action.ALLOC, Action.FREE_REQUESTED


@pytest.mark.parametrize(
    ("args", "kwargs", "of_allocs", "of_frees"),
    [
        ((), {}, {True}, {True}),
        ((), {"context": "alloc"}, {True}, {False}),
        ((), {"context": "state"}, {False}, {False}),
        ((), {"context": None}, {False}, {False}),
        (("all",), {"context": "all", "stacks": "python", "max_entries": 50}, {True}, {True}),
        ((True,), {"trace_alloc_max_entries": 50, "trace_alloc_record_context": True}, {True}, {False}),
        ((True,), {"trace_alloc_max_entries": 50}, {False}, {False}),
    ],
)
def test_stacks_are_kept_of_what_was_asked(
    args: Any, kwargs: Any, of_allocs: set[bool], of_frees: set[bool], tmp_path: Path
) -> None:
    with PredictedDevice(A100):
        record(*args, **kwargs)
        held = torch.zeros(1000, device="cuda")
        torch.zeros(1000, device="cuda")
        trace = dumped(tmp_path)
        del held
    assert (has_stacks(trace, ALLOC), has_stacks(trace, FREE)) == (of_allocs, of_frees)
    live = trace.devices[0].blocks.state == State.ACTIVE_ALLOCATED
    assert (trace.devices[0].blocks.stack[live] != NO_STACK).tolist() == [kwargs.get("context", "") is not None]


def test_of_live_memory_alone_one_event_is_kept(tmp_path: Path) -> None:
    with PredictedDevice(A100):
        record("state")
        held = torch.zeros(1000, device="cuda")
        assert len(dumped(tmp_path).devices[0].events) == 1
        with pytest.raises(RuntimeError, match="expected state"):
            record("everything")
        del held


def test_stacks_of_python_have_no_frames_of_c(tmp_path: Path) -> None:
    with PredictedDevice(A100):
        record(stacks="all")
        torch.zeros(1000, device="cuda")
        native = dumped(tmp_path)
        record(stacks="python", clear_history=True)
        torch.zeros(1000, device="cuda")
        python = dumped(tmp_path)
    ours = "test_stacks_of_python_have_no_frames_of_c"
    shown = [[list(names(trace, int(stack))) for stack in trace.devices[0].events.stack] for trace in (native, python)]
    assert shown[0][0][0].startswith("at::_ops::zeros") and all(ours in stack for stack in (*shown[0], *shown[1]))
    assert len(shown[1]) == 3 and not any("::" in name for stack in shown[1] for name in stack)


def test_a_snapshot_in_memory_is_what_torch_returns(tmp_path: Path) -> None:
    with PredictedDevice(A100) as device:
        record()
        held = torch.zeros(1000, device="cuda")
        with (tmp_path / "own.pickle").open("wb") as file:
            pickle.dump(torch.cuda.memory._snapshot(), file)
        segment = torch.cuda.memory_snapshot()[0]
        assert (segment["total_size"], segment["allocated_size"], segment["segment_type"]) == (2 * MiB, 4096, "small")
        assert [block["size"] for block in segment["blocks"]] == [4096, 2 * MiB - 4096]
        assert device.windows == ()
        del held
    assert load_trace(tmp_path / "own.pickle").devices[0].events.size.tolist() == [2 * MiB, 4000]


def test_actions_may_be_left_out(tmp_path: Path) -> None:
    if "skip_actions" not in str(torch.cuda.memory._record_memory_history.__signature__):  # type: ignore[attr-defined]
        pytest.skip("a newer torch has it")
    with PredictedDevice(A100):
        record(skip_actions=["free_requested", "segment_alloc"])
        torch.zeros(1000, device="cuda")
        assert dumped(tmp_path).devices[0].events.action.tolist() == [Action.ALLOC, Action.FREE_COMPLETED]
