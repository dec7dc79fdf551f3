"""What the C library keeps of what Python has freed: with its defaults, half as much again as the page itself."""

from __future__ import annotations

import ctypes
import gc
import os

_ARENA_MAX, _MMAP_THRESHOLD = -8, -3
"""Of `mallopt`, in glibc's malloc.h."""
_ARENAS = 2
_ALONE_BYTES = 1 << 17
"""Blocks from here on lie by themselves, and go back to the system as soon as they are freed."""


def keep_little() -> None:
    """For a server, at its start.

    A heap for every thread is left half empty by each: a few are quick enough for threads that share one interpreter.
    And once a large block was freed, glibc puts those of its size among the small ones, where they leave holes.
    What somebody has set by the environment stays.
    """
    change = getattr(_c_library(), "mallopt", None)
    if change is not None and not any(name.startswith("MALLOC_") for name in os.environ):
        change(_ARENA_MAX, _ARENAS)
        change(_MMAP_THRESHOLD, _ALONE_BYTES)


def give_back() -> None:
    gc.collect()
    trim = getattr(_c_library(), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _c_library() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(None)
    except (OSError, TypeError):
        return None
