"""What is live at a moment, as bars: the groups, largest first, and what is left of them."""

from __future__ import annotations

from dataclasses import dataclass

import plotly.graph_objects as go

from memviz.analysis.groups import Group
from memviz.analysis.peak import LiveSet
from memviz.analysis.purpose.kinds import BEFORE_RECORDING
from memviz.figures.text import byte_axis, lines, moment, plain, rows_axis
from memviz.figures.theme import MONO, Palette, figure, nothing_to_show, palette
from memviz.trace.model import Category
from memviz.units import bytes_text, count_text, percent_text

MOST_ROWS = 30
_ROW_HEIGHT = 24


@dataclass(frozen=True)
class _Row:
    label: str
    bytes: int
    count: int
    colour: str


def plot_peak(result: LiveSet, *, dark: bool = False) -> go.Figure:
    """At most `MOST_ROWS` groups are drawn; the rest is one row, so that the bars add up to `live_bytes`."""
    title = f"{bytes_text(result.live_bytes)} live {moment(result.event)}, by {result.live.by}"
    drawing = figure(dark=dark, title=title)
    rows = _rows(result, palette(dark))
    if not rows:
        return nothing_to_show(drawing, "Nothing is live here.")
    drawing.add_bar(
        orientation="h",
        x=[row.bytes for row in rows],
        y=list(range(len(rows))),
        marker={"color": [row.colour for row in rows]},
        text=[f"{bytes_text(row.bytes)} · {percent_text(row.bytes, result.live_bytes)}" for row in rows],
        textposition="outside",
        cliponaxis=False,
        hovertext=[_hover(row, result.live_bytes) for row in rows],
        hovertemplate="%{hovertext}<extra></extra>",
    )
    largest = max(row.bytes for row in rows)
    drawing.update_layout(height=100 + _ROW_HEIGHT * len(rows))
    # Room for the figures at the end of the longest bar.
    drawing.update_xaxes(**byte_axis(largest), range=[0, max(largest, 1) * 1.18])
    drawing.update_yaxes(**rows_axis([plain(row.label, 60) for row in rows]), tickfont={"family": MONO})
    return drawing


def _rows(result: LiveSet, colours: Palette) -> list[_Row]:
    live = result.live
    rows = [
        _Row(group.label, group.bytes, group.count, _colour(group, live.by, colours))
        for group in live.groups[:MOST_ROWS]
    ]
    count = live.count - sum(row.count for row in rows)
    if count:
        left = live.bytes - sum(row.bytes for row in rows)
        rows.append(_Row("everything else", left, count, colours.before))
    return rows


def _colour(group: Group, by: str, colours: Palette) -> str:
    """Colour means a category; a row that is none is told by its label."""
    if by != "category":
        return colours.ink_3
    if group.label == BEFORE_RECORDING:
        return colours.before
    return colours.category(next(category for category in Category if category.label == group.label))


def _hover(row: _Row, whole: int) -> str:
    return lines(
        plain(row.label, 160),
        f"{bytes_text(row.bytes)} ({count_text(row.bytes)} B), {percent_text(row.bytes, whole)}",
        f"{count_text(row.count)} allocation{'s' if row.count != 1 else ''}",
    )
