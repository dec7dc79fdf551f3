"""Memory functions of `torch.cuda`, under all their names."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from memviz.allocator.settings import parse_settings
from memviz.predictor.cuda.memory import HistoryWindow
from memviz.predictor.device import PredictedDevice
from memviz.predictor.estimate import estimate_of
from memviz.trace.load import load_trace
from memviz.trace.model import NO_STACK, Action, Category, State, Trace
from tests.predictor.rows import A100, WORKSPACE, names
from tests.replays import replay

MiB = 1 << 20


def test_every_name_says_the_same_bytes(device: PredictedDevice) -> None:
    held, gone = torch.zeros(1000, device="cuda"), torch.zeros(3 * MiB, device="cuda")
    del gone
    # 4,000 bytes in blocks of 512; 2 MiB segments for small ones, and steps of 2 MiB for requests over 10 MiB.
    now, most, reserved = 4096, 4096 + 12 * MiB, 2 * MiB + 12 * MiB
    assert torch.cuda.memory_allocated() == torch.cuda.memory.memory_allocated("cuda:0") == now
    assert torch.accelerator.memory_allocated() == torch.cuda.memory_allocated(0) == now
    assert torch.cuda.max_memory_allocated() == torch.accelerator.max_memory_allocated() == most
    assert torch.cuda.memory_reserved() == torch.accelerator.memory_reserved() == reserved
    assert torch.cuda.max_memory_reserved() == torch.accelerator.max_memory_reserved() == reserved
    flat, nested = torch.cuda.memory_stats(), torch.cuda.memory_stats_as_nested_dict()
    assert flat["requested_bytes.all.current"] == nested["requested_bytes"]["all"]["current"] == 4000
    assert flat["allocated_bytes.large_pool.freed"] == 12 * MiB and flat["num_ooms"] == 0
    assert flat == torch.accelerator.memory_stats() and list(flat) == sorted(flat)
    assert "oversize_allocations.allocated" in flat and flat["max_split_size"] == -1
    del held


def test_peaks_and_sums_are_reset_apart(device: PredictedDevice) -> None:
    held = torch.zeros(MiB, device="cuda")
    whole, short = torch.cuda.memory_summary(), torch.cuda.memory_summary(abbreviated=True)
    assert "Allocated memory" in whole and "4096 KiB" in whole and len(short) < len(whole)
    del held
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == 0
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == 1
    torch.cuda.reset_accumulated_memory_stats()
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == 0
    with pytest.warns(FutureWarning, match="reset_max_memory_allocated"):
        torch.cuda.reset_max_memory_allocated()
    with pytest.warns(FutureWarning, match="memory_cached"):
        assert torch.cuda.memory_cached() == 20 * MiB
    torch.accelerator.empty_cache()
    assert torch.cuda.memory_reserved() == 0
    assert device.highest_bytes().reserved == 20 * MiB


def test_what_is_free_is_what_a_process_gets_less_what_is_reserved(device: PredictedDevice) -> None:
    free, total = torch.cuda.mem_get_info()
    # On an A100 up to 1,792 MiB were observed outside PyTorch's allocator.
    assert (free, total) == (A100.memory_bytes - 1792 * MiB, A100.memory_bytes)
    held = torch.zeros(MiB, device="cuda")
    assert torch.cuda.mem_get_info("cuda:0")[0] == free - 20 * MiB
    assert torch.accelerator.get_memory_info() == torch.cuda.cudart().cudaMemGetInfo(0) == torch.cuda.mem_get_info()
    del held


def test_memory_taken_by_hand(device: PredictedDevice) -> None:
    one = torch.cuda.caching_allocator_alloc(1000)
    side = torch.cuda.Stream()
    other = torch.cuda.caching_allocator_alloc(1000, stream=side)
    assert device.allocated_bytes == 2048 and device.reserved_bytes == 4 * MiB and one != other
    torch.cuda.caching_allocator_delete(one)
    torch.cuda.caching_allocator_delete(other)
    assert device.allocated_bytes == 0
    with pytest.raises(RuntimeError, match="invalid device pointer"):
        torch.cuda.caching_allocator_delete(one)
    assert torch.cuda.get_allocator_backend() == "native"


def test_workspaces_go_when_the_program_says_so_and_come_again(device: PredictedDevice) -> None:
    model, x = nn.Linear(64, 64, device="cuda"), torch.zeros(2, 64, device="cuda")
    held = device.allocated_bytes
    for _ in range(2):
        model(x)
        assert device.allocated_bytes == held + WORKSPACE
        torch._C._cuda_clearCublasWorkspaces()  # type: ignore[attr-defined]
        assert device.allocated_bytes == held


def test_pools_of_ones_own(device: PredictedDevice) -> None:
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        held = torch.zeros(1000, device="cuda")
    other = torch.zeros(1000, device="cuda")
    assert device.reserved_bytes == 4 * MiB
    assert [segment["segment_pool_id"] for segment in pool.snapshot()] == [pool.id]
    del held, pool
    torch.cuda.empty_cache()
    assert device.reserved_bytes == 2 * MiB
    del other


# Snapshots that a program dumps itself: events, stacks and peaks.


def record(*args: Any, **kwargs: Any) -> None:
    torch.cuda.memory._record_memory_history(*args, **kwargs)


def dumped(folder: Path, name: str = "memory.pickle") -> Trace:
    torch.cuda.memory._dump_snapshot(str(folder / name))
    return load_trace(folder / name)


def has_stacks(trace: Trace, *actions: Action) -> set[bool]:
    events = trace.devices[0].events
    return set((events.stack[np.isin(events.action, actions)] != NO_STACK).tolist())


def live_blocks_have_stacks(trace: Trace) -> list[bool]:
    blocks = trace.devices[0].blocks
    return (blocks.stack[blocks.state == State.ACTIVE_ALLOCATED] != NO_STACK).tolist()


def test_a_window_begins_where_the_history_is_switched_on(tmp_path: Path, device: PredictedDevice) -> None:
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
    assert found.blocks.requested[found.blocks.state == State.ACTIVE_ALLOCATED].tolist() == [4000, 8000]
    # The block from before has no frames.
    assert live_blocks_have_stacks(trace) == [False, True]
    assert trace.about.origin == "predicted" and trace.about.on == A100.name
    assert replay(trace).exact
    del before, held


def test_each_dump_is_a_file_and_a_window_of_its_own(tmp_path: Path, device: PredictedDevice) -> None:
    model = nn.Linear(512, 512)
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


def test_the_ring_forgets_what_is_oldest(tmp_path: Path, device: PredictedDevice) -> None:
    record(max_entries=3)
    torch.zeros(10 * MiB, device="cuda")
    for _ in range(2):
        torch.zeros(1000, device="cuda")
    events = dumped(tmp_path).devices[0].events
    assert list(zip(events.action.tolist(), events.size.tolist(), strict=True)) == [(0, 4000), (1, 4000), (2, 4000)]
    # The 40 MiB of the first tensor are in no event of the file, but still reserved.
    assert device.windows[0] == HistoryWindow(str(tmp_path / "memory.pickle"), 3, 4000, 4096, 42 * MiB)


def test_switched_off_it_is_empty_and_frees_no_frames(tmp_path: Path, device: PredictedDevice) -> None:
    record()
    held = torch.zeros(1000, device="cuda")
    record(enabled=None)
    later = torch.zeros(1000, device="cuda")
    trace = dumped(tmp_path)
    assert len(trace.devices[0].events) == 0 and device.windows[0].events == 0
    assert live_blocks_have_stacks(trace) == [True, False]
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
    args: Any, kwargs: Any, of_allocs: set[bool], of_frees: set[bool], tmp_path: Path, device: PredictedDevice
) -> None:
    record(*args, **kwargs)
    held = torch.zeros(1000, device="cuda")
    torch.zeros(1000, device="cuda")
    trace = dumped(tmp_path)
    del held
    assert (has_stacks(trace, ALLOC), has_stacks(trace, FREE)) == (of_allocs, of_frees)
    assert live_blocks_have_stacks(trace) == [kwargs.get("context", "") is not None]


def test_of_live_memory_alone_one_event_is_kept(tmp_path: Path, device: PredictedDevice) -> None:
    record("state")
    held = torch.zeros(1000, device="cuda")
    assert len(dumped(tmp_path).devices[0].events) == 1
    with pytest.raises(RuntimeError, match="expected state"):
        record("everything")
    del held


def test_stacks_of_python_have_no_frames_of_c(tmp_path: Path, device: PredictedDevice) -> None:
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


def test_a_snapshot_in_memory_is_what_torch_returns(tmp_path: Path, device: PredictedDevice) -> None:
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


def test_actions_may_be_left_out(tmp_path: Path, device: PredictedDevice) -> None:
    if "skip_actions" not in str(torch.cuda.memory._record_memory_history.__signature__):  # type: ignore[attr-defined]
        pytest.skip("a newer torch has it")
    record(skip_actions=["free_requested", "segment_alloc"])
    torch.zeros(1000, device="cuda")
    assert dumped(tmp_path).devices[0].events.action.tolist() == [Action.ALLOC, Action.FREE_COMPLETED]


# Out of memory on the predicted GPU: torch's error, its observers, and the state after it.


GiB = 1 << 30
USABLE = A100.memory_bytes - 1792 * MiB


def gib(count: int) -> Tensor:
    return torch.empty(count * GiB, dtype=torch.uint8, device="cuda")


def test_the_error_is_torchs_with_its_figures() -> None:
    seen = []
    with PredictedDevice(A100, limited=True) as device:
        held = gib(30)
        torch._C._cuda_attach_out_of_memory_observer(lambda *figures: seen.append(figures))  # type: ignore[attr-defined]
        with pytest.raises(torch.cuda.OutOfMemoryError) as caught:
            gib(10)
        assert seen == [(0, 10 * GiB, A100.memory_bytes, USABLE - 30 * GiB)]
        text = str(caught.value)
        assert isinstance(caught.value, RuntimeError) and type(caught.value) is torch.OutOfMemoryError
        assert text.startswith(
            "CUDA out of memory. Tried to allocate 10.00 GiB. GPU 0 has a total capacity of 39.39 GiB"
        )
        assert "Of the allocated memory 30.00 GiB is allocated by PyTorch, and 0 bytes is reserved by PyTorch" in text
        assert f"of which {(USABLE - 30 * GiB) / GiB:.2f} GiB is free" in text
        (failure,) = device.out_of_memory
        assert (failure.requested_bytes, failure.allocated_bytes) == (10 * GiB, 30 * GiB)
        assert "test_cuda_memory.py, line" in failure.where and "gib" not in failure.where.partition("`")[0]
        events = device.finish().devices[0].events
        # The address column holds the free bytes that the driver reported.
        assert (events.action[failure.event], events.size[failure.event]) == (Action.OOM, 10 * GiB)
        assert events.address[failure.event] == USABLE - 30 * GiB
        assert torch.cuda.memory_stats()["num_ooms"] == 1 and device.peak_allocated_bytes == 30 * GiB
        del held


def test_beyond_the_card_a_program_goes_on_and_its_need_is_known() -> None:
    with PredictedDevice(A100, limited=True, goes_beyond_card=True) as device:
        held = [gib(30), gib(20), gib(15)]
        assert len(held) == 3 and device.allocated_bytes == 65 * GiB
        (failure,) = device.out_of_memory
        trace = device.finish()
        events = trace.devices[0].events
        assert (events.action[failure.event], events.size[failure.event]) == (Action.OOM, 20 * GiB)
        assert torch.cuda.mem_get_info()[0] == 0
        estimate = estimate_of(device, trace)
    assert estimate.needs == (65 * GiB, 65 * GiB - estimate.fit().usable_bytes)
    assert estimate.fit_word() == "no" and not estimate.fits()
    with PredictedDevice(A100, limited=True, goes_beyond_card=True) as device:
        torch.cuda.set_per_process_memory_fraction(0.5)
        gib(30)
        assert len(device.out_of_memory) == 1
        assert estimate_of(device, device.finish()).needs == (30 * GiB, 0)


def test_after_a_failure_there_is_what_the_program_holds() -> None:
    def step() -> Tensor:
        kept = gib(20)
        return torch.cat([kept, kept])

    with PredictedDevice(A100, limited=True) as device:
        held = torch.empty(4 * GiB, dtype=torch.float32, device="cuda")
        assert device.allocated_bytes == 16 * GiB
        left = None
        try:
            # The sum fits and is freed; only the expression refers to it.
            (held + 1) * 2
        except torch.OutOfMemoryError as error:
            left = device.allocated_bytes
            assert error.__context__ is None
        assert left == device.allocated_bytes == 16 * GiB
        try:
            # Two results, of which the first fits.
            torch.max(held.view(4, -1), 1), torch.sort(held)
        except torch.OutOfMemoryError:
            assert device.allocated_bytes == 16 * GiB
        del held
        assert device.allocated_bytes == 0
        try:
            step()
        except torch.OutOfMemoryError:
            # Python's traceback holds the function's variables, on a card as here.
            assert device.allocated_bytes == 20 * GiB
        assert device.allocated_bytes == 0
        x = torch.zeros(1000, device="cuda")
        with pytest.raises(torch.OutOfMemoryError):
            x.resize_(20 * GiB)
        assert device.allocated_bytes == 4096
        del x
        assert device.allocated_bytes == 0
        x = torch.zeros(4 * GiB, device="cuda", requires_grad=True)
        # exp keeps its result: 32 GiB with the input, and the gradient is as much again.
        loss = x.exp().sum()
        with pytest.raises(torch.OutOfMemoryError):
            loss.backward()
        assert x.grad is None
        del loss
        assert device.allocated_bytes == 16 * GiB
        assert device.finish().devices[0].events.action.tolist().count(Action.OOM) == 5


def test_a_share_of_the_card_is_a_limit_even_where_there_is_none(device: PredictedDevice) -> None:
    torch.cuda.set_per_process_memory_fraction(0.25)
    assert torch.cuda.memory.get_per_process_memory_fraction() == 0.25
    held = gib(9)
    with pytest.raises(torch.OutOfMemoryError, match=r"9\.85 GiB allowed"):
        gib(1)
    torch.cuda.set_per_process_memory_fraction(1.0)
    gib(100)
    assert device.allocated_bytes == 9 * GiB and len(device.out_of_memory) == 1
    del held


def test_cached_memory_is_given_back_before_there_is_none() -> None:
    with PredictedDevice(A100, limited=True, settings=parse_settings("expandable_segments:False")) as device:
        gib(20)
        assert device.reserved_bytes == 20 * GiB
        gib(30)
        assert device.reserved_bytes == device.peak_reserved_bytes == 30 * GiB
        assert device.out_of_memory == () and torch.cuda.memory_stats()["num_alloc_retries"] == 1
