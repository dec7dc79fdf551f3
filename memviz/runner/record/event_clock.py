"""When something happened, in the allocator's own time: how many allocations and frees there had been.

Torch counts both from the start of the process, whatever is recorded. Every allocation that is counted is one alloc
event and every free one free_requested, so two numbers noted on the way say exactly between which two events of the
history that was: without a clock, whichever thread allocated, and also when the ring buffer has lost its beginning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from memviz.trace.model import Action, Bools, Events, Ints8


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


def places(events: Events, end: Counts, moments: Sequence[Counts]) -> Ints8:
    """For each noted moment, how many events came before it; 0 where the buffer no longer has them."""
    allocs = np.array([each.allocs for each in moments], dtype=np.int64)
    frees = np.array([each.frees for each in moments], dtype=np.int64)
    after_alloc = _place(events.action == Action.ALLOC, end.allocs - allocs)
    after_free = _place(events.action == Action.FREE_REQUESTED, end.frees - frees)
    return np.maximum(after_alloc, after_free)


def _place(hit: Bools, still_to_come: Ints8) -> Ints8:
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
