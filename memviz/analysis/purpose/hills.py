"""The shape of what is live for a while: where it climbs to a top, and where it has come down again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from memviz.analysis.sums import sum_by
from memviz.trace.model import Bools, Ints8

_HIGH = 0.5
"""Of the highest top: what rises over it is a hill."""
_LOW = 0.2
"""What falls below it has ended."""


@dataclass(frozen=True, eq=False)
class Hills:
    tops: Ints8
    """Event at which each hill is highest."""
    bottoms: Ints8
    """Event at which it is lowest behind each top, before the next hill or the end."""
    count: int

    def is_down(self, events: Ints8) -> Bools:
        """Behind a top, and not yet at the bottom that follows it."""
        top = np.searchsorted(self.tops, events, side="left") - 1
        return np.asarray((top >= 0) & (events <= np.append(self.bottoms, -1)[top]))

    def top_after(self, events: Ints8) -> Ints8:
        return np.append(self.tops, self.count + 1)[np.searchsorted(self.tops, events, side="left")]

    def bottom_after(self, events: Ints8) -> Ints8:
        return np.append(self.bottoms, self.count + 1)[np.searchsorted(self.bottoms, events, side="left")]


def hills(start: Ints8, end: Ints8, size: Ints8, count: int) -> Hills:
    """Of rows that end within the trace."""
    if not len(start):
        none = np.zeros(0, dtype=np.int64)
        return Hills(none, none, count)
    change = sum_by(start, size, count + 1) - sum_by(end, size, count + 1)
    live = np.cumsum(change)[:count]
    high, low = live > _HIGH * live.max(), live < _LOW * live.max()
    marks = np.flatnonzero(high | low)
    turns = high[marks] != np.append(False, high[marks][:-1])
    climbs, falls = marks[turns & high[marks]], marks[turns & low[marks]]
    falls = np.append(falls, count)[: len(climbs)]
    following = np.append(climbs[1:], count)
    tops = np.array([a + int(np.argmax(live[a:b])) for a, b in zip(climbs, falls, strict=True)], dtype=np.int64)
    bottoms = np.array(
        [b + int(np.argmin(live[b:c])) if b < c else b for b, c in zip(falls, following, strict=True)], dtype=np.int64
    )
    return Hills(tops, bottoms, count)
