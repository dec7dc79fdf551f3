"""Seconds of one step: on a GPU by its own events, elsewhere by the processor's clock, which says so.

The recording has to be off, because it takes a stack at every allocation. The first steps are not counted, and each
is a whole step with its backward: a first backward loads kernels, tunes and takes workspaces, and once made one
published table show training at a third of its speed.

How many steps there are is decided by one that is waited for: as many as fill some seconds, so that a short step is
not judged by a hiccup, and no more than the time allows that is left.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any, Protocol

from memviz.errors import UsageError
from memviz.runner.record.history import is_recording

FILLED_SECONDS = 3.0
"""Of steps that count, where they are short."""
FEWEST_STEPS = 3
MOST_STEPS = 1000


@dataclass(frozen=True)
class Timing:
    seconds: tuple[float, ...]
    """Of each step that counts, in order."""
    clock: str

    @property
    def count(self) -> int:
        return len(self.seconds)

    @property
    def median(self) -> float:
        return median(self.seconds)

    @property
    def spread(self) -> float:
        """Between the quartiles; 0 for a single step."""
        low, high = self.quartiles
        return high - low

    @property
    def quartiles(self) -> tuple[float, float]:
        if len(self.seconds) < 2:
            return self.seconds[0], self.seconds[0]
        low, _, high = quantiles(self.seconds, n=4, method="inclusive")
        return low, high


class Stopwatch(Protocol):
    clock: str

    def lap(self) -> None: ...

    def laps(self) -> tuple[float, ...]:
        """Seconds between one `lap` and the next."""


class EventStopwatch:
    """Events in the GPU's own queue: nothing waits between two steps, as nothing would in training."""

    clock = "GPU events"

    def __init__(self, api: Any) -> None:
        self._api = api
        self._events: list[Any] = []

    def lap(self) -> None:
        event = self._api.Event(enable_timing=True)
        event.record()
        self._events.append(event)

    def laps(self) -> tuple[float, ...]:
        self._api.synchronize()
        pairs = zip(self._events, self._events[1:], strict=False)
        return tuple(float(before.elapsed_time(after)) / 1000 for before, after in pairs)


class ProcessorStopwatch:
    clock = "processor clock"

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._moments: list[float] = []

    def lap(self) -> None:
        self._moments.append(self._clock())

    def laps(self) -> tuple[float, ...]:
        return tuple(after - before for before, after in zip(self._moments, self._moments[1:], strict=False))


def measure(
    step: Callable[[], object],
    stopwatch: Stopwatch,
    *,
    steps: int | None = None,
    warmup: int = 1,
    left_seconds: float = math.inf,
    is_recording: Callable[[], bool] = is_recording,
    clock: Callable[[], float] = time.monotonic,
) -> Timing:
    """`step` is all of a step, its backward and its optimizer included.

    Raises:
        UsageError: A history is on, by whomever, or too little time is left for as many steps as a median needs.
    """
    if warmup < 1:
        raise UsageError("Seconds without a warm-up are those of loading and tuning. Allow at least one step for it.")
    if steps is not None and steps < 1:
        raise UsageError("At least one step has to be measured.")
    if is_recording():
        raise UsageError("Seconds are measured with the recording off: it takes a stack at every allocation.")
    until = clock() + left_seconds
    for _ in range(warmup):
        step()
    if steps is None:
        first = _lapped(step, stopwatch, 1)[0]
        steps = _how_many(first, until - clock())
    seconds = _lapped(step, stopwatch, steps)
    if is_recording():
        raise UsageError("The program switched the recording on by itself, so its seconds are not those of the steps.")
    return Timing(seconds, stopwatch.clock)


def _lapped(step: Callable[[], object], stopwatch: Stopwatch, count: int) -> tuple[float, ...]:
    """From a lap of its own on: what came before was waited for, and that is nobody's second."""
    stopwatch.lap()
    for _ in range(count):
        step()
        stopwatch.lap()
    return stopwatch.laps()[-count:]


def _how_many(one_seconds: float, left_seconds: float) -> int:
    if FEWEST_STEPS * one_seconds > left_seconds:
        raise UsageError(
            f"A step takes {one_seconds:,.1f} s, and {max(0.0, left_seconds):,.0f} s are left of the time that a run "
            f"may take: not enough for {FEWEST_STEPS} of them."
        )
    one = max(one_seconds, FILLED_SECONDS / MOST_STEPS)
    wanted = max(FEWEST_STEPS, math.ceil(FILLED_SECONDS / one))
    return wanted if math.isinf(left_seconds) else min(wanted, int(left_seconds / one))
