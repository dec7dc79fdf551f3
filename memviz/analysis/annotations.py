"""`record_function` ranges as intervals of events, with the peak inside each.

An END closes the latest START of its name that is still open. Ring buffers lose either side: a START without
its END lasts to the end of the trace and says so, an END without its START is counted and left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from memviz.analysis.cache import cached
from memviz.analysis.lifetimes import clock, has_stamps
from memviz.analysis.sums import max_of_ranges
from memviz.analysis.timeline import timeline
from memviz.trace.model import Annotations, Bools, Columns, DeviceTrace, Ints4, Ints8, Stage, Trace

NO_INTERVAL = -1


@dataclass(frozen=True, eq=False)
class Intervals(Columns):
    """Annotated intervals by start, outer ones first."""

    name: Ints4
    """Text of the annotation."""
    start_us: Ints8
    end_us: Ints8
    """The time of the last event where `is_open`."""
    start_event: Ints8
    """First event not earlier than the start; the number of events where there is none."""
    end_event: Ints8
    """Last event not later than the end; less than `start_event` where nothing happened inside."""
    depth: Ints4
    """How many others were open when it began."""
    is_open: Bools
    """Its END was not recorded."""


@dataclass(frozen=True)
class Annotated:
    intervals: Intervals
    unmatched_ends: int = 0
    unplaced: int = 0
    """Annotations of a file whose events have no times: they cannot be placed among the events."""


@cached
def annotated(device: DeviceTrace) -> Annotated:
    rows = device.annotations
    if len(device.events) and not has_stamps(device):
        return Annotated(_intervals(device, *_pairs(_none())), unplaced=len(rows))
    start, end = _pairs(rows)
    ends = int(np.count_nonzero(rows.stage == Stage.END))
    return Annotated(_intervals(device, start, end), unmatched_ends=ends - int(np.count_nonzero(end >= 0)))


def _none() -> Annotations:
    return Annotations(np.zeros(0, np.int32), np.zeros(0, np.uint8), np.zeros(0, np.int64))


def _pairs(rows: Annotations) -> tuple[Ints8, Ints8]:
    """Row of each START, in order, and of its END or -1."""
    by_name = np.argsort(rows.name, kind="stable")
    name, is_start = rows.name[by_name], rows.stage[by_name] == Stage.START
    level, matched = _levels(name, is_start)
    # Within one name and level, starts and ends take turns: a start is closed by the row right after it.
    order = np.lexsort((np.arange(len(name)), level, name))
    order = order[matched[order]]
    starts = order[is_start[order]]
    after = np.full(len(name), -1)
    after[order[:-1]] = order[1:]
    follower = after[starts]
    closes = (follower >= 0) & ~is_start[follower] & (name[follower] == name[starts])
    closes &= level[follower] == level[starts]
    start_row = by_name[starts]
    end_row = np.where(closes, by_name[follower], -1)
    in_order = np.argsort(start_row)
    return start_row[in_order], end_row[in_order]


def _levels(name: Ints4, is_start: Bools) -> tuple[Ints8, Bools]:
    """How deep each row lies among those of its own name, and which rows are not an END too many."""
    step = np.where(is_start, 1, -1)
    running = np.cumsum(step)
    group = np.cumsum(np.concatenate([np.zeros(1, np.int64), (name[1:] != name[:-1]).astype(np.int64)]))[: len(name)]
    first = np.searchsorted(group, group)
    running = running - np.where(first > 0, running[first - 1], 0)
    # The lowest point so far, per name: each group is shifted below all groups before it.
    shift = group * (len(name) + 1)
    lowest = np.minimum.accumulate(np.minimum(running, 0) - shift) + shift
    before = np.concatenate([np.zeros(1, np.int64), lowest[:-1]])[: len(name)]
    before[first == np.arange(len(name))] = 0
    too_many = ~is_start & (lowest < before)
    return running - lowest + np.where(is_start, 0, 1), ~too_many


def _intervals(device: DeviceTrace, start: Ints8, end: Ints8) -> Intervals:
    rows, times = device.annotations, clock(device)
    is_open = end < 0
    last_time = int(times[-1]) if len(times) else 0
    start_us = rows.time_us[start]
    end_us = np.where(is_open, np.maximum(last_time, start_us), rows.time_us[end] if len(rows) else 0)
    start_event = np.searchsorted(times, start_us, side="left")
    end_event = np.searchsorted(times, end_us, side="right") - 1
    return Intervals(
        name=rows.name[start],
        start_us=start_us,
        end_us=end_us,
        start_event=start_event,
        end_event=end_event,
        depth=_depths(len(rows), start, end),
        is_open=is_open,
    )


@cached
def interval_peaks(device: DeviceTrace) -> Ints8:
    """Most live bytes from the beginning of each interval to its end, what was live when it began included."""
    intervals = annotated(device).intervals
    last = np.maximum(intervals.end_event, intervals.start_event - 1)
    return max_of_ranges(timeline(device).live, intervals.start_event, last + 2)


def _depths(count: int, start: Ints8, end: Ints8) -> Ints4:
    change = np.zeros(count, dtype=np.int32)
    change[start] = 1
    change[end[end >= 0]] = -1
    return np.asarray((np.cumsum(change) - 1)[start], dtype=np.int32)


def annotation_of_events(device: DeviceTrace, events: Ints8) -> Ints8:
    """For each event the latest-begun interval around it, or NO_INTERVAL."""
    return _innermost(device)[events]


@cached
def _innermost(device: DeviceTrace) -> Ints8:
    """Per event. One loop over the annotations, with those that are open on a heap, the latest on top."""
    intervals, count = annotated(device).intervals, len(device.events)
    begins = intervals.start_event.tolist()
    ends = (intervals.end_event + 1).tolist()
    owner, since = [NO_INTERVAL], [0]
    open_ones: list[int] = []
    starting = 0
    for moment in sorted({*begins, *ends}):
        while starting < len(begins) and begins[starting] <= moment:
            heappush(open_ones, -starting)
            starting += 1
        while open_ones and ends[-open_ones[0]] <= moment:
            heappop(open_ones)
        owner.append(-open_ones[0] if open_ones else NO_INTERVAL)
        since.append(moment)
    return np.repeat(np.array(owner), np.diff(np.minimum([*since, count], count)))


@dataclass(frozen=True)
class StepRange:
    name: str
    start_event: int
    end_event: int
    is_open: bool = False
    """Cut off by the end of the recording."""


def steps(trace: Trace, device: DeviceTrace) -> tuple[StepRange, ...]:
    """Return the profiler's steps; without any, the ranges between ends of consecutive optimizer steps."""
    intervals = annotated(device).intervals
    names = [trace.strings[code] for code in intervals.name]
    profiled = [i for i, name in enumerate(names) if name.startswith("ProfilerStep#")]
    if profiled:
        profiled_steps = zip(profiled, intervals.is_open[profiled].tolist(), strict=True)
        return tuple(
            StepRange(names[i], int(intervals.start_event[i]), int(intervals.end_event[i]), is_open)
            for i, is_open in profiled_steps
        )
    optimized = [i for i, name in enumerate(names) if name.startswith("Optimizer.step#") and not intervals.is_open[i]]
    # With several optimizers the first one sets the pace.
    optimized = [i for i in optimized if names[i] == names[optimized[0]]]
    ends = intervals.end_event[optimized]
    begins = [0, *(ends[:-1] + 1)] if optimized else []
    spans = zip(begins, ends, strict=True)
    return tuple(StepRange(f"step {n}", int(begin), int(end)) for n, (begin, end) in enumerate(spans, start=1))


def ended_steps(trace: Trace, device: DeviceTrace) -> tuple[StepRange, ...]:
    """Those whose end is known. One that ended before the first event says nothing of it: the next may be half done."""
    return tuple(step for step in steps(trace, device) if not step.is_open and step.end_event >= 0)
