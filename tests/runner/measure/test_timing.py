"""Seconds: which steps count, by which clock, and when they are refused."""

from __future__ import annotations

from typing import Any

import pytest

from memviz.errors import UsageError
from memviz.runner.measure.cuda_device import (
    FEWEST_STEPS,
    FILLED_SECONDS,
    MOST_STEPS,
    EventStopwatch,
    Timing,
    time_steps,
)
from memviz.runner.record.memory_history import RecordedHistory
from tests.runner.fake_gpu import FakeGpu


class Steps:
    """Steps of these lengths, the last one repeated, on a simulated clock."""

    def __init__(self, *lengths: float) -> None:
        self.lengths = list(lengths)
        self.now = 0.0
        self.count = 0

    def __call__(self) -> None:
        self.count += 1
        self.now += self.lengths.pop(0) if len(self.lengths) > 1 else self.lengths[0]

    def measured(self, **more: Any) -> Timing:
        return time_steps(self, EventStopwatch(FakeEvents(self)), clock=lambda: self.now, **more)


class FakeEvents:
    """`torch.cuda` with a GPU that is behind: an event's moment is known only after waiting for it."""

    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        self.is_done = False

    def synchronize(self) -> None:
        self.is_done = True

    def Event(self, *, enable_timing: bool) -> FakeEvent:
        assert enable_timing
        return FakeEvent(self)


class FakeEvent:
    def __init__(self, gpu: FakeEvents) -> None:
        self.gpu = gpu
        self.at = -1.0

    def record(self) -> None:
        self.at = self.gpu.steps.now

    def elapsed_time(self, other: FakeEvent) -> float:
        assert self.gpu.is_done
        return (other.at - self.at) * 1000


def test_the_first_backward_does_not_count():
    found = Steps(30, 1, 2, 3, 4).measured()
    assert found == Timing((2, 3, 4), "GPU events")
    assert (found.median, found.spread, found.count) == (3, 1, 3)


def test_one_step_has_no_spread():
    assert Timing((2.0,), "GPU events").spread == 0


def test_seconds_without_a_warm_up_are_refused():
    with pytest.raises(UsageError, match="warm-up"):
        Steps(1).measured(warmup=0)


def test_seconds_are_not_taken_while_recording():
    history = RecordedHistory(FakeGpu().accelerator)
    history.start()
    with pytest.raises(UsageError, match="recording off"):
        Steps(1).measured()
    history.stop()


@pytest.mark.parametrize(
    ("length", "count"), [(FILLED_SECONDS / 20, 20), (100.0, FEWEST_STEPS), (FILLED_SECONDS / 1e9, MOST_STEPS)]
)
def test_short_steps_are_repeated_until_some_seconds_are_full_and_long_ones_three_times(length, count):
    steps = Steps(length)
    assert steps.measured().count == count
    assert steps.count == count + 2


def test_what_time_is_left_is_not_exceeded():
    steps = Steps(0.25)
    assert steps.measured(left_seconds=2.0).count == 6
    assert steps.now <= 2.0


def test_where_the_time_is_too_short_for_a_median_it_says_so_in_words():
    steps = Steps(10.0)
    with pytest.raises(UsageError, match=r"takes 10\.0 s, and 20 s of the time limit are left: not enough for 3"):
        steps.measured(left_seconds=40.0)
    assert steps.now == 20.0


def test_a_first_step_that_is_waited_for_does_not_count():
    steps = Steps(30, 7, 1.5)
    assert set(steps.measured().seconds) == {1.5}


def test_a_program_that_switches_the_recording_on_has_no_seconds():
    with pytest.raises(UsageError, match="turned on recording itself"):
        Steps(1.0).measured(is_recording=iter([False, True]).__next__)


def test_the_spread_is_that_between_the_quartiles():
    timing = Timing((1.0, 2.0, 3.0, 4.0, 9.0), "GPU events")
    assert (timing.quartiles, timing.spread) == ((2.0, 4.0), 2.0)
