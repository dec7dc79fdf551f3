"""`record_function` ranges as intervals of events, with the peak inside each.

An END closes the latest START of its name that is still open. Ring buffers lose either side: a START without
its END lasts to the end of the trace and is marked open, an END without its START is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from memviz.analysis.cache import cached
from memviz.analysis.lifetimes import clock, has_times_or_counts
from memviz.analysis.sums import max_of_ranges
from memviz.analysis.timeline import timeline
from memviz.errors import UsageError
from memviz.trace.intern import distinct, is_among
from memviz.trace.model import Bools, Columns, DeviceTrace, Ints4, Ints8, Stage, Trace

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


@cached
def annotated(device: DeviceTrace) -> Intervals:
    """None where the events have no times: annotations cannot be placed among them."""
    rows, times = device.annotations, clock(device)
    if len(device.events) and not has_times_or_counts(device):
        rows = rows.select(slice(0))
    end_of = np.full(len(rows), -1)
    open_starts: dict[int, list[int]] = {}
    for row, (name, stage) in enumerate(zip(rows.name.tolist(), rows.stage.tolist(), strict=True)):
        if stage == Stage.START:
            open_starts.setdefault(name, []).append(row)
        elif open_starts.get(name):
            end_of[open_starts[name].pop()] = row
    start = np.flatnonzero(rows.stage == Stage.START)
    end = end_of[start]
    is_open = end < 0
    last_time = int(times[-1]) if len(times) else 0
    start_us = rows.time_us[start]
    end_us = np.where(is_open, np.maximum(last_time, start_us), rows.time_us[end] if len(rows) else 0)
    change = np.zeros(len(rows), dtype=np.int32)
    change[start] = 1
    change[end[~is_open]] = -1
    return Intervals(
        name=rows.name[start],
        start_us=start_us,
        end_us=end_us,
        start_event=np.searchsorted(times, start_us, side="left"),
        end_event=np.searchsorted(times, end_us, side="right") - 1,
        depth=(np.cumsum(change) - 1)[start].astype(np.int32),
        is_open=is_open,
    )


@cached
def interval_peaks(device: DeviceTrace) -> Ints8:
    """Most live bytes from the beginning of each interval to its end, what was live when it began included."""
    intervals = annotated(device)
    last = np.maximum(intervals.end_event, intervals.start_event - 1)
    return max_of_ranges(timeline(device).live, intervals.start_event, last + 2)


_MOST_NAMED = 8


def event_of_mark(trace: Trace, device: DeviceTrace, name: str) -> int:
    """Return the last event of the latest annotation with a name, such as that of `memviz.mark`.

    Raises:
        UsageError: No annotation has this name; some that there are are named.
    """
    intervals = annotated(device)
    texts = [trace.strings[code] for code in intervals.name.tolist()]
    if name not in texts:
        known = ", ".join(repr(text[:40]) for text in list(dict.fromkeys(texts))[:_MOST_NAMED])
        raise UsageError(f"No annotation has the name {name[:40]!r}{f'; annotations are {known}' if known else ''}.")
    return int(intervals.end_event[[row for row, text in enumerate(texts) if text == name]].max())


def annotation_of_events(device: DeviceTrace, events: Ints8) -> Ints8:
    """For each event the latest-begun interval around it, or NO_INTERVAL."""
    return _innermost(device)[events]


@cached
def _innermost(device: DeviceTrace) -> Ints8:
    """Per event. One loop over the annotations, with those that are open on a heap, the latest on top."""
    intervals, count = annotated(device), len(device.events)
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


def optimizer_steps(trace: Trace, device: DeviceTrace) -> Ints8:
    """Rows of the intervals by which torch annotates optimizer steps."""
    names = annotated(device).name
    codes = [code for code in distinct(names) if trace.strings[code].startswith("Optimizer.step#")]
    return np.flatnonzero(is_among(names, codes))


def steps(trace: Trace, device: DeviceTrace) -> tuple[StepRange, ...]:
    """Return the profiler's steps; without any, the ranges between ends of consecutive optimizer steps."""
    intervals = annotated(device)
    names = [trace.strings[code] for code in intervals.name]
    profiled = [i for i, name in enumerate(names) if name.startswith("ProfilerStep#")]
    if profiled:
        profiled_steps = zip(profiled, intervals.is_open[profiled].tolist(), strict=True)
        return tuple(
            StepRange(names[i], int(intervals.start_event[i]), int(intervals.end_event[i]), is_open)
            for i, is_open in profiled_steps
        )
    optimized = [i for i in optimizer_steps(trace, device).tolist() if not intervals.is_open[i]]
    # With several optimizers the first one sets the pace.
    optimized = [i for i in optimized if names[i] == names[optimized[0]]]
    ends = intervals.end_event[optimized]
    begins = [0, *(ends[:-1] + 1)] if optimized else []
    spans = zip(begins, ends, strict=True)
    return tuple(StepRange(f"step {n}", int(begin), int(end)) for n, (begin, end) in enumerate(spans, start=1))


def ended_steps(trace: Trace, device: DeviceTrace) -> tuple[StepRange, ...]:
    """Steps that ended within the trace. One that ended before the first event does not count."""
    return tuple(step for step in steps(trace, device) if not step.is_open and step.end_event >= 0)


_PHASES = ("forward", "backward", "optimizer step")
_PHASES_OF_RUNS = ("load", "conversion", "warm-up")
"""Besides, in files of `memviz run`, which have the run as a fact."""


def marks(trace: Trace, device: DeviceTrace) -> tuple[StepRange, ...]:
    """Return the moments that the program named with `memviz.mark`, in their order: annotations without events."""
    found = annotated(device)
    empty = np.flatnonzero((found.end_event < found.start_event) & ~found.is_open)
    columns = (column[empty].tolist() for column in (found.name, found.start_event, found.end_event))
    named = (StepRange(trace.strings[name], first, last) for name, first, last in zip(*columns, strict=True))
    phases = (*_PHASES, *_PHASES_OF_RUNS) if "run" in trace.about.facts else _PHASES
    return tuple(mark for mark in named if mark.name not in phases)
