"""Bars of a peak: the groups that are live then, and the changes from one trace's peak to another's."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import plotly.graph_objects as go

from memviz.analysis.comparing.changes import Changes
from memviz.analysis.groups import Group
from memviz.analysis.peak import LiveSet
from memviz.analysis.purpose.categories import BEFORE_RECORDING
from memviz.figures.theme import (
    HOVER_TEXT,
    MONO,
    Palette,
    byte_axis,
    figure,
    lines,
    moment,
    nothing_to_show,
    palette,
    plain,
    rows_axis,
)
from memviz.results.headline import letter
from memviz.trace.model import Category
from memviz.units import bytes_text, count_text, counted, delta_text, percent_text

MOST_ROWS = 30
_ROW_HEIGHT = 24
_ROOM = 0.16


@dataclass(frozen=True)
class _Bar:
    label: str
    bytes: int
    count: int
    colour: str


def _add_rows(drawing: go.Figure, labels: list[str], **bars: Any) -> None:
    """Add one horizontal bar per label, the first on top."""
    drawing.add_bar(
        orientation="h",
        y=list(range(len(labels))),
        textposition="outside",
        cliponaxis=False,
        hovertemplate=HOVER_TEXT,
        showlegend=False,
        **bars,
    )
    drawing.update_yaxes(**rows_axis([plain(label, 60) for label in labels]), tickfont={"family": MONO})


def plot_peak(result: LiveSet, *, dark: bool = False) -> go.Figure:
    """At most `MOST_ROWS` groups are drawn; the rest is one row, so that the bars add up to `live_bytes`."""
    title = f"{bytes_text(result.live_bytes)} live {moment(result.event)}, by {result.live.by}"
    drawing = figure(dark=dark, title=title)
    rows = _bars(result, palette(dark))
    if not rows:
        return nothing_to_show(drawing, "Nothing is live here.")
    _add_rows(
        drawing,
        [row.label for row in rows],
        x=[row.bytes for row in rows],
        marker={"color": [row.colour for row in rows]},
        text=[f"{bytes_text(row.bytes)} · {percent_text(row.bytes, result.live_bytes)}" for row in rows],
        hovertext=[
            lines(
                plain(row.label, 160),
                f"{bytes_text(row.bytes)} ({count_text(row.bytes)} B), {percent_text(row.bytes, result.live_bytes)}",
                counted(row.count, "allocation"),
            )
            for row in rows
        ],
    )
    largest = max(row.bytes for row in rows)
    drawing.update_layout(height=100 + _ROW_HEIGHT * len(rows))
    # Room for the figures at the end of the longest bar.
    drawing.update_xaxes(**byte_axis(largest), range=[0, max(largest, 1) * 1.18])
    return drawing


def _bars(result: LiveSet, colours: Palette) -> list[_Bar]:
    live = result.live
    groups = live.groups[:MOST_ROWS]
    rows = [_Bar(group.label, group.bytes, group.count, _colour(group, live.by, colours)) for group in groups]
    count = live.count - sum(row.count for row in rows)
    if count:
        left = live.bytes - sum(row.bytes for row in rows)
        rows.append(_Bar("everything else", left, count, colours.before))
    return rows


def _colour(group: Group, by: str, colours: Palette) -> str:
    """Colour of the category; rows of other groupings have one neutral colour."""
    if by != "category":
        return colours.ink_3
    if group.label == BEFORE_RECORDING:
        return colours.before
    return colours.category(next(category for category in Category if category.label == group.label))


@dataclass(frozen=True)
class _Step:
    label: str
    before: tuple[int, int]
    """Bytes and allocations in the baseline."""
    after: tuple[int, int]

    @property
    def change(self) -> int:
        return self.after[0] - self.before[0]


def plot_waterfall(result: Changes, *, other: int = 1, dark: bool = False) -> go.Figure:
    """From the baseline to the trace number `other`. The axis is the change: 0 is the baseline's peak.

    At most `MOST_ROWS` changes are drawn; the rest is one row, so that the last bar ends at the other's peak.
    """
    names = [plain(result.moments[side].source, 40) for side in (0, other)]
    title = f"{delta_text(result.delta(other))} from {names[0]} to {names[1]}, by {result.by}"
    drawing = figure(dark=dark, title=title)
    steps = _steps(result, other)
    if not steps:
        return nothing_to_show(drawing, "Every row holds the same bytes in both.")
    colours = palette(dark)
    ends = list(accumulate(step.change for step in steps))
    _add_rows(
        drawing,
        [step.label for step in steps],
        base=[0, *ends[:-1]],
        x=[step.change for step in steps],
        marker={"color": [colours.grew if step.change > 0 else colours.shrank for step in steps]},
        text=[delta_text(step.change) for step in steps],
        hovertext=[_step_hover(step) for step in steps],
    )
    # A thin line from where each bar ends to where the next begins.
    drawing.add_scatter(
        x=[x for end in ends[:-1] for x in (end, end, None)],
        y=[y for row in range(len(ends) - 1) for y in (row, row + 1, None)],
        mode="lines",
        line={"width": 1, "color": colours.ink_3},
        hoverinfo="skip",
        showlegend=False,
    )
    top, bottom = max(0, *ends), min(0, *ends)
    room = max(int((top - bottom) * _ROOM), 1)
    drawing.update_layout(height=130 + _ROW_HEIGHT * len(steps), margin_t=66)
    drawing.update_xaxes(**byte_axis(top, bottom), range=[bottom - room, top + room])
    _mark_peaks(drawing, result, other, colours)
    return drawing


def _steps(result: Changes, other: int) -> list[_Step]:
    """The largest changes in the order of the result; all others are the last row."""
    changed = [row for row in result.rows if row.bytes[other] != row.bytes[0]]
    largest = sorted(changed, key=lambda row: -abs(row.delta(other)))[:MOST_ROWS]
    selected = [row for row in changed if row in largest]
    steps = [
        _Step(row.thing.name, (row.bytes[0], row.counts[0]), (row.bytes[other], row.counts[other])) for row in selected
    ]
    left = [row for row in result.rows if row not in selected]
    sums = ((sum(row.bytes[side] for row in left), sum(row.counts[side] for row in left)) for side in (0, other))
    rest = _Step("everything else", *sums)
    return [*steps, rest] if rest.change else steps


def _mark_peaks(drawing: go.Figure, result: Changes, other: int, colours: Palette) -> None:
    change = result.delta(other)
    # The lower label is to the left of its line, so that the two never overlap.
    anchors = ("right", "left") if change >= 0 else ("left", "right")
    places = [(letter(0), 0, 0, "solid"), (letter(other), change, other, "dash")]
    for (name, x, side, dash), anchor in zip(places, anchors, strict=True):
        drawing.add_vline(x=x, line={"width": 1, "dash": dash, "color": colours.ink})
        drawing.add_annotation(
            text=f"{name} {bytes_text(result.moments[side].live_bytes)}",
            x=x,
            y=1,
            yref="paper",
            yanchor="bottom",
            xanchor=anchor,
            showarrow=False,
            font_color=colours.ink,
        )


def _step_hover(step: _Step) -> str:
    (before, count_before), (after, count_after) = step.before, step.after
    return lines(
        plain(step.label, 160),
        f"{bytes_text(before)} to {bytes_text(after)}, {delta_text(step.change)}",
        f"{count_text(count_before)} to {count_text(count_after)} allocations",
    )
