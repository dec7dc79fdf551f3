"""How much of a machine one file may take. A snapshot is an untrusted file.

The defaults fit ten million events on a laptop. They can be raised or lowered by whoever opens the file:
`load_trace(path, limits=Limits(...))`, or for a whole process by environment variables (`from_environment`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from memviz.errors import UsageError

MiB = 1 << 20
GiB = 1 << 30
_PREFIX = "MEMVIZ_MAX_"
_SMALL_FILE = 8 * MiB
"""Smaller files may take as much as one of this size."""
_SMALL_EVENTS = 500_000
"""In the smallest of files. Real ones, packed, have one in four bytes at most."""
_BYTES_OF_ITEM = 50


@dataclass(frozen=True)
class Limits:
    file_bytes: int = 8 * GiB
    """Of the file as it lies on disk."""
    unpacked_bytes: int = 8 * GiB
    """Of what a compressed file becomes; beyond it, reading stops."""
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
        """Of a processor, however long the wait for the file is."""
        return self.seconds if size is None else min(self.seconds, self.growth / 100 * (5 + size / MiB))

    @staticmethod
    def from_environment(environment: Mapping[str, str] = os.environ) -> Limits:
        """MEMVIZ_MAX_EVENTS=1000000 and so on, one per field, in its own unit."""
        changed: dict[str, int | float] = {}
        for field in fields(Limits):
            text = environment.get(_PREFIX + field.name.upper())
            if text is not None:
                changed[field.name] = _number(_PREFIX + field.name.upper(), text)
        return Limits(**changed)  # type: ignore[arg-type]


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1
    if not value > 0:
        raise UsageError(f"{name}={text!r} is not a positive number.")
    return value if name.endswith("SECONDS") else int(value)
