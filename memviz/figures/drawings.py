"""Plot a trace or one of its results: `memviz.figures.peak(memviz.open("run.pickle"))`.

Any object with a `trace` can be plotted: what `memviz.open` returns and its results, a recording, a prediction; also a
`Trace`. A result has its own device and event; otherwise pass `device` and `event`.
"""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from memviz.analysis.annotations import annotated, interval_peaks
from memviz.analysis.callstacks.stack_tree import stack_tree
from memviz.analysis.comparing.changes import Changes, changes
from memviz.analysis.devices import choose_device
from memviz.analysis.lifetimes import clock, live_rows
from memviz.analysis.peak import LiveSet, at, failed_requests
from memviz.analysis.purpose.categories import categories
from memviz.analysis.segments import SegmentsAt, segments_at
from memviz.analysis.timeline import by_event, by_time
from memviz.analysis.timeline import timeline as line_of
from memviz.errors import UsageError
from memviz.figures.plots.icicle import plot_icicle
from memviz.figures.plots.peak import plot_peak, plot_waterfall
from memviz.figures.plots.segments import plot_segments
from memviz.figures.plots.timeline import plot_timeline
from memviz.trace.model import DeviceTrace, HasTrace, Trace

_MOST_FAILURES = 20
"""A program can go on failing thousands of times."""


Source = Trace | HasTrace


def timeline(
    source: Source, *, over: str = "event", columns: int = 1000, device: int | str | None = None, dark: bool = False
) -> go.Figure:
    """Live and reserved bytes over events, or over the "time" where the trace has one.

    Failed allocations and annotations are marked. A column shows the most of its events, so no peak is lost.
    """
    if over not in ("event", "time"):
        raise UsageError(f"{over!r} is no axis; there are event and time.")
    trace, chosen = _pair(source, device)
    times = clock(chosen)
    decimated = by_event(chosen, columns) if over == "event" else by_time(chosen, columns)
    return plot_timeline(
        decimated,
        intervals=annotated(chosen),
        interval_peaks=interval_peaks(chosen),
        strings=trace.strings,
        out_of_memory=failed_requests(trace, chosen, slice(_MOST_FAILURES)),
        span_us=(int(times[0]), int(times[-1])) if over == "time" else None,
        dark=dark,
    )


def peak(
    source: Source,
    by: str | None = None,
    *,
    event: int | None = None,
    device: int | str | None = None,
    dark: bool = False,
) -> go.Figure:
    """Plot the allocations live at the peak, at an answer's moment, or after `event`: by site unless `by` is given."""
    result = getattr(source, "found", None)
    if isinstance(result, LiveSet) and event is None and device is None and by in (None, result.live.by):
        return plot_peak(result, dark=dark)
    trace, chosen = _pair(source, device)
    grouping = by or (result.live.by if isinstance(result, LiveSet) else "site")
    return plot_peak(at(trace, chosen, _chosen_event(source, chosen, event), grouping), dark=dark)


def icicle(
    source: Source, *, event: int | None = None, device: int | str | None = None, dark: bool = False
) -> go.Figure:
    """Plot live memory by call stack, callers on top; by default at the peak."""
    trace, chosen = _pair(source, device)
    rows = live_rows(chosen, _chosen_event(source, chosen, event))
    return plot_icicle(stack_tree(trace, chosen, rows), trace, dark=dark)


def segments(
    source: Source, *, event: int | None = None, device: int | str | None = None, dark: bool = False
) -> go.Figure:
    """Plot the segments with their blocks, coloured by category; by default at the peak."""
    trace, chosen = _pair(source, device)
    result = getattr(source, "found", None)
    if not isinstance(result, SegmentsAt) or event is not None or device is not None:
        result = segments_at(trace, chosen, _chosen_event(source, chosen, event))
    return plot_segments(result, categories=categories(trace, chosen), dark=dark)


def waterfall(
    source: Any,
    other: Source | None = None,
    *,
    by: str | None = None,
    device: int | str | None = None,
    dark: bool = False,
) -> go.Figure:
    """Plot the changes from one trace's peak to another's, of two traces or a result of `compare`."""
    result = getattr(source, "found", None)
    if other is None and isinstance(result, Changes):
        return plot_waterfall(result if by in (None, result.by) else changes(source.sides, by), dark=dark)
    if other is None:
        raise UsageError("A waterfall needs two traces, or the result of compare.")
    return plot_waterfall(changes([_pair(source, device), _pair(other, device)], by or "site"), dark=dark)


def _pair(source: Source, device: int | str | None) -> tuple[Trace, DeviceTrace]:
    trace = source if isinstance(source, Trace) else getattr(source, "trace", None)
    if not isinstance(trace, Trace):
        raise UsageError(f"There is no trace in {type(source).__name__}: open it with memviz.open first.")
    name = getattr(source, "device", None) if device is None else str(device)
    return trace, choose_device(trace, name if isinstance(name, str) else None)


def _chosen_event(source: Source, device: DeviceTrace, event: int | None) -> int:
    """`event` if given, else that of a result for this device, else the peak."""
    if event is None and getattr(source, "device", None) == device.name:
        event = getattr(source, "event", None)
    return line_of(device).peak_event if event is None else int(event)
