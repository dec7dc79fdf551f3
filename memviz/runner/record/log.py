"""Log of a running program: phases, modules and tensors, each entry with the allocator's counts as its time.

Torch counts allocations and frees from the start of the process, also while no history is recorded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from memviz.trace.model import Action, Bools, Category, Events, Ints8, Phase, Stage


@dataclass(frozen=True)
class Counts:
    allocs: int
    frees: int


def counts_of(api: Any, device: int | None) -> Counts | None:
    """None where torch has no such figures: XPU counts bytes only."""
    figures = api.memory.memory_stats_as_nested_dict(device)
    if not figures:
        return Counts(0, 0)
    try:
        every = figures["allocation"]["all"]
        return Counts(int(every["allocated"]), int(every["freed"]))
    except (KeyError, TypeError):
        return None


def event_indices(events: Events, end: Counts, moments: Sequence[Counts]) -> Ints8:
    """For each noted moment, how many events came before it; 0 where the buffer no longer has them."""
    allocs = np.array([moment.allocs for moment in moments], dtype=np.int64)
    frees = np.array([moment.frees for moment in moments], dtype=np.int64)
    after_alloc = _event_index(events.action == Action.ALLOC, end.allocs - allocs)
    after_free = _event_index(events.action == Action.FREE_REQUESTED, end.frees - frees)
    return np.maximum(after_alloc, after_free)


def _event_index(hit: Bools, still_to_come: Ints8) -> Ints8:
    """Right behind the last of the hits that had happened by then."""
    behind = np.concatenate([np.zeros(1, np.int64), np.flatnonzero(hit) + 1])
    # A program that resets its figures lets moments lie after the end.
    return np.asarray(behind[np.clip(len(behind) - 1 - still_to_come, 0, len(behind) - 1)], dtype=np.int64)


def comparable(moments: Sequence[Counts], end: Counts) -> slice:
    """Those in the same count as the end: after the last time the program reset its figures, and not later."""
    first, last = 0, len(moments)
    for row in range(1, len(moments)):
        if moments[row].allocs < moments[row - 1].allocs or moments[row].frees < moments[row - 1].frees:
            first = row
    while last > first and (moments[last - 1].allocs > end.allocs or moments[last - 1].frees > end.frees):
        last -= 1
    return slice(first, last)


PHASES = {"forward": Phase.FORWARD, "backward": Phase.BACKWARD, "optimizer step": Phase.STEP}
"""Phases by annotation name. Any other annotation surrounds phases and is none."""


@dataclass(frozen=True)
class Mark:
    """From here on."""

    counts: Counts
    phase: Phase
    module: str
    span: int
    """Grows with every phase that begins or ends, so that two forwards in a row stay two."""
    again: int
    """The same for a module's forward within a backward, when a checkpoint computes again; 0 is none."""
    depth: int = 0
    """How many modules are entered and not left."""


@dataclass(frozen=True)
class TensorSeen:
    """A tensor that was there, by the address of its storage."""

    counts: Counts | None
    address: int
    category: Category
    module: str


@dataclass(frozen=True)
class AnnotationEnd:
    """One end of an annotation."""

    counts: Counts
    time_us: int
    name: str
    stage: Stage


@dataclass
class Log:
    counts: Callable[[], Counts | None]
    clock_us: Callable[[], int] = field(default=lambda: time.time_ns() // 1000)
    marks: list[Mark] = field(default_factory=list)
    tensors_seen: list[TensorSeen] = field(default_factory=list)
    annotations: list[AnnotationEnd] = field(default_factory=list)
    phase: Phase = Phase.UNKNOWN
    _modules: list[str] = field(default_factory=list)
    _span: int = 0
    _again: int = 0

    @contextmanager
    def during(self, name: str) -> Iterator[None]:
        before = self.phase
        self.begin(name, PHASES.get(name, before))
        try:
            yield
        finally:
            self.end(name, before)

    def begin(self, name: str, phase: Phase) -> None:
        self._annotate(name, Stage.START)
        self._turn_to(phase)

    def end(self, name: str, back_to: Phase = Phase.UNKNOWN) -> None:
        self._turn_to(back_to)
        self._annotate(name, Stage.END)

    def enter(self, module: str) -> None:
        if not self._modules and self.phase == Phase.BACKWARD:
            self._again += 1
        self._modules.append(module)
        self._mark()

    def leave(self) -> None:
        if self._modules:
            self._modules.pop()
            self._mark()

    def see(self, address: int, category: Category, module: str, counts: Counts | None) -> None:
        self.tensors_seen.append(TensorSeen(counts, address, category, module))

    def _turn_to(self, phase: Phase) -> None:
        if phase != self.phase:
            self.phase = phase
            self._span += 1
            self._mark()

    def _mark(self) -> None:
        counts = self.counts()
        if counts is not None:
            module = self._modules[-1] if self._modules else ""
            again = self._again if module and self.phase == Phase.BACKWARD else 0
            self.marks.append(Mark(counts, self.phase, module, self._span, again, len(self._modules)))

    def _annotate(self, name: str, stage: Stage) -> None:
        counts = self.counts()
        if counts is not None:
            self.annotations.append(AnnotationEnd(counts, self.clock_us(), name, stage))
