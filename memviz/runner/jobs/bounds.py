"""How much of this machine one run may take, and for how long: settings with defaults that suit the machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from memviz.errors import UsageError
from memviz.units import parse_bytes

MEMORY = "MEMVIZ_MAX_RUN_BYTES"
SECONDS = "MEMVIZ_MAX_RUN_SECONDS"
TIMEOUT_SECONDS = 900.0

_WHERE_NOTHING_IS_KNOWN = 16 << 30
_OF_A_CONTAINER = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
_LEAST = 1 << 30
"""PyTorch and the libraries of models take a third of it before anything is run."""


def most_bytes(environment: Mapping[str, str] = os.environ) -> int:
    """Of resident memory, of a run with all the processes it starts.

    On a Space a quarter of the machine: the page is there as well, and an estimate may run beside a run. At home
    nobody else waits, and a model of one's own may need most of what there is.
    """
    text = environment.get(MEMORY, "")
    if text:
        return _bytes(text)
    there_is = machine_bytes()
    return max(_LEAST, there_is // 4 if environment.get("SPACE_ID") else there_is * 3 // 4)


def most_seconds(default: float = TIMEOUT_SECONDS, environment: Mapping[str, str] = os.environ) -> float:
    text = environment.get(SECONDS, "")
    if not text:
        return default
    with suppress(ValueError):
        seconds = float(text)
        if 0 < seconds < float("inf"):
            return seconds
    raise UsageError(f"{SECONDS}={text!r} is not a positive number of seconds.")


def machine_bytes() -> int:
    """What this machine has, or what this container gets of it."""
    found = [_WHERE_NOTHING_IS_KNOWN]
    with suppress(OSError, ValueError, AttributeError):
        found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in _OF_A_CONTAINER:
        # "max" is no number.
        with suppress(OSError, ValueError):
            found.append(int(path.read_text()))
    return min(each for each in found if each > 0)


def _bytes(text: str) -> int:
    with suppress(ValueError, OverflowError):
        size = parse_bytes(text)
        if size > 0:
            return size
    raise UsageError(f"{MEMORY}={text!r} is not a size; write for example 8GiB, or bytes.")
