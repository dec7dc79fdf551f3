"""What comes of a replay: its figures, its trace, and how far it agrees with the recording."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from memviz.allocator.settings import Settings
from memviz.trace.model import Action, Ints8, Trace


@dataclass(frozen=True)
class Mismatch:
    """Where the recording and the model first part."""

    event: int
    """The number of events where only the final state differs."""
    expected: str
    got: str
    why: str


@dataclass(frozen=True)
class Agreement:
    address_mismatches: int
    first_mismatch: Mismatch | None


@dataclass(frozen=True)
class RanOut:
    """No memory left. `event` is -1 where what was live before the first event did not fit."""

    event: int
    requested_bytes: int
    asked_of_device_bytes: int
    """The segment that would have been needed; PyTorch's message calls it "Tried to allocate"."""
    allocated_bytes: int
    reserved_bytes: int


@dataclass(frozen=True)
class Figures:
    """What a replay comes to; a search needs no more of most of them."""

    settings: Settings
    memory: int | None
    """What the process could have, in bytes; None is without limit."""
    peak_requested_bytes: int
    """What the program held at most; no settings can make it less."""
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    reserved_end_bytes: int
    retries: int
    oom: RanOut | None

    @property
    def unused_at_peak_bytes(self) -> int:
        """How far the peak of what was reserved lies above the peak of what was allocated."""
        return self.peak_reserved_bytes - self.peak_allocated_bytes

    @property
    def fragmentation(self) -> float:
        """The share of the peak of what was reserved that lies above the peak of what was allocated."""
        return self.unused_at_peak_bytes / self.peak_reserved_bytes if self.peak_reserved_bytes else 0.0


@dataclass(frozen=True)
class Replayed(Figures):
    trace: Trace
    """One device; it ends where memory ran out."""
    sources: Ints8
    """For each event of the trace, the recorded event that caused it."""
    agreement: Agreement | None
    """With the recording, where this had its settings and its card; None where there is nothing to agree with."""
    waiting_at_start_bytes: int
    """Of what was live before the first event: freed already, and waiting for another stream. PyTorch counts it as
    requested still, and as allocated no more."""
    is_placed_anew: bool
    """What was live before the first event lies where these settings would have put it into empty memory."""

    @property
    def exact(self) -> bool:
        """Every address and every segment as recorded."""
        return self.agreement is not None and self.agreement.first_mismatch is None


def reserved_after_events(replayed: Replayed, recorded_events: int) -> Ints8:
    """Bytes reserved after each recorded event; row 0 is before the first. It ends where memory ran out."""
    events = replayed.trace.devices[0].events
    grows = (events.action == Action.SEGMENT_ALLOC) | (events.action == Action.SEGMENT_MAP)
    shrinks = (events.action == Action.SEGMENT_FREE) | (events.action == Action.SEGMENT_UNMAP)
    after = np.concatenate([[0], np.cumsum(np.where(grows, events.size, np.where(shrinks, -events.size, 0)))])
    last = recorded_events if replayed.oom is None or replayed.agreement else replayed.oom.event + 1
    caused = np.searchsorted(replayed.sources, np.arange(-1, last), side="right")
    return np.asarray(after[caused] + (replayed.reserved_end_bytes - after[-1]), dtype=np.int64)
