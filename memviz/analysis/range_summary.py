"""What happened between two events: what came, what went, what stayed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from memviz.analysis.lifetimes import lifetimes
from memviz.analysis.live import check_event
from memviz.analysis.timeline import timeline
from memviz.trace.model import Bools, DeviceTrace, Ints8


@dataclass(frozen=True)
class Some:
    """Some allocations."""

    count: int
    bytes: int


@dataclass(frozen=True)
class Within:
    """Live before the first event, plus `allocated`, minus `freed`, is live after the last one."""

    first: int
    """-1 takes in what was there before the first event of the trace."""
    last: int
    peak_event: int
    """The first one after which live bytes are highest, among these."""
    allocated: Some
    freed: Some
    throughout: Some
    """Live before the first event, and still live after the last."""


def within(device: DeviceTrace, first: int, last: int) -> Within:
    """Both events belong to it."""
    check_event(device, first)
    check_event(device, last)
    rows, live = lifetimes(device), timeline(device).live
    first, last = min(first, last), max(first, last)
    begin = max(first, 0)
    known = int(np.searchsorted(rows.start, last, side="right"))
    start, end, size = rows.start[:known], rows.end[:known], rows.size[:known]
    return Within(
        first=first,
        last=last,
        peak_event=first + int(live[first + 1 : last + 2].argmax()),
        allocated=_some(size, start >= begin),
        freed=_some(size, (end >= begin) & (end <= last)),
        throughout=_some(size, (start < begin) & (end > last)),
    )


def _some(size: Ints8, chosen: Bools) -> Some:
    return Some(int(np.count_nonzero(chosen)), int(size[chosen].sum()))
