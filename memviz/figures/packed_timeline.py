"""A device's timeline as the browser draws it, packed into one compressed piece, and as a thumbnail.

A million events become about a megabyte: starts as differences, lifetimes instead of ends, every column's bytes
sorted by significance (which is what makes them compress), and deflate, which browsers undo by themselves.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from memviz.analysis.cache import cached_on
from memviz.analysis.lifetimes import BEFORE, Lifetimes, lifetimes
from memviz.analysis.timeline import timeline
from memviz.figures.colouring import Colouring, colouring, pixel_palette
from memviz.figures.raster import PixelSpans, View, allocation_grid, colour_grid, column_instants
from memviz.trace.model import DeviceTrace, Ints4, Ints8, Trace

_LONGEST = 160
_LEVEL = 1
"""Higher levels save a tenth and take five times as long."""


@dataclass(frozen=True)
class PackedTimeline:
    header: dict[str, Any]
    """Names, types and lengths of the columns in `body`, and values small enough for JSON."""
    body: bytes


def pack_allocations(device: DeviceTrace) -> PackedTimeline:
    """Spans, and the reserved bytes wherever they change."""
    rows = lifetimes(device)
    return pack_spans_and_reserved(device, rows.start - BEFORE, rows.end - BEFORE, rows.size)


def pack_spans_and_reserved(device: DeviceTrace, start: Ints8, end: Ints8, size: Ints8) -> PackedTimeline:
    """Pack other spans than the device's own allocations, like `pack_allocations`: from `start` on, by start."""
    line = timeline(device)
    steps = np.flatnonzero(np.diff(line.reserved, prepend=line.reserved[0] - 1))
    columns = {
        "start": np.diff(start, prepend=0),
        "span": end - start,
        "size_low": size & 0xFFFFFFFF,
        "size_high": size >> 32,
        "reserved_at": np.diff(steps, prepend=0),
        "reserved_low": line.reserved[steps] & 0xFFFFFFFF,
        "reserved_high": line.reserved[steps] >> 32,
    }
    return pack({name: column.astype(np.uint32) for name, column in columns.items()}, events=len(device.events))


def pack_times(device: DeviceTrace, step_us: int = 1) -> PackedTimeline:
    """Microseconds since the first event, in multiples of `step_us`; sent only for the time axis."""
    since = np.maximum.accumulate(device.events.time_us) - device.events.time_us[:1]
    steps = np.diff(since // step_us * step_us, prepend=0)
    columns = {"time_low": (steps & 0xFFFFFFFF).astype(np.uint32), "time_high": (steps >> 32).astype(np.uint32)}
    return pack(columns, start_us=int(device.events.time_us[:1].sum()))


def pack_colouring(colouring: Colouring) -> PackedTimeline:
    """Pack the colour group of each allocation, and a flag where it is only probable."""
    columns: dict[str, npt.NDArray[Any]] = {"group": colouring.group}
    if colouring.probable is not None:
        columns["probable"] = np.packbits(colouring.probable, bitorder="little")
    return pack(columns)


def pack_sites(code: Ints4, labels: Sequence[str]) -> PackedTimeline:
    """The site label of each allocation, for the hover text."""
    return pack({"site": code.astype(np.uint32)}, labels=[label[:_LONGEST] for label in labels])


def pack_selection(rows: Ints8, count: int) -> PackedTimeline:
    """Pack a selection of allocations, one bit each."""
    chosen = np.zeros(count, dtype=np.uint8)
    chosen[rows] = 1
    return pack({"bits": np.packbits(chosen, bitorder="little")}, chosen=len(rows))


def spans(rows: Lifetimes, colouring: Colouring) -> PixelSpans:
    """Return the spans that the browser has after unpacking."""
    return PixelSpans(start=rows.start - BEFORE, end=rows.end - BEFORE, size=rows.size, group=colouring.group)


def as_sent(packed: PackedTimeline) -> dict[str, Any]:
    """Return the columns as JSON, which packed.js unpacks."""
    return {"header": packed.header, "body": base64.b64encode(packed.body).decode("ascii")}


def unpack(packed: PackedTimeline) -> dict[str, npt.NDArray[Any]]:
    """Unpack as the browser does; for tests and reports."""
    raw = np.frombuffer(zlib.decompress(packed.body), dtype=np.uint8)
    columns, at = {}, 0
    for name, kind, count in packed.header["columns"]:
        dtype = np.dtype(kind).newbyteorder("<")
        size = dtype.itemsize * count
        columns[name] = raw[at : at + size].reshape(dtype.itemsize, count).T.copy().view(dtype).reshape(count)
        at += size
    return columns


def pack(columns: dict[str, npt.NDArray[Any]], **more: Any) -> PackedTimeline:
    """Any columns in this layout, which `packed.js` reads; `more` goes into the header."""
    parts = []
    for column in columns.values():
        # Bytes regrouped by significance, lowest first.
        little = np.ascontiguousarray(column, dtype=column.dtype.newbyteorder("<"))
        parts.append(little.view(np.uint8).reshape(len(column), column.itemsize).T.tobytes())
    specs = [[name, column.dtype.name, len(column)] for name, column in columns.items()]
    return PackedTimeline({"columns": specs, **more}, zlib.compress(b"".join(parts), _LEVEL))


_CLEAR = 0xFF00FF
"""A colour that no palette has."""
_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def thumbnail(trace: Trace, device: DeviceTrace, *, width: int = 92, height: int = 52, top: int | None = None) -> bytes:
    """A PNG with a transparent background, for light and dark pages. `top` makes several share one scale."""
    line, colours = timeline(device), colouring(trace, device)
    view = View(0, len(line.live), width, height, float(top or max(line.peak_bytes, 1)))
    grid = allocation_grid(spans(lifetimes(device), colours), column_instants(line.live, view), view)
    return _png(colour_grid(grid, colours.group, pixel_palette(colours, dark=False), _CLEAR))


def thumbnail_address(trace: Trace, device: DeviceTrace) -> str:
    return cached_on(trace, ("thumbnail", device.name), lambda: data_address(thumbnail(trace, device)))


def data_address(picture: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(picture).decode('ascii')}"


def _png(pixels: npt.NDArray[np.uint32]) -> bytes:
    """`pixels` are 0xRRGGBB, the first row at the bottom. Those of colour _CLEAR are transparent."""
    rows = pixels[::-1]
    alpha = np.where(rows == _CLEAR, 0, 255)
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
