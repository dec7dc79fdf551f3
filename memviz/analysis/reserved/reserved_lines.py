"""One recording and its replays as lines over the same events: what was live, and what each reserved for it.

Live bytes are the same by construction, so there is one area and several lines. A replay counts after each recorded
event, and ends where it ran out of memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from memviz.analysis.decimate import DecimatedTimeline, by_event, by_time
from memviz.trace.model import DeviceTrace, Ints8

NOTHING = -1
"""In a column that lies behind the end of a line."""


@dataclass(frozen=True)
class Replay:
    name: str
    reserved: Ints8
    """After each recorded event; row 0 is before the first. Shorter than the recording where memory ran out."""
    stopped: bool = False

    @property
    def last_event(self) -> int:
        return len(self.reserved) - 2


@dataclass(frozen=True)
class Line:
    name: str
    reserved: Ints8
    """Per column the most of its events, or NOTHING."""
    stops_at: int | None
    """The event at which memory ran out; -1 is before the first."""
    last_column: int
    """The last one that it reaches."""


@dataclass(frozen=True)
class ReservedLines:
    columns: DecimatedTimeline
    """Live and reserved bytes as recorded."""
    lines: tuple[Line, ...]
    limit: int | None


def reserved_by_event(
    device: DeviceTrace, replays: Sequence[Replay], *, limit: int | None = None, columns: int = 1000
) -> ReservedLines:
    return _with_lines(by_event(device, columns), replays, limit)


def reserved_by_time(
    device: DeviceTrace, replays: Sequence[Replay], *, limit: int | None = None, columns: int = 1000
) -> ReservedLines:
    """For a device whose events have times."""
    return _with_lines(by_time(device, columns), replays, limit)


def _with_lines(columns: DecimatedTimeline, replays: Sequence[Replay], limit: int | None) -> ReservedLines:
    return ReservedLines(columns, tuple(_line(columns, each) for each in replays), limit)


def _line(columns: DecimatedTimeline, replay: Replay) -> Line:
    first = columns.first_event + 1
    after = first + np.maximum(columns.event_count, 1)
    count = len(replay.reserved)
    reserved = np.full(len(columns), NOTHING, dtype=np.int64)
    reached = np.flatnonzero(first < count)
    if len(reached):
        bounds = np.column_stack([first[reached], np.minimum(after[reached], count)])
        reserved[reached] = _most(replay.reserved, bounds)
    last = int(reached[-1]) if len(reached) else 0
    return Line(replay.name, reserved, replay.last_event if replay.stopped else None, last)


def _most(values: Ints8, bounds: Ints8) -> Ints8:
    """The largest of each span. A column without events of its own repeats the event before it."""
    # With a value below all others behind the last, a span may end there too.
    padded = np.append(values, np.int64(NOTHING))
    return np.asarray(np.maximum.reduceat(padded, bounds.reshape(-1))[::2], dtype=np.int64)
