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
    count = np.diff(bounds)
    first = np.where(count > 0, bounds[:-1], bounds[:-1] - 1)
    spans = [
        slice(begin, end) for begin, end in zip(first.tolist(), (first + np.maximum(count, 1)).tolist(), strict=True)
    ]
    peak = first + np.array([rows.live[span].argmax() for span in spans], dtype=np.int64)
    return DecimatedTimeline(
        first_event=first - 1,
        event_count=count,
        peak_event=peak - 1,
        live_min=np.array([rows.live[span].min() for span in spans], dtype=np.int64),
        live_max=rows.live[peak],
        waiting_max=np.array([rows.waiting[span].max() for span in spans], dtype=np.int64),
        reserved_max=np.array([rows.reserved[span].max() for span in spans], dtype=np.int64),
    )


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
    """Per column the most of its events, or PAST_END."""
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


def reserved_lines(
    columns: DecimatedTimeline, replays: Sequence[ReplayedBytes], limit: int | None = None
) -> ReservedLines:
    return ReservedLines(columns, tuple(_line(columns, replay) for replay in replays), limit)


def _line(columns: DecimatedTimeline, replay: ReplayedBytes) -> ReservedLine:
    first = columns.first_event + 1
    spans = zip(first.tolist(), (first + np.maximum(columns.event_count, 1)).tolist(), strict=True)
    reserved = np.array([replay.reserved[begin:end].max(initial=PAST_END) for begin, end in spans], dtype=np.int64)
    last = max(int(np.searchsorted(first, len(replay.reserved))) - 1, 0)
    return ReservedLine(replay.name, reserved, replay.last_event if replay.stopped else None, last)
