"""Live, waiting and reserved bytes after each event, and live bytes while a file is still being read.

`live` counts requested bytes from the alloc until the free is complete, so it includes `waiting`: blocks
whose free was asked for while another stream may still use them. `reserved` is what the allocator holds
from the device in segments.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from memviz.analysis.cache import cached
from memviz.analysis.lifetimes import BEFORE, lifetimes
from memviz.trace.model import Action, Columns, DeviceTrace, Events, Ints8, is_reserved_known, reserved_after


@dataclass(frozen=True, eq=False)
class Timeline(Columns):
    """Bytes after each event; row 0 is before the first event, so row e + 1 belongs to event e."""

    live: Ints8
    waiting: Ints8
    reserved: Ints8

    @property
    def start_bytes(self) -> int:
        return int(self.live[0])

    @property
    def end_bytes(self) -> int:
        return int(self.live[-1])

    @property
    def peak_bytes(self) -> int:
        return int(self.live.max())

    @property
    def peak_event(self) -> int:
        """First event after which live bytes are at their peak; -1 where that is before the first event."""
        return int(self.live.argmax()) - 1

    @property
    def reserved_peak_bytes(self) -> int:
        return int(self.reserved.max())


@cached
def timeline(device: DeviceTrace) -> Timeline:
    rows, count = lifetimes(device), len(device.events)
    live = sum_of_spans(rows.start, rows.end, rows.size, count)
    waiting = sum_of_spans(rows.free_requested, rows.end, rows.size, count)
    return Timeline(live=live, waiting=waiting, reserved=reserved_after(device))


def sum_of_spans(start: Ints8, end: Ints8, size: Ints8, count: int) -> Ints8:
    """Every event starts at most one span and ends at most one, so plain assignment is enough."""
    delta = np.zeros(count + 1, dtype=np.int64)
    begun = start > BEFORE
    delta[0] = size[~begun].sum()
    inside = begun & (start < count)
    delta[start[inside] + 1] = size[inside]
    ended = end < count
    delta[end[ended] + 1] -= size[ended]
    return np.cumsum(delta, out=delta)


def has_reserved(device: DeviceTrace) -> bool:
    """Return whether the recording shows reserved memory; a moment without live blocks could not tell."""
    line = timeline(device)
    return is_reserved_known(line.peak_bytes, line.reserved_peak_bytes)


_BLOCK = 256


class RunningTotal:
    """Running total of the device with most events so far."""

    def __init__(self) -> None:
        self._of: dict[int, _RunningDevice] = {}

    def watch(self, events: Events, device: int) -> None:
        self._of.setdefault(device, _RunningDevice()).add(events)

    @property
    def events(self) -> int:
        return max((total.events for total in self._of.values()), default=0)

    def largest(self, columns: int) -> Ints8:
        """The most bytes in each of so many equal stretches, or in fewer where there are few events."""
        if not self._of:
            return np.zeros(0, dtype=np.int64)
        return max(self._of.values(), key=lambda total: total.events).largest(columns)


class _RunningDevice:
    def __init__(self) -> None:
        self.events = 0
        self._bytes = 0
        self._least = 0
        self._blocks: list[Ints8] = []

    def add(self, events: Events) -> None:
        begun, ended = events.action == Action.ALLOC, events.action == Action.FREE_COMPLETED
        live = self._bytes + np.cumsum(np.where(begun, events.size, np.where(ended, -events.size, 0)))
        self._blocks.append(np.maximum.reduceat(live, np.arange(0, len(live), _BLOCK)))
        self._least = min(self._least, int(live.min()))
        self._bytes = int(live[-1])
        self.events += len(live)

    def largest(self, columns: int) -> Ints8:
        blocks = np.concatenate(self._blocks)
        starts = np.unique(np.linspace(0, len(blocks), columns, endpoint=False).astype(np.int64))
        return np.asarray(np.maximum.reduceat(blocks, starts) - self._least, dtype=np.int64)
