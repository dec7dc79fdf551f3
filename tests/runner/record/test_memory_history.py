"""The memory history is on while needed, and off and empty afterwards, on every torch release."""

import inspect
from typing import Any

import pytest
import torch

from memviz.errors import UsageError
from memviz.runner.record.memory_history import FEWEST_EVENTS, MOST_EVENTS, RecordedHistory, is_recording, ring_size
from tests.runner.fake_gpu import FakeGpu, OutOfMemoryError, started

RELEASES = ["2.0", "2.1", "2.13", "xpu"]


def actions(snapshot: dict[str, Any]) -> list[str]:
    return [each["action"] for each in snapshot["device_traces"][0]]


@pytest.mark.parametrize("release", RELEASES)
def test_records_from_start_to_stop_and_leaves_nothing_behind(release):
    gpu = FakeGpu(release=release)
    gpu.malloc(1000)
    history = started(gpu)
    gpu.malloc(2000)
    taken = history.take()
    history.stop()
    gpu.malloc(3000)
    assert actions(taken.snapshot) == ["alloc"]
    assert taken.snapshot["device_traces"][0][0]["size"] == 2000
    assert (gpu.is_recording, gpu.history, is_recording()) == (False, [], False)


@pytest.mark.parametrize("release", RELEASES)
def test_what_an_earlier_recording_left_is_not_in_this_one(release):
    gpu = FakeGpu(release=release)
    gpu.switch(True)
    gpu.malloc(1000)
    history = started(gpu)
    assert actions(history.take().snapshot) == []
    history.stop()


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(("stacks", "has_frames"), [("python", True), ("all", True), ("none", False)])
def test_stacks_as_asked_for(release, stacks, has_frames):
    gpu = FakeGpu(release=release)
    history = started(gpu, stacks=stacks)
    gpu.malloc(1000)
    [*_, event] = history.take().snapshot["device_traces"][0]
    history.stop()
    assert ("frames" in event) is has_frames


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


def test_a_second_recording_is_refused_and_the_first_goes_on():
    gpu = FakeGpu()
    history = started(gpu)
    with pytest.raises(UsageError, match="already on"):
        RecordedHistory(gpu.accelerator).start()
    gpu.malloc(1000)
    assert "alloc" in actions(history.take().snapshot)
    history.stop()


def test_it_is_off_where_switching_it_on_failed():
    gpu = FakeGpu()
    accelerator = gpu.accelerator
    broken = type(accelerator)("cpu", gpu, lambda _observer: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        RecordedHistory(broken).start()
    assert (gpu.is_recording, is_recording()) == (False, False)


def test_a_device_that_has_failed_does_not_keep_it_from_ending():
    gpu = FakeGpu()
    history = started(gpu)

    def failed(**_: Any) -> None:
        raise RuntimeError("CUDA error: device-side assert triggered")

    gpu._record_memory_history = failed
    history.stop()
    assert not is_recording()


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


def test_no_room_at_all_is_refused():
    with pytest.raises(UsageError, match="at least one event"):
        RecordedHistory(FakeGpu().accelerator, max_entries=0)


@pytest.mark.parametrize(
    ("available", "events"),
    [(0, FEWEST_EVENTS), (8 * 2048 * 1_000_000, 2_000_000), (1 << 50, MOST_EVENTS)],
)
def test_the_ring_takes_a_quarter_of_free_memory_within_bounds(available, events):
    assert ring_size(available) == events


def test_the_ring_fits_this_machine():
    assert FEWEST_EVENTS <= ring_size() <= MOST_EVENTS


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
