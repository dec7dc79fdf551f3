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
TRUNCATED = "The file is truncated: writing or copying it was interrupted."
AGAIN = "Dump or copy it again."

Progress = Callable[[int, int], None]
"""Bytes of the file read so far, and its size."""


Piece = bytes | memoryview


class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class PickleStream:
    """`read()` gives the next window; `reframe(rest)` says that `rest`, unread so far, starts with a header."""

    def __init__(self, file: Readable) -> None:
        self._file = file
        self._raw: Piece = b""
        self._at = 0
        """How far the raw bytes are handed out."""
        self._left_in_frame = 0
        self._framed = False
        self.consumed = 0
        """Bytes taken from the file so far."""

    def reframe(self, rest: bytes) -> None:
        self._raw, self._at = rest + bytes(self._raw[self._at :]), 0
        self._framed = True
        self._left_in_frame = 0

    def read(self) -> list[Piece]:
        """Return at least one byte until the file ends. They are pieces, so that joining copies each byte once."""
        pieces: list[Piece] = []
        size = 0
        while size < WINDOW // 2:
            if self._at == len(self._raw) and not self._fill():
                break
            if self._framed:
                more = self._framed_pieces()
            else:
                more = [memoryview(self._raw)[self._at :]]
                self._raw, self._at = b"", 0
            pieces += more
            size += sum(map(len, more))
        return pieces

    def _fill(self) -> bool:
        more = self._file.read(WINDOW)
        self.consumed += len(more)
        left = self._raw[self._at :]
        self._raw, self._at = (bytes(left) + more if len(left) else more), 0
        return bool(more)

    def _framed_pieces(self) -> list[Piece]:
        """Whole frames as far as the raw bytes go, headers left out."""
        raw, at, pieces = memoryview(self._raw), self._at, list[Piece]()
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
        self._at = at
        if not pieces and self._framed and not self._fill():
            raise TraceError(TRUNCATED, remedy=AGAIN)
        return pieces
