"""Memory that the process keeps: Python's garbage collector, and the heap of the C library.

With glibc's defaults, memory that Python has freed stays in the process: half as much again as the page itself.
"""

from __future__ import annotations

import gc
import os
import sys
from _thread import allocate_lock
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import ctypes


@contextmanager
def without_collection() -> Iterator[None]:
    """Pause garbage collection, with existing objects frozen so that a collection within scans new ones only.

    An import makes many objects that all stay, and each few hundred of them have the collector look through all there
    are: a fifth of the time that the imports of a page or of a run take. Objects frozen before stay frozen.
    """
    was_on, is_first = gc.isenabled(), gc.get_freeze_count() == 0
    gc.disable()
    if is_first:
        gc.freeze()
    try:
        yield
    finally:
        if is_first:
            gc.unfreeze()
        if was_on:
            gc.enable()


def freeze_startup_objects() -> None:
    """For a server, once it is built: what it has then stays to its end, and no later collection looks through it.

    Everybody waits for a collection, and of a page's quarter of a million objects one takes a sixth of a second.
    """
    gc.collect()
    gc.freeze()


_ARENA_MAX, _MMAP_THRESHOLD, _TRIM_THRESHOLD = -8, -3, -1
"""Parameters of `mallopt`, as numbered in glibc's malloc.h."""
_ARENAS = 2
_ALONE_BYTES = 1 << 17
"""Blocks from here on lie by themselves, and go back to the system as soon as they are freed."""
_KEPT_BYTES = 32 << 20
"""The most that glibc lets lie among others."""
_TRIM_BYTES = 1 << 17
_TRIM_TOLD = "MALLOC_TRIM_THRESHOLD_"

_BEGUN_ANEW = "MEMVIZ_BEGUN_WITH_MALLOC"


def reexec_with_malloc() -> None:
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


def limit_heap_cache() -> None:
    """For a server, at its start.

    A heap for every thread is left half empty by each: a few are quick enough for threads that share one interpreter.
    And once a large block was freed, glibc puts those of its size among the small ones, where they leave holes.
    What somebody has set by the environment stays.
    """
    change = getattr(_c_library(), "mallopt", None)
    if change is not None and not any(name.startswith("MALLOC_") for name in os.environ):
        change(_ARENA_MAX, _ARENAS)
        change(_MMAP_THRESHOLD, _ALONE_BYTES)
        _Kept.little = True


class _Kept:
    """Heap settings of this process, and its readers."""

    lock = allocate_lock()
    little = False
    """Set by `limit_heap_cache`."""
    readers = 0


@contextmanager
def large_blocks_kept() -> Iterator[None]:
    """While a file is read, where large blocks go back to the system as soon as they are freed.

    So it is on our own server, and in workers of Dask, which sets `MALLOC_TRIM_THRESHOLD_` for them. Reading makes one
    large array after the other: over a million events the system would hand out and clear 25 times as many pages, which
    takes as long as all else or longer. Those who read side by side share what is kept, and the last of them gives it
    back. Elsewhere glibc finds out by itself what is worth keeping.
    """
    library: Any = _c_library()
    told = os.environ.get(_TRIM_TOLD, "")
    trim_bytes = int(told) if told.isdecimal() else _TRIM_BYTES
    if not (_Kept.little or told.isdecimal()) or not hasattr(library, "mallopt"):
        yield
        return
    change = library.mallopt
    with _Kept.lock:
        _Kept.readers += 1
        change(_MMAP_THRESHOLD, _KEPT_BYTES)
        change(_TRIM_THRESHOLD, 2 * _KEPT_BYTES)
    try:
        yield
    finally:
        with _Kept.lock:
            _Kept.readers -= 1
            if not _Kept.readers:
                change(_MMAP_THRESHOLD, _ALONE_BYTES)
                change(_TRIM_THRESHOLD, trim_bytes)
                give_back_holes()


def give_back() -> None:
    gc.collect()
    give_back_holes()


def give_back_holes() -> None:
    """Return free heap memory between used blocks to the system; the C library keeps it for small allocations."""
    trim = getattr(_c_library(), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _c_library() -> ctypes.CDLL | None:
    # Every command imports this file, and ctypes would cost it time.
    import ctypes

    try:
        return ctypes.CDLL(None)
    except (OSError, TypeError):
        return None


def memory_totals(pid: int, proc: str | os.PathLike[str] = "/proc") -> dict[str, int]:
    """Return bytes of a process's pages by the kernel's names for them; empty where it does not say.

    Walking the page tables takes a millisecond for some GiB.
    """
    totals = {}
    with suppress(OSError, ValueError, IndexError), open(f"{os.fspath(proc)}/{pid}/smaps_rollup", "rb") as file:
        for line in file.read().splitlines()[1:]:
            name, _, size = line.partition(b":")
            totals[name.decode("ascii")] = int(size.split()[0]) << 10
    return totals


def own_memory(pid: int) -> int | None:
    """Return the bytes that a process shares with no other, of a fork the written pages; None outside Linux."""
    totals = memory_totals(pid)
    return totals.get("Private_Clean", 0) + totals.get("Private_Dirty", 0) if totals else None


def children_memory() -> tuple[int, int]:
    """Return the number of this process's children and the bytes that they have for themselves; 0 outside Linux."""
    pids: set[str] = set()
    try:
        for thread in os.listdir("/proc/self/task"):
            with suppress(OSError), open(f"/proc/self/task/{thread}/children", encoding="ascii") as file:
                pids.update(file.read().split())
    except OSError:
        return 0, 0
    sizes = [size for pid in pids if (size := own_memory(int(pid)))]
    return len(sizes), sum(sizes)


MANY_EVENTS = 2_000_000


def trim_heap_if_large(event_count: int) -> None:
    """Return free heap memory to the system after a read or analysis of many events."""
    if event_count >= MANY_EVENTS:
        # Few files are so long, and every command would pay for importing ctypes and threads.
        give_back_holes()
