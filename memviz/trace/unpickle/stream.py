"""Bytes of a pickle in windows, with the frames of protocol 4 taken out.

From protocol 4 on a pickle is cut into frames of about 64 KiB, whose nine-byte headers may stand between
any two objects, in the middle of an event too. Taking them out first lets everything behind see one
uninterrupted stream of opcodes. Objects above 64 KiB stand outside of frames: there the bytes are passed
on as they are, until the reader meets the next header and hands the rest back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from memviz.errors import TraceError

WINDOW = 4 << 20
_FRAME = 0x95
_HEADER = 9
TRUNCATED = "The file ends in the middle of its data; it was cut off while it was written or copied."
AGAIN = "Dump or copy it again."

Progress = Callable[[int, int], None]
"""Bytes of the file read so far, and its size."""


class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class PickleStream:
    """`read()` gives the next window; `reframe(rest)` says that `rest`, unread so far, starts with a header."""

    def __init__(self, file: Readable) -> None:
        self._file = file
        self._raw = b""
        self._left_in_frame = 0
        self._framed = False
        self.consumed = 0
        """Bytes taken from the file so far."""

    def reframe(self, rest: bytes) -> None:
        self._raw = rest + self._raw
        self._framed = True
        self._left_in_frame = 0

    def read(self) -> bytes:
        """At least one byte unless the file has ended."""
        pieces: list[bytes | memoryview] = []
        size = 0
        while size < WINDOW:
            if not self._raw and not self._fill():
                break
            piece = self._framed_piece() if self._framed else self._unframed_piece()
            pieces.append(piece)
            size += len(piece)
        return b"".join(pieces)

    def _fill(self) -> bool:
        more = self._file.read(WINDOW)
        self.consumed += len(more)
        self._raw += more
        return bool(more)

    def _unframed_piece(self) -> bytes:
        piece, self._raw = self._raw, b""
        return piece

    def _framed_piece(self) -> bytes:
        """Whole frames as far as the raw bytes go, headers left out."""
        raw, at, pieces = memoryview(self._raw), 0, []
        while at < len(raw):
            if self._left_in_frame:
                step = min(self._left_in_frame, len(raw) - at)
                pieces.append(raw[at : at + step])
                self._left_in_frame -= step
                at += step
            elif raw[at] != _FRAME:
                # Not in a frame, and no header: a large object, or the end of the pickle.
                self._framed = False
                break
            elif at + _HEADER > len(raw):
                break
            else:
                self._left_in_frame = int.from_bytes(raw[at + 1 : at + _HEADER], "little")
                at += _HEADER
        joined = b"".join(pieces)
        self._raw = bytes(raw[at:])
        if not joined and self._framed and not self._fill():
            raise TraceError(TRUNCATED, remedy=AGAIN)
        return joined
