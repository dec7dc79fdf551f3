"""How many bytes were live, waiting to be freed and reserved after each event.

`live` counts requested bytes from the alloc until the free is complete, so it includes `waiting`: blocks
whose free was asked for while another stream may still use them. `reserved` is what the allocator holds
from the device, counted back from the final segments.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from memviz.analysis.cache import remembered
from memviz.analysis.lifetimes import BEFORE, lifetimes
from memviz.trace.model import Columns, DeviceTrace, Ints8
from memviz.trace.reserved_bytes import reserved_after


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


@remembered
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
