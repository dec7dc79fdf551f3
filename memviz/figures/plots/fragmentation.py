"""Where the reserved bytes go: tensors, rounding, and free memory of the kinds that differ in what helps."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from memviz.analysis.reserved.fragmentation import Fragmentation, FragmentationSeries
from memviz.figures.text import byte_axis, moment
from memviz.figures.theme import Palette, figure, hatched, nothing_to_show, palette
from memviz.units import bytes_text, percent_text

_PARTS = {
    "live": "live",
    "waiting": "waiting to be freed",
    "rounding": "lost to rounding",
    "free_remainders": "free, in segments in use",
    "free_segments": "free, whole segments",
    "free_pages": "free, mapped pages",
    "unknown": "in segments that are not known",
}
"""From the ground up: what is used, then what is free, that which nothing returns first."""

_HATCHES = {"free_remainders": "/", "free_segments": "\\", "free_pages": "x"}


def plot_fragmentation(result: FragmentationSeries, *, dark: bool = False) -> go.Figure:
    """Over time. A thousand events make a figure of about 200 KB."""
    drawing = figure(dark=dark, title="Reserved memory, by what it is used for", hovermode="x unified")
    if not len(result):
        return nothing_to_show(drawing, "There are no events to show.")
    colours, events = palette(dark), result.event.tolist()
    for part, name in _PARTS.items():
        sizes = getattr(result, part).tolist()
        if any(sizes):
            drawing.add_scatter(**_area(events, sizes, name), **_filled(part, colours))
    drawing.update_xaxes(title_text="event", tickformat=",d")
    drawing.update_yaxes(**byte_axis(int(result.reserved.max())), rangemode="tozero")
    return drawing


def plot_fragmentation_at(result: Fragmentation, *, dark: bool = False) -> go.Figure:
    """After one event: one bar, with each part's bytes in it."""
    title = f"{bytes_text(result.reserved)} reserved {moment(result.event)}"
    drawing = figure(dark=dark, title=title, barmode="stack", height=150)
    if not result.reserved:
        return nothing_to_show(drawing, "No memory is reserved here.")
    colours = palette(dark)
    for part, name in _PARTS.items():
        size = getattr(result, part)
        if size:
            drawing.add_bar(**_bar(size, name, result.reserved), marker=_marker(part, colours))
    drawing.update_xaxes(**byte_axis(result.reserved))
    drawing.update_yaxes(showticklabels=False, showgrid=False)
    return drawing


def _area(events: list[int], sizes: list[int], name: str) -> dict[str, Any]:
    return {
        "x": events,
        "y": sizes,
        "name": name,
        "mode": "lines",
        "stackgroup": "reserved",
        "text": [bytes_text(size) for size in sizes],
        "hovertemplate": "%{text}",
    }


def _bar(size: int, name: str, whole: int) -> dict[str, Any]:
    return {
        "orientation": "h",
        "x": [size],
        "y": [0],
        "name": name,
        "hovertext": [f"{name}: {bytes_text(size)}, {percent_text(size, whole)}"],
        "hovertemplate": "%{hovertext}<extra></extra>",
    }


def _colour(part: str, colours: Palette) -> str:
    known = {"waiting": colours.warn, "rounding": colours.ink, "unknown": colours.before}
    return known.get(part, colours.ink_3)


def _filled(part: str, colours: Palette) -> dict[str, Any]:
    colour = _colour(part, colours)
    if part not in _HATCHES:
        return {"line": {"width": 0, "color": colour, "shape": "hv"}, "fillcolor": colour}
    line = {"width": 0.5, "color": colour, "shape": "hv"}
    return {"line": line, "fillpattern": hatched(colours, _HATCHES[part])}


def _marker(part: str, colours: Palette) -> dict[str, Any]:
    colour = _colour(part, colours)
    if part not in _HATCHES:
        return {"color": colour}
    line = {"width": 0.5, "color": colour}
    return {"color": colours.page, "pattern": hatched(colours, _HATCHES[part]), "line": line}
