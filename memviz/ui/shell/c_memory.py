"""What the C library keeps of what Python has freed: with its defaults, half as much again as the page itself."""

from __future__ import annotations

import ctypes
import gc
import os
import sys

_ARENA_MAX, _MMAP_THRESHOLD = -8, -3
"""Of `mallopt`, in glibc's malloc.h."""
_ARENAS = 2
_ALONE_BYTES = 1 << 17
"""Blocks from here on lie by themselves, and go back to the system as soon as they are freed."""

_BEGUN_ANEW = "MEMVIZ_BEGUN_WITH_MALLOC"


def begin_with_malloc() -> None:
    """For a server of many visitors, before it imports anything large.

    Python's own allocator gives an arena back once nothing lives in it, and among 100 visitors something always does:
    1.71 times the memory of the start stayed after them, 1.36 with glibc's. Python reads the choice before any line of
    ours, so the process begins anew, under its own number. What it starts itself is as ever, and what somebody has set
    stays.
    """
    if os.environ.pop(_BEGUN_ANEW, None):
        del os.environ["PYTHONMALLOC"]
    elif "PYTHONMALLOC" not in os.environ and hasattr(_c_library(), "mallopt") and sys.gettrace() is None:
        os.execve(
            sys.executable,
            [sys.executable, *sys.orig_argv[1:]],
            {**os.environ, "PYTHONMALLOC": "malloc", _BEGUN_ANEW: "1"},
        )


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
