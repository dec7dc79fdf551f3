"""A file that is read while it is still on its way, like one that lies here already.

Its bytes come as parts, from another thread, and go to a file without a name: nothing of it is left, whatever
happens, and a visitor whose line is faster than the reader takes no memory. They may come packed (deflate without
a header), with parts as they are between: all are kept as they came, and what is packed is unpacked as it is read.
"""

from __future__ import annotations

import io
import tempfile
import threading
import time
import zlib
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any

from memviz.errors import TraceError
from memviz.fair_lock import Turn
from memviz.trace.unpickle.stream import AGAIN, TRUNCATED
from memviz.ui.shell.temporary_files import write_failure

_PIECE = 4 << 20
_PACKED_PIECE = 1 << 18
_PACKED_MORE = 1 << 16
"""Packed, a file may be a little larger than it was."""
_MOST_STRETCHES = 1 << 14
"""A page changes its mind about its line a few times."""

_TIGHTEST = 1032
"""Deflate packs nothing tighter. What a file may take of the machine goes by the size that was announced for it, so
that much of it has to be there before it is read."""


class TooMuch(Exception):
    """More bytes arrived than announced."""


@dataclass
class _Stretch:
    """A range of the received bytes that is either all compressed or all plain."""

    is_plain: bool
    end: int


class Arriving(io.BufferedIOBase):
    """The receiving thread calls `add` and `end`, the reading thread all else."""

    def __init__(
        self, size: int, *, packed: bool, gate: threading.Semaphore | Turn, patience_seconds: float = 60
    ) -> None:
        """`gate` is what the reader holds while it works; it lets go of it while it waits."""
        self.size = size
        self.arrived = 0
        """Bytes so far, as they came."""
        self.begun = self.touched = time.monotonic()
        """When the newest of them came."""
        self._packed = packed
        self._stretches: list[_Stretch] = []
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
        """Announced bytes that have not arrived yet."""
        return self.size + self.size // 8 + _PACKED_MORE - self.arrived

    @property
    def ended(self) -> bool:
        return self._ended

    def add(self, part: bytes, *, plain: bool = False) -> None:
        """Add a part; `plain` if it is not compressed, as others may be.

        Raises TooMuch for more bytes than announced, OSError where the disk is full. Both end the upload.
        """
        with self._changed:
            if self._ended or not part:
                return
            if len(part) > self.room or len(self._stretches) > _MOST_STRETCHES:
                self._end("The file is larger than announced.")
                raise TooMuch
            try:
                if self._kept is None:
                    # Unbuffered, so that a full disk is an error here and not when it is read.
                    self._kept = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed by `close`
                left = memoryview(part)
                while left:
                    left = left[self._kept.write(left) :]
            except OSError as error:
                self._free()
                self._end(write_failure(error))
                raise
            self.arrived += len(part)
            is_plain = plain or not self._packed
            if not self._stretches or self._stretches[-1].is_plain != is_plain:
                self._stretches.append(_Stretch(is_plain, self.arrived))
            self._stretches[-1].end = self.arrived
            self.touched = time.monotonic()
            self._changed.notify_all()

    def end(self, fault: str = "") -> None:
        """All have come; or none will come any more, and why."""
        with self._changed:
            self._end(fault)

    def _end(self, fault: str) -> None:
        self._ended, self._fault = True, self._fault or fault
        self._changed.notify_all()

    def _free(self) -> None:
        file, self._kept = self._kept, None
        if file is not None:
            # What did not fit is tried once more.
            with suppress(OSError):
                file.close()

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
        self._stretch = 0
        """The number of the one that is taken next."""
        self._packed_rest = b""
        self._unpacker: Any = zlib.decompressobj(-zlib.MAX_WBITS)
        self._has_more = False
        """The unpacker made as much as it may at a time, and may hold more."""
        self._is_midway = self._packed and self.size > 0
        """True inside a compressed stream, which marks its own end."""
        self._piece, self._piece_at = b"", 0

    def _next_piece(self) -> bool:
        self._piece_at += len(self._piece)
        self._piece = piece = self._read_piece()
        if self._piece_at + len(piece) > self.size:
            raise TraceError(f"It has more than the {self.size:,} bytes that were announced.", remedy=AGAIN)
        return bool(piece)

    def _read_piece(self) -> bytes:
        """The next bytes of the file itself; empty at its end only."""
        while not self._unpacker.eof:
            if self._packed_rest or self._has_more:
                try:
                    piece: bytes = self._unpacker.decompress(self._packed_rest, _PIECE)
                except zlib.error:
                    raise TraceError("The upload was damaged.", remedy="Open it again.") from None
                self._packed_rest, self._has_more = self._unpacker.unconsumed_tail, len(piece) == _PIECE
                if piece:
                    return piece
                continue
            received, is_plain = self._take()
            if not received and self._is_midway:
                raise TraceError(TRUNCATED, remedy=AGAIN)
            self._is_midway = not is_plain
            if is_plain:
                return received
            self._packed_rest = received
        return b""

    def _take(self) -> tuple[bytes, bool]:
        """Return the next received bytes, all plain or all compressed; they are empty only at the end."""
        if not self._is_ready():
            self._gate.release()
            try:
                with self._changed:
                    waiting = self.arrived
                    while not self._is_ready():
                        if not self._changed.wait(self._patience_seconds) and self.arrived == waiting:
                            self._ended, self._fault = True, "The upload was interrupted."
                        waiting = self.arrived
            finally:
                # Outside the condition, so that the receiving thread never waits for another reader's work.
                self._gate.acquire()
        with self._changed:
            if self._fault:
                raise TraceError(self._fault)
            if self.arrived < self._least:
                raise TraceError("The file is shorter than announced.", remedy=AGAIN)
            if self._kept is None or self._taken == self.arrived:
                return b"", True
            if self._taken == self._stretches[self._stretch].end:
                self._stretch += 1
            stretch = self._stretches[self._stretch]
            most = min(_PIECE if stretch.is_plain else _PACKED_PIECE, stretch.end - self._taken)
            self._kept.seek(self._taken)
            received = self._kept.read(most)
            # Where the next part is written.
            self._kept.seek(0, io.SEEK_END)
        self._taken += len(received)
        return received, stretch.is_plain

    def _is_ready(self) -> bool:
        return self._ended or self._taken < self.arrived >= self._least
