"""A trace's whole timeline as a small picture, drawn by the timeline's own rules."""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np
import numpy.typing as npt

from memviz.analysis.lifetimes import lifetimes
from memviz.analysis.timeline import timeline
from memviz.figures.colouring import colouring, pixel_palette
from memviz.figures.packed_timeline import spans
from memviz.figures.raster import NOTHING, View, allocation_grid, colour_grid, column_instants
from memviz.trace.model import DeviceTrace, Trace

_CLEAR = 0xFF00FF
"""A colour that no palette has."""
_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def thumbnail(trace: Trace, device: DeviceTrace, *, width: int = 92, height: int = 52, top: int | None = None) -> bytes:
    """A PNG with a transparent ground, for light and dark pages alike. `top` makes several share one scale."""
    return drawn_thumbnail(trace, device, width=width, height=height, top=top)[0]


def drawn_thumbnail(
    trace: Trace, device: DeviceTrace, *, width: int, height: int, top: int | None = None
) -> tuple[bytes, frozenset[str]]:
    """The picture, and the labels of the groups that have a pixel in it."""
    line, colours = timeline(device), colouring(trace, device)
    view = View(0, len(line.live), width, height, float(top or max(line.peak_bytes, 1)))
    grid = allocation_grid(spans(lifetimes(device), colours), column_instants(line.live, view), view)
    pixels = colour_grid(grid, colours.group, pixel_palette(colours, dark=False), _CLEAR)
    drawn = np.unique(colours.group[grid[grid != NOTHING]]).tolist()
    return _png(pixels, clear=_CLEAR), frozenset(colours.labels[group] for group in drawn)


def data_address(picture: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(picture).decode('ascii')}"


def _png(pixels: npt.NDArray[np.uint32], *, clear: int | None = None) -> bytes:
    """`pixels` are 0xRRGGBB, the first row at the bottom. Those equal to `clear` are transparent."""
    rows = pixels[::-1]
    alpha = np.where(rows == clear, 0, 255) if clear is not None else np.full(rows.shape, 255)
    channels = np.stack([rows >> 16 & 255, rows >> 8 & 255, rows & 255, alpha], axis=-1).astype(np.uint8)
    height, width = rows.shape
    # Each line starts with the number of its filter: none.
    lines = np.concatenate([np.zeros((height, 1), np.uint8), channels.reshape(height, -1)], axis=1)
    header = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    return b"".join(
        (_SIGNATURE, _chunk(b"IHDR", header), _chunk(b"IDAT", zlib.compress(lines.tobytes())), _chunk(b"IEND", b""))
    )


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
