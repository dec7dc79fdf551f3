"""The memory history is on while needed, and off and empty afterwards, on every torch release; which ranks write it."""

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch

from memviz.errors import UsageError
from memviz.ranks.numbers import numbers_in
from memviz.runner.record.memory_history import FEWEST_EVENTS, MOST_EVENTS, RecordedHistory, is_recording, ring_size
from memviz.runner.record.recorded_script import RankPosition, is_chosen, rank_path, rank_position
from tests.runner.fake_gpu import FakeGpu, OutOfMemoryError, started

RELEASES = ["2.1", "2.13", "xpu"]


def actions(snapshot: dict[str, Any]) -> list[str]:
    return [each["action"] for each in snapshot["device_traces"][0]]


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(("stacks", "has_frames"), [("python", True), ("all", True), ("none", False)])
def test_records_from_start_to_stop_with_the_stacks_asked_for_and_leaves_nothing_behind(release, stacks, has_frames):
    gpu = FakeGpu(release=release)
    # What an earlier recording left.
    gpu.switch(True)
    gpu.malloc(1000)
    history = started(gpu, stacks=stacks)
    gpu.malloc(2000)
    taken = history.take()
    history.stop()
    gpu.malloc(3000)
    (event,) = taken.snapshot["device_traces"][0]
    assert (event["action"], event["size"], "frames" in event) == ("alloc", 2000, has_frames)
    assert (gpu.is_recording, gpu.history, is_recording()) == (False, [], False)


@pytest.mark.parametrize("kind", ["cuda", "xpu"])
def test_the_installed_torch_takes_what_is_asked_of_it(kind):
    gpu = FakeGpu()
    memory = getattr(torch, kind).memory
    if not hasattr(memory, "_record_memory_history"):
        pytest.skip(f"this torch records no {kind}")
    signature = inspect.signature(memory._record_memory_history)
    fake = gpu._record_memory_history

    def checked(**given: Any) -> None:
        signature.bind(**given)
        fake(**given)

    checked.__signature__ = signature  # type: ignore[attr-defined]
    gpu._record_memory_history = checked
    history = started(gpu, stacks="all", max_entries=2)
    for size in (1000, 2000, 3000):
        gpu.malloc(size)
    assert [each["size"] for each in history.take().snapshot["device_traces"][0]] == [2000, 3000]
    history.stop()
    assert gpu.history == []


def test_a_second_recording_is_refused_and_the_first_goes_on_until_it_ends_also_on_a_device_that_failed():
    gpu = FakeGpu()
    history = started(gpu)
    with pytest.raises(UsageError, match="already on"):
        RecordedHistory(gpu.accelerator).start()
    gpu.malloc(1000)
    assert "alloc" in actions(history.take().snapshot)

    def failed(**_: Any) -> None:
        raise RuntimeError("CUDA error: device-side assert triggered")

    gpu._record_memory_history = failed
    history.stop()
    assert not is_recording()


