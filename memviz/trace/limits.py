"""Limits on what one file may take of a machine, and the budget that a reading spends of them.

A snapshot is an untrusted file. The defaults fit ten million events on a laptop; `load_trace(path, limits=Limits(...))`
or environment variables (`from_environment`) change them. The budget charges what is *made* from a file: a few bytes
can name one long list a thousand times.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace

from memviz.errors import TraceError, UsageError

MiB = 1 << 20
GiB = 1 << 30
MOST_DEVICES = 512
"""A process sees 16 at most. Each is looked at by itself, which takes milliseconds, and one takes 10 bytes."""
_PREFIX = "MEMVIZ_MAX_"
_SMALL_FILE = 8 * MiB
"""Smaller files may take as much as one of this size."""
_SMALL_EVENTS = 500_000
"""In the smallest of files. Real ones, packed, have one in four bytes at most."""
_BYTES_OF_ITEM = 50


@dataclass(frozen=True)
class Limits:
    file_bytes: int = 8 * GiB
    """Size of the file on disk."""
    unpacked_bytes: int = 8 * GiB
    """Decompressed size; beyond it, reading stops."""
    json_bytes: int = 512 * MiB
    """JSON is read whole by the standard library, at up to 30 times its size in memory."""
    memory_bytes: int = 4 * GiB
    """Estimated size of all objects built from the file, counted as they are made."""
    events: int = 50_000_000
    items: int = 20_000_000
    """Objects that are not events: frames, blocks, texts, numbers in lists."""
    depth: int = 64
    """Nesting of lists and dicts. A snapshot needs 7."""
    seconds: float = 600.0
    """Reading one file."""
    growth: int = 100
    """How many times its own size a file may become in memory. Real ones, packed, unpack to up to 40 times."""

    def for_size(self, size: int) -> Limits:
        """Small files stay small: what one may take grows with its size on disk."""
        most = self.growth * max(size, _SMALL_FILE)
        return replace(
            self,
            unpacked_bytes=min(self.unpacked_bytes, most),
            memory_bytes=min(self.memory_bytes, most),
            events=min(self.events, self.growth * (_SMALL_EVENTS + size // 2) // 100),
            items=min(self.items, most // _BYTES_OF_ITEM),
        )

    def busy_seconds(self, size: int | None) -> float:
        """Return the limit of CPU time, which leaves out the wait for the file."""
        return self.seconds if size is None else min(self.seconds, self.growth / 100 * (5 + size / MiB))

    @staticmethod
    def from_environment(environment: Mapping[str, str] = os.environ) -> Limits:
        """MEMVIZ_MAX_EVENTS=1000000 and so on, one per field, in its own unit."""
        changed: dict[str, int | float] = {}
        for field in fields(Limits):
            name = _PREFIX + field.name.upper()
            value = positive_setting(name, environment)
            if value is not None:
                changed[field.name] = value if name.endswith("SECONDS") else int(value)
        return Limits(**changed)  # type: ignore[arg-type]


def positive_setting(name: str, environment: Mapping[str, str] = os.environ) -> float | None:
    """Return the number of an environment variable, None where it is unset or empty."""
    text = environment.get(name)
    if not text:
        return None
    with suppress(ValueError):
        if 0 < (number := float(text)) < math.inf:
            return number
    raise UsageError(f"{name}={text!r} is not a positive number.")


IsWanted = Callable[[], bool]
"""Returns False once the request for the trace is cancelled. Called every few milliseconds, so it must be quick."""

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
    """Reading was cancelled."""


class Budget:
    """Limits and consumption of one reading, bound to the thread that created it."""

    def __init__(self, limits: Limits, size: int | None = None, is_wanted: IsWanted | None = None) -> None:
        """`size`: of the file on disk; the limits grow with it."""
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
        """Raise if the reading is cancelled or over its time; call this in every long loop."""
        if self._is_wanted is not None and not self._is_wanted():
            raise Unwanted("It was cancelled.")
        if time.monotonic() > self._wall:
            raise self.too_large("seconds")
        if time.thread_time() > self._busy:
            reason = f"Reading it uses the processor for more than {self._busy_seconds:.0f} seconds, {_FOR_ITS_SIZE}"
            raise TraceError(reason, remedy="If you trust the file, raise MEMVIZ_MAX_GROWTH, or unpack it first.")

    def too_large(self, what: str) -> TraceError:
        most, wanted = getattr(self.limits, what), getattr(self.asked, what)
        is_small = most < wanted
        name = "GROWTH" if is_small else what.upper()
        reason = f"{_WORDS[what].format(most)}, {_FOR_ITS_SIZE if is_small else _HERE}"
        remedy = f"If you trust the file, raise MEMVIZ_MAX_{name}"
        return TraceError(reason, remedy=f"{remedy}, or unpack it first." if is_small else f"{remedy}.")
