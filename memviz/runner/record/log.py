"""What a run says of itself while it goes: which phase it is in, which module, and what this tensor is.

Every entry carries the allocator's counts (`counts`), so that it can be put between the events of the history
afterwards. Nothing is computed here: this runs inside the program that is being measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from memviz.runner.record.event_clock import Counts
from memviz.trace.model import Category, Phase, Stage

PHASES = {"forward": Phase.FORWARD, "backward": Phase.BACKWARD, "optimizer step": Phase.STEP}
"""By the name of an annotation. Any other name stands around phases and is none."""


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
