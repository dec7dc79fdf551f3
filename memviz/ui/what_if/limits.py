"""How long one question may keep the server busy: whatever a file holds, others have their turn again."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress

from memviz.allocator.replayer import Progress
from memviz.errors import MemvizError, UsageError
from memviz.trace.model import DeviceTrace

SETTING = "MEMVIZ_MAX_REPLAY_SECONDS"
_LEAST_SECONDS = 10.0
_EVENTS_A_SECOND = 10_000
"""A search of all settings that matter takes a second for 25,000 of them."""
UNASKED_SECONDS = 5.0
"""For what nobody asked for."""


class TooLong(MemvizError):
    """It was given up."""


def most_seconds(device: DeviceTrace, environment: Mapping[str, str] = os.environ) -> float:
    """Of a processor, for all that one question needs."""
    text = environment.get(SETTING, "")
    if not text:
        return _LEAST_SECONDS + len(device.events) / _EVENTS_A_SECOND
    with suppress(ValueError):
        if 0 < float(text) < float("inf"):
            return float(text)
    raise UsageError(f"{SETTING}={text!r} is not a positive number of seconds.")


def within(seconds: float, progress: Progress | None = None) -> Progress:
    """Of this thread, from now on. What it returns is told every few thousand events, and then raises TooLong."""
    end = time.thread_time() + seconds

    def tell(done: int, total: int) -> None:
        if time.thread_time() > end:
            reason = f"Replaying it keeps this machine busy for more than {seconds:g} seconds, which is the limit here."
            raise TooLong(f"{reason} If you trust the file, raise {SETTING}, or use `python -m memviz replay`.")
        if progress is not None:
            progress(done, total)

    return tell
