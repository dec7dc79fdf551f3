"""What was reserved and what would have been, over the same live bytes, with the limit and where memory ran out."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from memviz.analysis.reserved.reserved_lines import ReservedLine, ReservedLines
from memviz.figures.text import byte_axis, moment, plain
from memviz.figures.theme import Palette, figure, mixed, nothing_to_show, palette
from memviz.units import bytes_text

_HEIGHT = 380
_HEADROOM = 1.08
_DASHES = ("solid", "dot", "dashdot", "longdash")
"""Of the replays, the first drawn thick."""


def plot_replay(result: ReservedLines, *, dark: bool = False) -> go.Figure:
    """Over events. Columns show the most of their events, so no peak is lost."""
    colours, columns = palette(dark), result.columns
    drawing = figure(dark=dark, hovermode="x unified", height=_HEIGHT)
    top = _top(result)
    if not top:
        return nothing_to_show(drawing, "No memory is live or reserved here.")
    x = [*columns.first_event.tolist(), int(columns.first_event[-1] + columns.event_count[-1])]
    grey = mixed(colours.ink_3, colours.page, 0.6)
    drawing.add_scatter(**_steps(x, columns.live_max.tolist(), "live"))
    drawing.data[-1].update(line={"width": 0, "shape": "hv"}, fill="tozeroy", fillcolor=grey)
    drawing.add_scatter(**_steps(x, columns.reserved_max.tolist(), "reserved as recorded"))
    drawing.data[-1].update(line={"color": colours.ink, "width": 1.5, "dash": "4px,3px", "shape": "hv"})
    for number, line in enumerate(result.lines):
        _draw_line(drawing, x, line, number=number, colours=colours)
    if result.limit is not None:
        _draw_limit(drawing, result, colours)
    drawing.update_xaxes(title_text="event", tickformat=",d", range=[x[0], max(x[-1], x[0] + 1)])
    drawing.update_yaxes(**byte_axis(top), range=[0, top * _HEADROOM])
    return drawing


def _top(result: ReservedLines) -> int:
    columns = result.columns
    if not len(columns):
        return 0
    most = [int(line.reserved.max()) for line in result.lines]
    return max(int(columns.live_max.max()), int(columns.reserved_max.max()), result.limit or 0, *most, 0)


def _steps(x: list[int], values: list[int], name: str) -> dict[str, Any]:
    """Each value holds until the next column, so the last one is said twice."""
    y = [*values, values[-1]]
    return {"x": x, "y": y, "name": name, "mode": "lines", "text": [*map(bytes_text, y)], "hovertemplate": "%{text}"}


def _draw_line(drawing: go.Figure, x: list[int], line: ReservedLine, *, number: int, colours: Palette) -> None:
    reached = line.last_column + 1
    drawing.add_scatter(**_steps(x[: reached + 1], line.reserved[:reached].tolist(), plain(line.name)))
    dash = _DASHES[number % len(_DASHES)]
    drawing.data[-1].update(line={"color": colours.ink, "width": 1.5 if number else 3, "dash": dash, "shape": "hv"})


def _draw_limit(drawing: go.Figure, result: ReservedLines, colours: Palette) -> None:
    limit = result.limit
    words = f"limit {bytes_text(limit or 0)}"
    drawing.add_hline(
        y=limit, line={"color": colours.bad, "width": 1.5}, annotation_text=words, annotation_position="top left"
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
