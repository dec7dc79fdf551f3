"""A timeline reduced to the columns of a plot, without losing its peak; and replays reduced to the same columns.

A replay counts after each recorded event, and ends where it ran out of memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from memviz.analysis.lifetimes import BEFORE, clock, has_times
from memviz.analysis.timeline import Timeline, timeline
from memviz.errors import UsageError
from memviz.trace.model import Columns, DeviceTrace, Ints8


@dataclass(frozen=True, eq=False)
class DecimatedTimeline(Columns):
    """One row per column of the picture, in order. Bytes after the events of that column."""

    first_event: Ints8
    """-1 is the state before the first event. A column in whose time nothing happens stands for the event before it."""
    event_count: Ints8
    """0 for such a column; the state before the first event counts as one."""
    peak_event: Ints8
    """The first event at which `live_max` is reached."""
    live_min: Ints8
    live_max: Ints8
    live_first: Ints8
    live_last: Ints8
    waiting_max: Ints8
    reserved_max: Ints8


def by_event(device: DeviceTrace, columns: int, *, first: int = BEFORE, last: int | None = None) -> DecimatedTimeline:
    """Events `first` to `last`, evenly; fewer columns than asked for where there are fewer events."""
    end = len(device.events) - 1 if last is None else last
    if columns < 1 or not BEFORE <= first <= end < max(len(device.events), 1):
        raise UsageError(f"No timeline of {columns} columns from event {first} to {end} in device {device.name}.")
    # Row e + 1 of the timeline belongs to event e.
    count = min(columns, end - first + 1)
    bounds = (first + 1) + np.arange(count + 1) * (end - first + 1) // count
    return _columns(timeline(device), bounds)


def by_time(
    device: DeviceTrace, columns: int, *, start_us: int | None = None, end_us: int | None = None
) -> DecimatedTimeline:
    """Spans of equal time between the two, which default to the first and last event's."""
    if not has_times(device):
        raise UsageError(f"The events of device {device.name} have no times. Draw its timeline by event.")
    times = clock(device)
    begin = int(times[0]) if start_us is None else start_us
    end = int(times[-1]) if end_us is None else end_us
    if columns < 1 or end < begin:
        raise UsageError(f"No timeline of {columns} columns from {begin} to {end} µs in device {device.name}.")
    # In Python's integers: a damaged file may have times whose product leaves an int64.
    edges = np.array([begin + (end - begin) * i // columns for i in range(columns)])
    bounds = np.append(np.searchsorted(times, edges, side="left"), np.searchsorted(times, end, side="right")) + 1
    if start_us is None:
        bounds[0] = 0
    return _columns(timeline(device), bounds)


def _columns(rows: Timeline, bounds: Ints8) -> DecimatedTimeline:
    """Rows `bounds[i]` to `bounds[i + 1] - 1` for column i; where that is none, the row before."""
    spans = _EventSpans(bounds)
    live_max = spans.reduced(np.maximum, rows.live)
    return DecimatedTimeline(
        first_event=spans.first - 1,
        event_count=spans.count,
        peak_event=spans.first_equal(rows.live, live_max) - 1,
        live_min=spans.reduced(np.minimum, rows.live),
        live_max=live_max,
        live_first=rows.live[spans.first],
        live_last=rows.live[spans.first + np.maximum(spans.count - 1, 0)],
        waiting_max=spans.reduced(np.maximum, rows.waiting),
        reserved_max=spans.reduced(np.maximum, rows.reserved),
    )


class _EventSpans:
    """Rows that follow one another, cut into columns of which some may be empty."""

    def __init__(self, bounds: Ints8) -> None:
        self.count = np.diff(bounds)
        self.filled = np.flatnonzero(self.count)
        self.first = np.where(self.count > 0, bounds[:-1], bounds[:-1] - 1)
        self.last_row = int(bounds[-1])

    def reduced(self, reduce: np.ufunc, values: Ints8) -> Ints8:
        per_column = values[self.first]
        if len(self.filled):
            per_column[self.filled] = reduce.reduceat(values[: self.last_row], self.first[self.filled])
        return per_column

    def first_equal(self, values: Ints8, wanted: Ints8) -> Ints8:
        """Per column the first row with the wanted value."""
        event = self.first.copy()
        if len(self.filled):
            begin = self.first[self.filled[0]]
            per_row = np.repeat(wanted[self.filled], self.count[self.filled])
            hits = np.flatnonzero(values[begin : self.last_row] == per_row) + begin
            event[self.filled] = hits[np.searchsorted(hits, self.first[self.filled])]
        return event


PAST_END = -1
"""In a column that lies behind the end of a line."""


@dataclass(frozen=True)
class ReplayedBytes:
    name: str
    reserved: Ints8
    """After each recorded event; row 0 is before the first. Shorter than the recording where memory ran out."""
    stopped: bool = False

    @property
    def last_event(self) -> int:
        return len(self.reserved) - 2


@dataclass(frozen=True)
class ReservedLine:
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
    lines: tuple[ReservedLine, ...]
    limit: int | None


def reserved_by_event(
    device: DeviceTrace, replays: Sequence[ReplayedBytes], *, limit: int | None = None, columns: int = 1000
) -> ReservedLines:
    return _with_lines(by_event(device, columns), replays, limit)


def reserved_by_time(
    device: DeviceTrace, replays: Sequence[ReplayedBytes], *, limit: int | None = None, columns: int = 1000
) -> ReservedLines:
    """For a device whose events have times."""
    return _with_lines(by_time(device, columns), replays, limit)


def _with_lines(columns: DecimatedTimeline, replays: Sequence[ReplayedBytes], limit: int | None) -> ReservedLines:
    return ReservedLines(columns, tuple(_line(columns, replay) for replay in replays), limit)


def _line(columns: DecimatedTimeline, replay: ReplayedBytes) -> ReservedLine:
    first = columns.first_event + 1
    after = first + np.maximum(columns.event_count, 1)
    count = len(replay.reserved)
    reserved = np.full(len(columns), PAST_END, dtype=np.int64)
    reached = np.flatnonzero(first < count)
    if len(reached):
        bounds = np.column_stack([first[reached], np.minimum(after[reached], count)])
        reserved[reached] = _most(replay.reserved, bounds)
    last = int(reached[-1]) if len(reached) else 0
    return ReservedLine(replay.name, reserved, replay.last_event if replay.stopped else None, last)


def _most(values: Ints8, bounds: Ints8) -> Ints8:
    """The largest of each span. A column without events of its own repeats the event before it."""
    # With a value below all others behind the last, a span may end there too.
    padded = np.append(values, np.int64(PAST_END))
    return np.asarray(np.maximum.reduceat(padded, bounds.reshape(-1))[::2], dtype=np.int64)
