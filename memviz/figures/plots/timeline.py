"""Bytes over events or time: a recording with its peak, failures and annotations, or one with its replays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from memviz.analysis.annotations import Intervals
from memviz.analysis.callstacks.sites import NO_SITE
from memviz.analysis.peak import FailedRequest
from memviz.analysis.timeline import DecimatedTimeline, ReservedLines
from memviz.figures.theme import (
    HOVER_TEXT,
    Palette,
    byte_axis,
    figure,
    hatched,
    lines,
    mixed,
    moment,
    nothing_to_show,
    palette,
    plain,
    text_on,
)
from memviz.trace.model import Ints8
from memviz.units import bytes_text, count_text, duration_text

MOST_BANDS = 200
"""The longest annotations are drawn; of the others there are too many for a picture."""

DEEPEST_BAND = 2
_HEIGHT = 400
_BAND_HEIGHT = 0.085
_HEADROOM = 1.08


@dataclass(frozen=True)
class _Axis:
    """Positions of columns, events and times: in events, or in ms since the first column."""

    starts: list[float]
    end: float
    start_us: int | None

    def place(self, event: int, time_us: int | None) -> float | None:
        """None for a time that is not known."""
        if self.start_us is None:
            return event
        return None if time_us is None else (time_us - self.start_us) / 1000

    @staticmethod
    def of(result: DecimatedTimeline, span_us: tuple[int, int] | None) -> _Axis:
        if span_us is None:
            starts: list[float] = result.first_event.tolist()
            return _Axis(starts, starts[-1] + int(result.event_count[-1]) if starts else 0, None)
        begin, end = span_us
        count = len(result)
        return _Axis([(end - begin) * i / count / 1000 for i in range(count)], (end - begin) / 1000, begin)


def plot_timeline(
    result: DecimatedTimeline,
    *,
    intervals: Intervals | None = None,
    interval_peaks: Ints8 | None = None,
    strings: Sequence[str] = (),
    out_of_memory: Sequence[FailedRequest] = (),
    span_us: tuple[int, int] | None = None,
    dark: bool = False,
) -> go.Figure:
    """`span_us` is the time that `decimate.by_time` cut into columns; without it the axis counts events.

    `strings` are the trace's, for the names of the intervals.
    """
    axis, colours = _Axis.of(result, span_us), palette(dark)
    top = int(max(result.live_max.max(), result.reserved_max.max())) if len(result) else 0
    title = "Live bytes"
    if len(result):
        column = int(result.live_max.argmax())
        peak, event = int(result.live_max[column]), int(result.peak_event[column])
        title = f"{bytes_text(peak)} live at the peak, {moment(event)}"
    drawing = figure(dark=dark, title=title, hovermode="x unified", height=_HEIGHT)
    first = axis.starts[0] if axis.starts else 0
    name = "event" if axis.start_us is None else "ms"
    drawing.update_xaxes(title_text=name, tickformat=",", range=[first, max(axis.end, first + 1)])
    if not top:
        return nothing_to_show(drawing, "No memory is live or reserved here.")
    _draw_bytes(drawing, result, axis, colours)
    _mark_peak(drawing, axis.starts[column] if axis.start_us is not None else float(event), peak, event, colours)
    _mark_failures(drawing, out_of_memory, axis, colours)
    rows = 0
    if intervals is not None:
        rows = _draw_bands(drawing, intervals, interval_peaks, strings, axis=axis, colours=colours)
    y_axis = {**byte_axis(top), "range": [0, top * _HEADROOM], "domain": [0, 1 - _BAND_HEIGHT * rows]}
    drawing.update_layout(yaxis=y_axis)
    return drawing


def _draw_bytes(drawing: go.Figure, result: DecimatedTimeline, axis: _Axis, colours: Palette) -> None:
    """Fill each column up to its maximum, darker up to its minimum, and hatched from there to the reserved bytes."""
    x = [*axis.starts, axis.end]
    soft, firm = (mixed(colours.ink_3, colours.page, share) for share in (0.55, 0.2))
    live, least = (_steps(x, column.tolist(), "live") for column in (result.live_max, result.live_min))
    live["text"] = [
        most if most == low else f"{low} to {most}" for low, most in zip(least["text"], live["text"], strict=True)
    ]
    drawing.add_scatter(**live, line={"color": firm, "width": 1}, fill="tozeroy", fillcolor=soft)
    drawing.add_scatter(
        **_steps(x, result.reserved_max.tolist(), "reserved"), line={"color": colours.ink, "width": 1.5}
    )
    drawing.data[-1].update(fill="tonexty", fillpattern=hatched(colours))
    drawing.add_scatter(x=x, y=least["y"], mode="lines", line={"width": 0}, fill="tozeroy", fillcolor=firm)
    drawing.data[-1].update(showlegend=False, hoverinfo="skip")
    if result.waiting_max.any():
        drawing.add_scatter(**_steps(x, result.waiting_max.tolist(), "of it waiting to be freed"))
        # Between its two events every free waits for a moment, so it is hidden at first.
        drawing.data[-1].update(line={"color": colours.warn, "width": 1}, visible="legendonly")
    drawing.update_traces(line_shape="hv")


def _steps(x: list[Any], values: list[int], name: str) -> dict[str, Any]:
    """Each value holds until the next column, so the last one is repeated."""
    y = [*values, values[-1]]
    return {"x": x, "y": y, "name": name, "mode": "lines", "text": [*map(bytes_text, y)], "hovertemplate": "%{text}"}


def _mark_peak(drawing: go.Figure, x: float, size: int, event: int, colours: Palette) -> None:
    first, last = drawing.layout.xaxis.range
    left = x > (first + last) / 2
    drawing.add_scatter(
        x=[x],
        y=[size],
        mode="markers",
        marker={"symbol": "circle", "size": 9, "color": colours.ink, "line": {"width": 2, "color": colours.page}},
        hovertemplate=f"peak, {moment(event)}<extra></extra>",
        showlegend=False,
        cliponaxis=False,
    )
    drawing.add_annotation(
        x=x,
        y=size,
        text=f"peak {bytes_text(size)}",
        showarrow=False,
        xanchor="right" if left else "left",
        xshift=-9 if left else 9,
        yanchor="top",
        bgcolor=colours.page,
        borderpad=2,
        font_color=colours.ink,
    )


def _mark_failures(drawing: go.Figure, failures: Sequence[FailedRequest], axis: _Axis, colours: Palette) -> None:
    placed = [(axis.place(failure.event, failure.time_us), failure) for failure in failures]
    visible = [(x, failure) for x, failure in placed if x is not None and axis.starts[0] <= x <= axis.end]
    if not visible:
        return
    drawing.add_scatter(
        x=[x for x, _ in visible],
        y=[failure.reserved_bytes for _, failure in visible],
        mode="markers",
        name="out of memory",
        cliponaxis=False,
        marker={"symbol": "x", "size": 11, "color": colours.bad, "line": {"width": 1, "color": colours.page}},
        text=[_failure_text(failure) for _, failure in visible],
        hovertemplate="%{text}<extra></extra>",
    )


def _failure_text(failure: FailedRequest) -> str:
    free = failure.device_free_bytes
    had = "what the driver had is not known" if free is None else f"the driver had {bytes_text(free)}"
    return lines(
        f"out of memory {moment(failure.event)}",
        f"asked {bytes_text(failure.requested_bytes)}, {had}",
        plain(failure.site or NO_SITE.label),
    )


def _draw_bands(
    drawing: go.Figure,
    intervals: Intervals,
    peaks: Ints8 | None,
    strings: Sequence[str],
    *,
    axis: _Axis,
    colours: Palette,
) -> int:
    """Draw annotations above the plot, outer ones on top; return how many rows they take."""
    rows = [row for row in _longest(intervals) if int(intervals.end_event[row]) >= int(intervals.start_event[row])]
    if not rows:
        return 0
    starts = [axis.place(int(intervals.start_event[row]), int(intervals.start_us[row])) or 0.0 for row in rows]
    ends = [axis.place(int(intervals.end_event[row]) + 1, int(intervals.end_us[row])) or 0.0 for row in rows]
    deep = int(intervals.depth[rows].max()) + 1
    fill = colours.fill
    drawing.add_bar(
        orientation="h",
        yaxis="y2",
        base=starts,
        x=[end - start for start, end in zip(starts, ends, strict=True)],
        y=intervals.depth[rows].tolist(),
        width=0.9,
        marker={"color": fill, "line": {"width": 1, "color": colours.page}},
        text=[plain(strings[int(intervals.name[row])], 40) for row in rows],
        textposition="inside",
        insidetextanchor="start",
        textangle=0,
        textfont={"color": text_on(fill)},
        hovertext=[_band_text(intervals, peaks, strings, row) for row in rows],
        hovertemplate=HOVER_TEXT,
        showlegend=False,
    )
    place = {"domain": [1 - _BAND_HEIGHT * deep, 1], "range": [deep - 0.5, -0.5], "anchor": "free"}
    drawing.update_layout(
        yaxis2={**place, "showgrid": False, "showticklabels": False}, uniformtext={"minsize": 9, "mode": "hide"}
    )
    return deep


def _longest(intervals: Intervals) -> list[int]:
    shallow = (intervals.depth < DEEPEST_BAND).nonzero()[0]
    length = (intervals.end_us - intervals.start_us)[shallow]
    chosen: list[int] = shallow[(-length).argsort(kind="stable")[:MOST_BANDS]].tolist()
    return sorted(chosen)


def _band_text(intervals: Intervals, peaks: Ints8 | None, strings: Sequence[str], row: int) -> str:
    events = int(intervals.end_event[row] - intervals.start_event[row]) + 1
    duration = duration_text(int(intervals.end_us[row] - intervals.start_us[row]))
    return lines(
        plain(strings[int(intervals.name[row])]),
        f"{count_text(events)} events, {duration}" + (", still open at the end" if intervals.is_open[row] else ""),
        *([] if peaks is None else [f"at most {bytes_text(int(peaks[row]))} live"]),
    )


_REPLAY_HEIGHT = 380
_DASHES = ("solid", "dot", "dashdot", "longdash")
"""Line styles of the replays; the first is drawn thick."""


def plot_replay(result: ReservedLines, *, dark: bool = False) -> go.Figure:
    """Over events. Columns show the most of their events, so no peak is lost."""
    colours, columns = palette(dark), result.columns
    drawing = figure(dark=dark, hovermode="x unified", height=_REPLAY_HEIGHT)
    curves = [columns.live_max, columns.reserved_max, *(line.reserved for line in result.lines)]
    top = max([result.limit or 0, *(int(column.max(initial=0)) for column in curves)]) if len(columns) else 0
    if not top:
        return nothing_to_show(drawing, "No memory is live or reserved here.")
    x = [*columns.first_event.tolist(), int(columns.first_event[-1] + columns.event_count[-1])]
    grey = mixed(colours.ink_3, colours.page, 0.6)
    drawing.add_scatter(
        **_steps(x, columns.live_max.tolist(), "live"), line={"width": 0}, fill="tozeroy", fillcolor=grey
    )
    drawing.add_scatter(**_steps(x, columns.reserved_max.tolist(), "reserved as recorded"))
    drawing.data[-1].update(line={"color": colours.ink, "width": 1.5, "dash": "4px,3px"})
    for number, line in enumerate(result.lines):
        reached = line.last_column + 1
        drawing.add_scatter(**_steps(x[: reached + 1], line.reserved[:reached].tolist(), plain(line.name)))
        dash = _DASHES[number % len(_DASHES)]
        drawing.data[-1].update(line={"color": colours.ink, "width": 1.5 if number else 3, "dash": dash})
    drawing.update_traces(line_shape="hv")
    if result.limit is not None:
        _draw_limit(drawing, result, colours)
    drawing.update_xaxes(title_text="event", tickformat=",d", range=[x[0], max(x[-1], x[0] + 1)])
    drawing.update_yaxes(**byte_axis(top), range=[0, top * _HEADROOM])
    return drawing


def _draw_limit(drawing: go.Figure, result: ReservedLines, colours: Palette) -> None:
    limit = result.limit
    label = f"limit {bytes_text(limit or 0)}"
    drawing.add_hline(
        y=limit, line={"color": colours.bad, "width": 1.5}, annotation_text=label, annotation_position="top left"
    )
    drawing.layout.annotations[-1].update(font_color=colours.bad, yanchor="bottom")
    stopped = [line for line in result.lines if line.stops_at is not None]
    if stopped:
        drawing.add_scatter(
            x=[line.stops_at for line in stopped],
            y=[limit for _ in stopped],
            mode="markers",
            name="out of memory",
            cliponaxis=False,
            marker={"symbol": "circle-x-open", "size": 14, "color": colours.bad, "line": {"width": 2}},
            text=[f"{plain(line.name)}: out of memory {moment(line.stops_at or 0)}" for line in stopped],
            hovertemplate="%{text}<extra></extra>",
        )
