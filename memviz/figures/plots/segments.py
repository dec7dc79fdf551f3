"""Segments with the blocks in them, and the use of reserved bytes: tensors, rounding and kinds of free memory.

Thousands of small blocks would make an unreadable figure. So the largest ones are drawn, and each segment's
background shows the exact totals of the segment on hover.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from memviz.analysis.purpose.categories import Categories
from memviz.analysis.segments import Fragmentation, SegmentsAt, TileKind, Tiles
from memviz.figures.theme import (
    HOVER_TEXT,
    Palette,
    byte_axis,
    figure,
    hatched,
    lines,
    moment,
    nothing_to_show,
    palette,
)
from memviz.trace.model import Ints8, address_text
from memviz.units import bytes_text, count_text, percent_text

MOST_SEGMENTS = 500
MOST_TILES = 1500
_ROWS = 30
_ROW_HEIGHT = 18
_BAR = 0.8
_GAP = 0.004


@dataclass(frozen=True)
class _Places:
    """Position of each drawn segment: its row, and the bytes before it in that row."""

    row: dict[int, int]
    before: dict[int, int]
    row_bytes: int


@dataclass(frozen=True)
class _Layer:
    """Tiles with the same colour and line."""

    name: str
    tiles: Ints8
    marker: dict[str, Any]


def plot_segments(result: SegmentsAt, *, categories: Categories | None = None, dark: bool = False) -> go.Figure:
    """Live blocks are coloured by `categories` (of the device's lifetimes), if given."""
    colours, segments = palette(dark), result.segments
    order = (-segments.size).argsort(kind="stable")[:MOST_SEGMENTS]
    title = f"{count_text(len(segments))} segments, {bytes_text(result.reserved_bytes)} reserved"
    title += f"; the {len(order)} largest are drawn" if len(order) < len(segments) else ""
    drawing = figure(dark=dark, title=title, barmode="overlay")
    if not len(order):
        return nothing_to_show(drawing, "No memory is reserved here.")
    places = _places(segments.size[order].tolist(), order.tolist())
    drawing.add_bar(
        orientation="h",
        width=_BAR,
        base=list(places.before.values()),
        x=segments.size[list(places.row)].tolist(),
        y=list(places.row.values()),
        hovertext=[_segment_text(result, segment) for segment in places.row],
        hovertemplate=HOVER_TEXT,
        showlegend=False,
        marker={"color": colours.fill, "line": {"width": 0}},
    )
    for layer in _layers(result, _largest(result, order), categories, colours):
        drawing.add_bar(**_bars(result, layer, places))
    rows = max(places.row.values()) + 1
    drawing.update_layout(height=110 + _ROW_HEIGHT * max(rows, 6))
    drawing.update_xaxes(title_text="largest segments first", rangemode="tozero", **byte_axis(places.row_bytes))
    drawing.update_yaxes(range=[rows - 0.5, -0.5], showticklabels=False, showgrid=False)
    return drawing


def _places(sizes: list[int], segments: list[int]) -> _Places:
    row_bytes = max(sizes[0], sum(sizes) // _ROWS)
    gap = int(row_bytes * _GAP)
    rows: dict[int, int] = {}
    before: dict[int, int] = {}
    row = at = filled = 0
    for segment, size in zip(segments, sizes, strict=True):
        if filled and filled + size > row_bytes:
            row, at, filled = row + 1, 0, 0
        rows[segment], before[segment] = row, at
        at, filled = at + size + gap, filled + size
    return _Places(rows, before, row_bytes)


def _largest(result: SegmentsAt, order: Ints8) -> Ints8:
    """Rows of the tiles that are drawn one by one, by address."""
    segments, tiles = result.segments, result.tiles
    is_selected = segments.size < 0
    is_selected[order] = True
    candidates = is_selected[tiles.segment].nonzero()[0]
    largest: Ints8 = candidates[(-tiles.size[candidates]).argsort(kind="stable")[:MOST_TILES]]
    largest.sort()
    return largest


def _segment_text(result: SegmentsAt, segment: int) -> str:
    segments, tiles = result.segments, result.tiles
    first, last = tiles.segment.searchsorted(segment), tiles.segment.searchsorted(segment, side="right")
    kind, size = tiles.kind[first:last], tiles.size[first:last]
    is_used = kind != TileKind.FREE
    return lines(
        f"segment {address_text(int(segments.address[segment]))}, {bytes_text(int(segments.size[segment]))}",
        f"{'large' if segments.is_large[segment] else 'small'} pool"
        + (", expandable" if segments.is_expandable[segment] else ""),
        f"{count_text(int(is_used.sum()))} blocks, {bytes_text(int(size[is_used].sum()))}; "
        f"free {bytes_text(int(size[~is_used].sum()))}",
    )


def _layers(result: SegmentsAt, chosen: Ints8, categories: Categories | None, colours: Palette) -> list[_Layer]:
    tiles, edge = result.tiles, {"width": 0.5, "color": colours.page}
    kind, layers = tiles.kind[chosen], []
    live = chosen[kind == TileKind.LIVE]
    if categories is None:
        layers.append(_Layer("live", live, {"color": colours.ink_3, "line": edge}))
    else:
        of_live = categories.category[tiles.row[live]]
        for category in colours.categories:
            marker = {"color": colours.category(category), "line": edge}
            layers.append(_Layer(category.label, live[of_live == category], marker))
    waiting = {"color": colours.warn, "line": edge}
    free = {"color": colours.page, "pattern": hatched(colours), "line": {"width": 0.5, "color": colours.line}}
    layers.append(_Layer("waiting to be freed", chosen[kind == TileKind.WAITING], waiting))
    layers.append(_Layer("free", chosen[kind == TileKind.FREE], free))
    return [layer for layer in layers if len(layer.tiles)]


def _bars(result: SegmentsAt, layer: _Layer, places: _Places) -> dict[str, Any]:
    segments, tiles = result.segments, result.tiles
    segment = tiles.segment[layer.tiles]
    inside = (tiles.address[layer.tiles] - segments.address[segment]).tolist()
    return {
        "orientation": "h",
        "width": _BAR,
        "name": layer.name,
        "marker": layer.marker,
        "base": [places.before[number] + offset for number, offset in zip(segment.tolist(), inside, strict=True)],
        "x": tiles.size[layer.tiles].tolist(),
        "y": [places.row[number] for number in segment.tolist()],
        "hovertext": [_tile_text(tiles, tile, layer.name) for tile in layer.tiles.tolist()],
        "hovertemplate": HOVER_TEXT,
    }


def _tile_text(tiles: Tiles, tile: int, name: str) -> str:
    size, requested = int(tiles.size[tile]), int(tiles.requested[tile])
    text = f"{name}, {bytes_text(size)}"
    if requested not in (0, size):
        text += f" for {bytes_text(requested)} asked"
    return lines(text, address_text(int(tiles.address[tile])))


_PARTS = {
    "live": "live",
    "waiting": "waiting to be freed",
    "rounding": "lost to rounding",
    "free_remainders": "free, in segments in use",
    "free_segments": "free, whole segments",
    "free_pages": "free, mapped pages",
    "unknown": "in unknown segments",
}
"""From the bottom up: used bytes, then free ones, starting with those that nothing releases."""

_HATCHES = {"free_remainders": "/", "free_segments": "\\", "free_pages": "x"}


def plot_fragmentation(result: Sequence[Fragmentation], *, dark: bool = False) -> go.Figure:
    """Over time. A thousand events make a figure of about 200 KB."""
    drawing = figure(dark=dark, title="Reserved memory, by what it is used for", hovermode="x unified")
    if not result:
        return nothing_to_show(drawing, "There are no events to show.")
    colours, events = palette(dark), [figures.event for figures in result]
    for part, name in _PARTS.items():
        sizes = [getattr(figures, part) for figures in result]
        if not any(sizes):
            continue
        colour, hatch, line = _fill(part, colours)
        drawing.add_scatter(
            x=events,
            y=sizes,
            name=name,
            mode="lines",
            stackgroup="reserved",
            text=[bytes_text(size) for size in sizes],
            hovertemplate="%{text}",
            line={**line, "shape": "hv"},
            **({"fillpattern": hatch} if hatch else {"fillcolor": colour}),
        )
    drawing.update_xaxes(title_text="event", tickformat=",d")
    drawing.update_yaxes(**byte_axis(max(figures.reserved for figures in result)), rangemode="tozero")
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
        if not size:
            continue
        colour, hatch, line = _fill(part, colours)
        drawing.add_bar(
            orientation="h",
            x=[size],
            y=[0],
            name=name,
            hovertext=[f"{name}: {bytes_text(size)}, {percent_text(size, result.reserved)}"],
            hovertemplate=HOVER_TEXT,
            marker={"color": colours.page, "pattern": hatch, "line": line} if hatch else {"color": colour},
        )
    drawing.update_xaxes(**byte_axis(result.reserved))
    drawing.update_yaxes(showticklabels=False, showgrid=False)
    return drawing


def _fill(part: str, colours: Palette) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Return the colour, the hatching if any, and the line around it."""
    own = {"waiting": colours.warn, "rounding": colours.ink, "unknown": colours.before}
    colour = own.get(part, colours.ink_3)
    hatch = hatched(colours, _HATCHES[part]) if part in _HATCHES else {}
    return colour, hatch, {"width": 0.5 if hatch else 0, "color": colour}
