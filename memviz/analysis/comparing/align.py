"""Align the time axes of several traces, so that they can be drawn side by side or overlaid.

Two positions on each trace's axis are mapped to the same two positions of the others; all others follow linearly.
That is enough to overlay complete runs, to align peaks on one scale, and to overlay one step with the same step of
another run, however many events each takes.

Instant 0 is before the first event and instant e + 1 is after event e, as in all figures; on the time
axis a position is in µs since the trace's first event.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from memviz.analysis.annotations import annotated, steps
from memviz.analysis.comparing.matching import Pair
from memviz.analysis.lifetimes import clock, has_times
from memviz.analysis.timeline import timeline
from memviz.errors import UsageError
from memviz.trace.model import DeviceTrace

Axis = Literal["event", "time"]
Span = tuple[float, float]
_MOST_STEPS = 12
_MOST_NAMES = 20
_MARGIN = 0.04


@dataclass(frozen=True)
class Alignment:
    kind: Literal["start", "scale", "peak", "step", "annotation"]
    number: int = 0
    """Index of the step."""
    name: str = ""


START = Alignment("start")
"""Complete runs: first events and last events aligned."""
SCALE = Alignment("scale")
"""First events aligned, on one scale of events (or µs)."""
PEAK = Alignment("peak")
"""Peaks aligned, on one scale."""


@dataclass(frozen=True)
class Aligned:
    axis: Axis
    spans: tuple[Span, ...]
    """Per trace the two positions that are drawn at 0 and 1."""
    extent: Span
    """Range in which any trace has events: the spans begin at 0 and end at 1."""
    focus: Span
    """The span to show first, on the same scale."""


def list_alignments(sides: Sequence[Pair]) -> tuple[Alignment, ...]:
    # A step that ended before the recording began has no length.
    shared = [
        all(step.end_event >= step.start_event for step in matching)
        for matching in zip(*(steps(*side) for side in sides), strict=False)
    ]
    common = set.intersection(*({name for name, _ in _spans_by_name(side)} for side in sides))
    # As often as they occur in the baseline, the rarest first: those mark a run's large parts.
    often = Counter(name for name, _ in _spans_by_name(sides[0]))
    names = sorted((name for name in common if not name.startswith("ProfilerStep#")), key=lambda name: often[name])
    return (
        START,
        SCALE,
        PEAK,
        *(Alignment("step", number=number) for number in np.flatnonzero(shared)[:_MOST_STEPS].tolist()),
        *(Alignment("annotation", name=name) for name in names[:_MOST_NAMES]),
    )


def align(sides: Sequence[Pair], alignment: Alignment = START, axis: Axis = "event") -> Aligned:
    devices = [device for _, device in sides]
    if axis == "time" and not all(map(has_times, devices)):
        raise UsageError("Not all of these traces have times. Align them by event.")
    lengths = [_length(device, axis) for device in devices]
    if alignment.kind == "start":
        return Aligned(axis, tuple((0.0, length) for length in lengths), (0.0, 1.0), (0.0, 1.0))
    if alignment.kind in ("scale", "peak"):
        longest = max(lengths)
        begins = [0.0] * len(devices)
        if alignment.kind == "peak":
            peaks = [timeline(device).peak_event for device in devices]
            in_time = (_time(device, event) for device, event in zip(devices, peaks, strict=True))
            begins = [float(event + 1) for event in peaks] if axis == "event" else list(in_time)
        spans = [(begin, begin + longest) for begin in begins]
        extent = _extent(spans, lengths)
        return Aligned(axis, tuple(spans), extent, extent)
    spans = [_placed(device, _marked(side, alignment), axis) for side, device in zip(sides, devices, strict=True)]
    extent = _extent(spans, lengths)
    return Aligned(axis, tuple(spans), extent, (max(extent[0], -_MARGIN), min(extent[1], 1 + _MARGIN)))


def _marked(side: Pair, alignment: Alignment) -> tuple[int, int]:
    """First and last event of the step, or of the annotation where it occurs first."""
    if alignment.kind == "step":
        spans = [(step.start_event, step.end_event) for step in steps(*side)][alignment.number : alignment.number + 1]
    else:
        spans = [events for name, events in _spans_by_name(side) if name == alignment.name][:1]
    if not spans:
        raise UsageError(f"Not all of these traces have {alignment.name or f'a step {alignment.number + 1}'}.")
    return spans[0]


def _spans_by_name(side: Pair) -> list[tuple[str, tuple[int, int]]]:
    """Annotations in which something happens, in order."""
    trace, device = side
    intervals = annotated(device)
    rows = np.flatnonzero(intervals.end_event >= intervals.start_event)
    names, begins, ends = (
        column[rows].tolist() for column in (intervals.name, intervals.start_event, intervals.end_event)
    )
    return [(trace.strings[name], (begin, end)) for name, begin, end in zip(names, begins, ends, strict=True)]


def _length(device: DeviceTrace, axis: Axis) -> float:
    if axis == "event":
        return float(len(device.events) + 1)
    times = clock(device)
    return float(max(int(times[-1]) - int(times[0]), 1))


def _placed(device: DeviceTrace, events: tuple[int, int], axis: Axis) -> Span:
    first, last = events
    if axis == "event":
        return float(first + 1), float(last + 2)
    begin, end = _time(device, first), _time(device, last)
    # A step within one µs still needs a width.
    return begin, max(end, begin + 1)


def _time(device: DeviceTrace, event: int) -> float:
    times = clock(device)
    return float(times[max(event, 0)] - times[0])


def _extent(spans: Sequence[Span], lengths: Sequence[float]) -> Span:
    lows = [-begin / (end - begin) for begin, end in spans]
    highs = [(length - begin) / (end - begin) for (begin, end), length in zip(spans, lengths, strict=True)]
    return min(lows), max(highs)
