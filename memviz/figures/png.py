"""Pixels as a PNG, in twenty lines of the standard library."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import numpy.typing as npt

_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def png(pixels: npt.NDArray[np.uint32], *, clear: int | None = None) -> bytes:
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
