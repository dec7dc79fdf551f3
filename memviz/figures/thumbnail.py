"""A trace's whole timeline as a small picture, drawn by the timeline's own rules."""

from __future__ import annotations

import base64

from memviz.analysis.lifetimes import lifetimes
from memviz.analysis.timeline import timeline
from memviz.figures.colouring import colouring, pixel_palette
from memviz.figures.packed_timeline import spans
from memviz.figures.png import png
from memviz.figures.raster import View, allocation_grid, colour_grid, column_instants
from memviz.trace.model import DeviceTrace, Trace

_CLEAR = 0xFF00FF
"""A colour that no palette has."""


def thumbnail(trace: Trace, device: DeviceTrace, *, width: int = 92, height: int = 52, top: int | None = None) -> bytes:
    """A PNG with a transparent ground, for light and dark pages alike. `top` makes several share one scale."""
    line, colours = timeline(device), colouring(trace, device)
    view = View(0, len(line.live), width, height, float(top or max(line.peak_bytes, 1)))
    grid = allocation_grid(spans(lifetimes(device), colours), column_instants(line.live, view), view)
    pixels = colour_grid(grid, colours.group, pixel_palette(colours, dark=False), _CLEAR)
    return png(pixels, clear=_CLEAR)


def data_address(picture: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(picture).decode('ascii')}"
