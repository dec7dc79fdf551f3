"""A file that is read while it is still on its way, like one that lies here already.

Its bytes come as parts, from another thread, and go to a file without a name: nothing of it is left, whatever
happens, and a visitor whose line is faster than the reader takes no memory. They may come packed (deflate without
a header): then they are kept as they came, and unpacked as they are read.
"""

from __future__ import annotations

import io
import tempfile
import threading
import time
import zlib
from contextlib import suppress
from typing import IO, Any, Protocol

from memviz.errors import TraceError
from memviz.trace.unpickle.stream import AGAIN, TRUNCATED
from memviz.ui.shell.exports import not_kept

_PIECE = 4 << 20
_PACKED_PIECE = 1 << 18
_PACKED_MORE = 1 << 16
"""Packed, a file may be a little larger than it was."""


_TIGHTEST = 200
"""The page packs nothing tighter. What a file may take of the machine goes by the size that was announced for it, so
that much of it has to be there before it is read."""


class Gate(Protocol):
    def acquire(self) -> Any: ...

    def release(self) -> None: ...


class TooMuch(Exception):
    """More came than was announced."""


class Arriving(io.BufferedIOBase):
    """`add` and `end` belong to whoever brings the parts, all else to whoever reads."""

    def __init__(self, size: int, *, packed: bool, gate: Gate, patience_seconds: float = 60) -> None:
        """`gate` is what the reader holds while it works; it lets go of it while it waits."""
        self.size = size
        self.arrived = 0
        """Bytes so far, as they came."""
        self.begun = self.touched = time.monotonic()
        """When the newest of them came."""
        self._packed = packed
        self._least = size // _TIGHTEST
        self._gate = gate
        self._patience_seconds = patience_seconds
        self._kept: IO[bytes] | None = None
        """Nothing is taken of the disk before anything has come."""
        self._changed = threading.Condition()
        self._ended = False
        self._fault = ""
        self._at = 0
        self._taken = 0
        self._packed_rest = b""
        self._piece, self._piece_at = b"", 0
        """The piece read last is at hand, for small steps back."""
        self._begin()

    # -- bringing

    @property
    def room(self) -> int:
        """Bytes that may still come of what was announced."""
        return self.size + self.size // 8 + _PACKED_MORE - self.arrived

    @property
    def ended(self) -> bool:
        return self._ended

    def add(self, part: bytes) -> None:
        """TooMuch where it is more than was announced; OSError where the disk is full. Both are its end."""
        with self._changed:
            if self._ended:
                return
            if len(part) > self.room:
                self._end("More of it came than was announced.")
                raise TooMuch
            try:
                self._write(part)
            except OSError as error:
                self._free()
                self._end(not_kept(error))
                raise
            self.arrived += len(part)
            self.touched = time.monotonic()
            self._changed.notify_all()

    def _write(self, part: bytes) -> None:
        if self._kept is None:
            self._kept = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        self._kept.seek(0, io.SEEK_END)
        self._kept.write(part)
        # A full disk shall be known now, and not when somebody reads.
        self._kept.flush()

    def end(self, fault: str = "") -> None:
        """All have come; or none will come any more, and why."""
        with self._changed:
            self._end(fault)

    def _end(self, fault: str) -> None:
        self._ended, self._fault = True, self._fault or fault
        self._changed.notify_all()

    def _free(self) -> None:
        kept, self._kept = self._kept, None
        if kept is not None:
            # What did not fit is tried once more.
            with suppress(OSError):
                kept.close()

    # -- reading

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, place: int, whence: int = io.SEEK_SET) -> int:
        goal = place + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence]
        if goal < self._piece_at:
            self._begin()
        while goal > self._piece_at + len(self._piece) and self._next_piece():
            pass
        self._at = max(min(goal, self._piece_at + len(self._piece)), 0)
        return self._at

    def read(self, size: int | None = -1, /) -> bytes:
        wanted = self.size - self._at if size is None or size < 0 else size
        pieces: list[bytes] = []
        while wanted > 0:
            begin = self._at - self._piece_at
            if begin == len(self._piece):
                if not self._next_piece():
                    break
                continue
            piece = self._piece[begin : begin + wanted] if begin or wanted < len(self._piece) else self._piece
            pieces.append(piece)
            self._at += len(piece)
            wanted -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def close(self) -> None:
        with self._changed:
            self._ended = True
            self._free()
        super().close()

    def _begin(self) -> None:
        self._at = 0
        self._taken = 0
        self._packed_rest = b""
        self._unpacker: Any = zlib.decompressobj(-zlib.MAX_WBITS) if self._packed else None
        self._piece, self._piece_at = b"", 0

    def _next_piece(self) -> bool:
        piece = self._unpacked() if self._packed else self._take(_PIECE)
        self._piece_at += len(self._piece)
        self._piece = piece
        if self._piece_at + len(piece) > self.size:
            raise TraceError(f"It has more than the {self.size:,} bytes that were announced.", remedy=AGAIN)
        return bool(piece)

    def _unpacked(self) -> bytes:
        piece = b""
        while not piece and not self._unpacker.eof:
            packed = self._packed_rest or self._take(_PACKED_PIECE)
            if not packed:
                raise TraceError(TRUNCATED, remedy=AGAIN)
            try:
                piece = self._unpacker.decompress(packed, _PIECE)
            except zlib.error:
                raise TraceError("It was damaged on its way here.", remedy="Open it again.") from None
            self._packed_rest = self._unpacker.unconsumed_tail
        return piece

    def _take(self, most: int) -> bytes:
        """What has arrived and was not taken; empty at the end only."""
        if not self._is_ready():
            self._wait()
        with self._changed:
            if self._fault:
                raise TraceError(self._fault)
            if self.arrived < self._least:
                raise TraceError("Less of it came than was announced.", remedy=AGAIN)
            if self._kept is None:
                return b""
            self._kept.seek(self._taken)
            taken = self._kept.read(most)
        self._taken += len(taken)
        return taken

    def _is_ready(self) -> bool:
        return self._ended or self._taken < self.arrived >= self._least

    def _wait(self) -> None:
        self._gate.release()
        try:
            with self._changed:
                waiting = self.arrived
                while not self._is_ready():
                    if not self._changed.wait(self._patience_seconds) and self.arrived == waiting:
                        self._ended, self._fault = True, "Its upload stopped half way."
                    waiting = self.arrived
        finally:
            # Only with the condition let go: whoever brings the next part must never wait for another's work.
            self._gate.acquire()
