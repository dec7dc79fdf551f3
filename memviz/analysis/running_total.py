"""Live bytes while a file is still being read: from its events alone, so their beginning is not known yet.

What was live before the first event shows only at the end of a file. Until then the total is counted from where
it would have been lowest.
"""

from __future__ import annotations

import numpy as np

from memviz.trace.model import Action, Events, Ints8

_BLOCK = 256


class RunningTotal:
    """Of the device with most events so far."""

    def __init__(self) -> None:
        self._of: dict[int, _Device] = {}

    def watch(self, events: Events, device: int) -> None:
        self._of.setdefault(device, _Device()).add(events)

    @property
    def events(self) -> int:
        return max((total.events for total in self._of.values()), default=0)

    def largest(self, columns: int) -> Ints8:
        """The most bytes in each of so many equal stretches, or in fewer where there are few events."""
        if not self._of:
            return np.zeros(0, dtype=np.int64)
        return max(self._of.values(), key=lambda total: total.events).largest(columns)


class _Device:
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
