"""What one reading has taken so far. It ends where that is too much, and where nobody waits for it any more.

What is charged is what is *made* from a file: a few bytes can name one long list a thousand times over, so counting
what is read would say nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from memviz.errors import TraceError
from memviz.trace.limits import Limits

IsWanted = Callable[[], bool]
"""Whether anybody still waits for the trace; asked every few milliseconds, so it must be quick."""

_WORDS = {
    "memory_bytes": "It needs more than {:,} bytes of memory",
    "items": "It holds more than {:,} objects",
    "events": "It holds more than {:,} events",
    "depth": "It nests deeper than {:,} levels",
    "seconds": "Reading it takes longer than {:g} seconds",
    "unpacked_bytes": "It unpacks to more than {:,} bytes",
}
_HERE = "which is the limit here."
_FOR_ITS_SIZE = "which is the limit for a file of its size."


class Unwanted(TraceError):
    """Whoever asked for the trace has gone."""


class Budget:
    """Of one reading, in the thread that made it."""

    def __init__(self, limits: Limits, size: int | None = None, is_wanted: IsWanted | None = None) -> None:
        """`size`: of the file as it lies on disk; what a file may take grows with it."""
        self.asked = limits
        self.limits = limits if size is None else limits.for_size(size)
        self.spent = 0
        """Bytes of memory, estimated."""
        self._is_wanted = is_wanted
        self._wall = time.monotonic() + limits.seconds
        self._busy_seconds = limits.busy_seconds(size)
        self._busy = time.thread_time() + self._busy_seconds

    def charge(self, size: int) -> None:
        self.spent += size
        if self.spent > self.limits.memory_bytes:
            raise self.too_large("memory_bytes")

    def check(self) -> None:
        """To be called in everything that can be long."""
        if self._is_wanted is not None and not self._is_wanted():
            raise Unwanted("It was cancelled.")
        if time.monotonic() > self._wall:
            raise self.too_large("seconds")
        if time.thread_time() > self._busy:
            reason = (
                f"Reading it keeps this machine busy for more than {self._busy_seconds:.0f} seconds, {_FOR_ITS_SIZE}"
            )
            raise TraceError(reason, remedy="If you trust the file, raise MEMVIZ_MAX_GROWTH, or unpack it first.")

    def too_large(self, what: str) -> TraceError:
        most, wanted = getattr(self.limits, what), getattr(self.asked, what)
        is_small = most < wanted
        name = "GROWTH" if is_small else what.upper()
        reason = f"{_WORDS[what].format(most)}, {_FOR_ITS_SIZE if is_small else _HERE}"
        remedy = f"If you trust the file, raise MEMVIZ_MAX_{name}"
        return TraceError(reason, remedy=f"{remedy}, or unpack it first." if is_small else f"{remedy}.")