def test_it_is_off_where_switching_it_on_failed():
    gpu = FakeGpu()
    accelerator = gpu.accelerator
    broken = type(accelerator)("cpu", gpu, lambda _observer: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        RecordedHistory(broken).start()
    assert (gpu.is_recording, is_recording()) == (False, False)


def test_the_ring_keeps_the_last_events_and_says_that_it_was_full():
    gpu = FakeGpu()
    history = started(gpu, max_entries=3)
    gpu.malloc(1000)
    assert history.lost(history.take()) == 0
    for size in (2000, 3000, 4000):
        gpu.malloc(size)
    taken = history.take()
    history.stop()
    assert [each["size"] for each in taken.snapshot["device_traces"][0]] == [2000, 3000, 4000]
    assert history.lost(taken) == 3


def test_the_ring_takes_a_quarter_of_free_memory_within_bounds():
    assert [ring_size(size) for size in (0, 8 * 2048 * 1_000_000, 1 << 50)] == [FEWEST_EVENTS, 2_000_000, MOST_EVENTS]
    assert FEWEST_EVENTS <= ring_size() <= MOST_EVENTS
    with pytest.raises(UsageError, match="at least one event"):
        RecordedHistory(FakeGpu().accelerator, max_entries=0)


def test_a_program_that_goes_on_after_running_out_is_not_taken_back_to_it():
    gpu = FakeGpu(limit=10_000)
    history = started(gpu)
    with pytest.raises(OutOfMemoryError):
        gpu.malloc(40_000)
    gpu.malloc(4000)
    taken = history.take_last()
    history.stop()
    assert actions(taken.snapshot) == ["oom", "segment_alloc", "alloc"]


def test_a_recording_that_is_over_hears_no_more_of_running_out():
    gpu = FakeGpu(limit=10_000)
    accelerator = gpu.accelerator
    first, second = RecordedHistory(accelerator), RecordedHistory(accelerator)
    first.start()
    first.stop()
    second.start()
    with pytest.raises(OutOfMemoryError):
        gpu.malloc(40_000)
    second.stop()
    assert first.at_out_of_memory is None
    assert second.at_out_of_memory is not None
    assert len(gpu.observers) == 1


def test_counts_fit_the_snapshot_while_another_thread_allocates():
    gpu = FakeGpu()
    history = started(gpu)
    once = iter([1000])
    gpu.before_snapshot = lambda: [gpu.malloc(size) for size in once] and None
    taken = history.take()
    assert taken.counts is not None
    assert taken.counts.allocs == actions(taken.snapshot).count("alloc") == 1
    gpu.before_snapshot = lambda: gpu.malloc(1000) and None
    assert history.take().counts is None
    history.stop()


def of(rank: int, world: int = 8, mesh: str = "pp=2,dp=4") -> RankPosition:
    position = rank_position(mesh, {"RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": str(world)})
    assert position is not None
    return position


def test_a_process_by_itself_has_no_rank() -> None:
    assert rank_position("", {"WORLD_SIZE": "1"}) is None
    assert rank_position("pp=2", {}) is None


def test_the_last_axis_counts_fastest_as_in_torchs_own_meshes() -> None:
    torch = pytest.importorskip("torch")
    table = torch.arange(24).reshape(2, 3, 4)
    for rank in range(24):
        place = tuple(int(at) for at in (table == rank).nonzero()[0])
        assert tuple(of(rank, 24, "pp=2,dp=3,tp=4").mesh.items()) == tuple(zip(("pp", "dp", "tp"), place, strict=True))


def test_names_facts_and_words() -> None:
    position = of(5)
    assert rank_path(Path("out/run.pickle.gz"), position) == Path("out/run.rank5.pp1.dp1.pickle.gz")
    assert position.name == "Rank 5 of 8 (pp1, dp1)"
    assert position.facts == {"rank": "5", "world_size": "8", "mesh": "pp=1,dp=1"}
    assert rank_path(Path("run.pickle"), None) == Path("run.pickle")
    name = str(rank_path(Path("run2.pickle"), position))
    assert numbers_in([name]) == {name: 5}


@pytest.mark.parametrize(
    ("ranks", "chosen"),
    [
        ("all", list(range(8))),
        ("0", [0]),
        ("0,last", [0, 7]),
        ("first, 2-4 ,7", [0, 2, 3, 4, 7]),
        ("stage", [0, 4]),
        ("0,last,stage", [0, 4, 7]),
        ("99", []),
    ],
)
def test_ranks_are_chosen_by_number_span_and_word(ranks: str, chosen: list[int]) -> None:
    assert [rank for rank in range(8) if is_chosen(of(rank), ranks)] == chosen
    assert is_chosen(None, ranks)


@pytest.mark.parametrize("ranks", ["", "some", "0,-1", "0;1", "1-2-3"])
def test_what_names_no_ranks_is_refused_on_every_rank(ranks: str) -> None:
    for rank in range(8):
        with pytest.raises(UsageError, match="--ranks takes numbers"):
            is_chosen(of(rank), ranks)


def test_stages_need_a_mesh_the_last_a_world_and_a_mesh_the_world_size() -> None:
    with pytest.raises(UsageError, match="needs --mesh"):
        is_chosen(of(0, mesh="dp=8"), "stage")
    with pytest.raises(UsageError, match="WORLD_SIZE is not set"):
        is_chosen(rank_position("", {"RANK": "3"}), "last")
    with pytest.raises(UsageError, match="--mesh pp=2,dp=2 has 4 ranks, but there are 8"):
        of(0, mesh="pp=2,dp=2")
    for mesh in ("pp", "pp=0", "pp=2 dp=4", "pp=2,,dp=4", "2,4", "pp=2,pp=4"):
        with pytest.raises(UsageError, match="--mesh takes axes"):
            of(0, mesh=mesh)
