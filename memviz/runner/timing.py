"""Seconds of one step: on a GPU by its own events, elsewhere by the processor's clock, which says so.

The recording has to be off, because it takes a stack at every allocation. The first steps are not counted, and each
is a whole step with its backward: a first backward loads kernels, tunes and takes workspaces, and once made one
published table show training at a third of its speed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any, Protocol

from memviz.errors import UsageError
from memviz.runner.history import is_recording


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
        if len(self.seconds) < 2:
            return 0.0
        low, _, high = quantiles(self.seconds, n=4, method="inclusive")
        return high - low


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


def measure(step: Callable[[], object], stopwatch: Stopwatch, *, steps: int, warmup: int = 1) -> Timing:
    """`step` is all of a step, its backward and its optimizer included."""
    if warmup < 1:
        raise UsageError("Seconds without a warm-up are those of loading and tuning. Allow at least one step for it.")
    if steps < 1:
        raise UsageError("At least one step has to be measured.")
    if is_recording():
        raise UsageError("Seconds are measured with the recording off: it takes a stack at every allocation.")
    for _ in range(warmup):
        step()
    stopwatch.lap()
    for _ in range(steps):
        step()
        stopwatch.lap()
    return Timing(stopwatch.laps(), stopwatch.clock)
