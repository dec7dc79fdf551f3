"""The memory timeline as pixels: which allocation is where, and in which colour.

This is the reference for the drawing in the browser (`ui/components/memory_timeline/raster.js`), which a test
holds to it pixel by pixel, and what thumbnails and PNG exports are made with.

Instants are the moments between events: instant 0 is before the first event, instant i after event i - 1. Each
pixel column covers a range of instants and shows the one with most live bytes, so no peak is ever lost.
There the live allocations are stacked, and a pixel shows the allocation that covers its centre. Cost grows with
columns times live allocations, not with events.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from memviz.trace.model import Bytes1, Ints4, Ints8

NOTHING = -1
SHADES = 5
_HASH = 0x9E3779B1


@dataclass(frozen=True, eq=False)
class PixelSpans:
    """Allocations by start: live at instants start <= i < end."""

    start: Ints8
    end: Ints8
    size: Ints8
    group: Bytes1
    """Colour, and place in the stack from the bottom up."""


@dataclass(frozen=True)
class View:
    first: float
    """Left edge, in instants; may lie between two."""
    last: float
    columns: int
    rows: int
    top: float
    """Bytes at the upper edge."""
    bottom: float = 0.0
    """Bytes at the lower edge."""


def column_instants(live: Ints8, view: View) -> Ints8:
    """The instant that each column shows: the first of its range with most live bytes."""
    edges = view.first + np.arange(view.columns + 1) * ((view.last - view.first) / view.columns)
    begin = np.clip(np.floor(edges[:-1]).astype(np.int64), 0, len(live) - 1)
    end = np.clip(np.maximum(np.floor(edges[1:]).astype(np.int64), begin + 1), 1, len(live))
    return np.array([low + int(live[low:high].argmax()) for low, high in zip(begin, end, strict=True)])


def allocation_grid(spans: PixelSpans, instants: Ints8, view: View, *, by_group: bool = True) -> Ints4:
    """Row of the allocation at each pixel, [row from the bottom, column]; NOTHING above the stack."""
    centres = view.bottom + (np.arange(view.rows) + 0.5) * ((view.top - view.bottom) / view.rows)
    grid = np.full((view.rows, len(instants)), NOTHING, dtype=np.int32)
    previous = -1
    for column, instant in enumerate(instants.tolist()):
        if instant == previous:
            grid[:, column] = grid[:, column - 1]
            continue
        stack = stack_at(spans, instant, by_group=by_group)
        tops = np.cumsum(spans.size[stack])
        place = np.searchsorted(tops, centres, side="right")
        covered = place < len(stack)
        grid[covered, column] = stack[place[covered]]
        previous = instant
    return grid


def stack_at(spans: PixelSpans, instant: int, *, by_group: bool = True) -> Ints8:
    """Live allocations from the bottom up: by group and then age, or by age alone."""
    begun = int(np.searchsorted(spans.start, instant, side="right"))
    alive = np.flatnonzero(spans.end[:begun] > instant)
    return alive[np.argsort(spans.group[alive], kind="stable")] if by_group else alive


def colour_grid(grid: Ints4, group: Bytes1, palette: npt.NDArray[np.uint32], page: int) -> npt.NDArray[np.uint32]:
    """One colour a pixel. `palette[group, shade, edge]`: edge 0 is the inside, 1 a faint upper edge, 2 a clear one."""
    inside = grid >= 0
    row = np.where(inside, grid, 0)
    shade = (row.astype(np.uint32) * np.uint32(_HASH)) % np.uint32(SHADES)
    colours = palette[group[row], shade, _edges(grid)] if len(group) else np.zeros(grid.shape, dtype=np.uint32)
    return np.where(inside, colours, np.uint32(page)).astype(np.uint32)


def _edges(grid: Ints4) -> Bytes1:
    """The uppermost pixel of an allocation over 2 pixels high is its edge, fainter up to 4."""
    rows = len(grid)
    edge = np.zeros(grid.shape, dtype=np.uint8)
    changes = np.ones(grid.shape, dtype=np.bool_)
    changes[1:] = grid[1:] != grid[:-1]
    # Height so far: distance to the latest change below, itself included.
    begin = np.maximum.accumulate(np.where(changes, np.arange(rows)[:, None], 0), axis=0)
    height = np.arange(rows)[:, None] - begin + 1
    last = np.ones(grid.shape, dtype=np.bool_)
    last[:-1] = changes[1:]
    edge[last & (height > 2)] = 1
    edge[last & (height > 4)] = 2
    return edge
