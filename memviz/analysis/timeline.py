"""Live, waiting and reserved bytes after each event, reduced to the columns of a plot without losing a peak."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from memviz.analysis.cache import cached
from memviz.analysis.lifetimes import BEFORE, clock, has_times, lifetimes
from memviz.errors import UsageError
from memviz.trace.model import Action, Columns, DeviceTrace, Events, Ints8, is_reserved_known, reserved_after

# Live, waiting and reserved bytes after each event, and live bytes while a file is still being read.
#
# `live` counts requested bytes from the alloc until the free is complete, so it includes `waiting`: blocks whose free
# was requested while another stream may still use them. `reserved` is what the allocator holds from the device in
# segments.


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

    @cached_property
    def peak_bytes(self) -> int:
        return int(self.live.max())

    @cached_property
    def peak_event(self) -> int:
        """First event after which live bytes are at their peak; -1 where that is before the first event."""
        return int(self.live.argmax()) - 1

    @cached_property
    def reserved_peak_bytes(self) -> int:
        return int(self.reserved.max())


@cached
def timeline(device: DeviceTrace) -> Timeline:
    rows, count = lifetimes(device), len(device.events)
    live = sum_of_spans(rows.start, rows.end, rows.size, count)
    waiting = sum_of_spans(rows.free_requested, rows.end, rows.size, count)
    return Timeline(live=live, waiting=waiting, reserved=reserved_after(device))


@cached
def peak_bytes(device: DeviceTrace) -> int:
    """The peak alone, which stays cached where the timeline is too large to."""
    return timeline(device).peak_bytes


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
    """Return whether the recording shows reserved memory; only moments with live blocks show it."""
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


# A timeline reduced to the columns of a plot, without losing its peak; and replays reduced to the same columns.
#
# A replay counts after each recorded event, and ends where it ran out of memory.


@dataclass(frozen=True, eq=False)
class DecimatedTimeline(Columns):
    """One row per column of the picture, in order. Bytes after the events of that column."""

    first_event: Ints8
    """-1 is the state before the first event. A column without events repeats the event before it."""
    event_count: Ints8
    """0 for such a column; the state before the first event counts as one."""
    peak_event: Ints8
    """The first event at which `live_max` is reached."""
    live_min: Ints8
    live_max: Ints8
    waiting_max: Ints8
    reserved_max: Ints8


def by_event(device: DeviceTrace, columns: int) -> DecimatedTimeline:
    """All events, evenly; fewer than `columns` columns where there are fewer events."""
    rows = len(timeline(device))
    if columns < 1:
        raise UsageError(f"No timeline of {columns} columns in device {device.name}.")
    count = min(columns, rows)
    return _reduce_to_columns(timeline(device), np.arange(count + 1) * rows // count)


def by_time(device: DeviceTrace, columns: int) -> DecimatedTimeline:
    """Spans of equal time from the first event to the last."""
    if not has_times(device):
        raise UsageError(f"The events of device {device.name} have no times. Draw its timeline by event.")
    times = clock(device)
    begin, end = int(times[0]), int(times[-1])
    if columns < 1:
        raise UsageError(f"No timeline of {columns} columns in device {device.name}.")
    # In Python's integers: a damaged file may have times whose product leaves an int64.
    edges = np.array([begin + (end - begin) * i // columns for i in range(columns)])
    bounds = np.append(np.searchsorted(times, edges, side="left"), np.searchsorted(times, end, side="right")) + 1
    # The state before the first event belongs to the first column.
    bounds[0] = 0
    return _reduce_to_columns(timeline(device), bounds)


def _reduce_to_columns(rows: Timeline, bounds: Ints8) -> DecimatedTimeline:
    """Rows `bounds[i]` to `bounds[i + 1] - 1` for column i; where that is none, the row before."""
    count = np.diff(bounds)
    first = np.where(count > 0, bounds[:-1], bounds[:-1] - 1)
    spans = _spans(first, count)
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


def _spans(first: Ints8, count: Ints8) -> list[slice]:
    """Rows of each column, of which there is at least one."""
    return [slice(begin, begin + max(rows, 1)) for begin, rows in zip(first.tolist(), count.tolist(), strict=True)]


PAST_END = -1
"""Value of a column beyond the end of a line."""


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
    first, lines = columns.first_event + 1, []
    spans = _spans(first, columns.event_count)
    for replay in replays:
        reserved = np.array([replay.reserved[span].max(initial=PAST_END) for span in spans], dtype=np.int64)
        last = max(int(np.searchsorted(first, len(replay.reserved))) - 1, 0)
        lines.append(ReservedLine(replay.name, reserved, replay.last_event if replay.stopped else None, last))
    return ReservedLines(columns, tuple(lines), limit)
