"""Whether an error says that a GPU ran out of memory, in whosever words.

The caching allocator raises `OutOfMemoryError` and tells its observers first. Libraries that take memory of their own
(cuBLAS, cuDNN, NCCL, the driver while it loads kernels) fail with a plain RuntimeError, of which nobody is told.
"""

from __future__ import annotations

import re

from memviz.units import bytes_text

_WORDS = re.compile(
    r"(?:cu|hip|roc)[a-z]+_(?:status_)?alloc_failed"
    r"|_internal_error_device_allocation_failed"
    r"|_insufficient_resources"
    r"|miopenstatusallocfailed"
    r"|error_out_of_(?:device_|resources)"
    r"|erroroutofmemory"
    r"|failed to (?:cuda|hip)? ?[cm]alloc"
    r"|out of (?:device )?memory"
)
_OF_THE_HOST = ("defaultcpuallocator", "host_allocation_failed", "cannot allocate memory in static tls")


_ASKED_OF_THE_HOST = re.compile(r"DefaultCPUAllocator: .*?(\d+) bytes", re.DOTALL)


def host_is_full(error: BaseException | None) -> str:
    """What to say where torch had no memory of this machine's for what a run computes with; empty otherwise."""
    asked = _ASKED_OF_THE_HOST.search(str(error)) if isinstance(error, RuntimeError) else None
    if asked is None:
        return ""
    size = bytes_text(int(asked[1]))
    return f"This machine has no memory for what the run computes with: {size} were asked for. Smaller knobs take less."


def is_out_of_memory(error: BaseException) -> bool:
    """Of the error or of what it was raised from: a program may dress it in words of its own."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        if _says_so(cause):
            return True
        seen.add(id(cause))
        cause = cause.__cause__
    return False


def _says_so(error: BaseException) -> bool:
    if "OutOfMemory" in type(error).__name__:
        return True
    words = str(error).lower() if isinstance(error, RuntimeError) else ""
    return _WORDS.search(words) is not None and not any(host_words in words for host_words in _OF_THE_HOST)
