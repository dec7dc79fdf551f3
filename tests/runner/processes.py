"""Waiting for what is meant, and looking whether a process is there."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

PATIENCE_SECONDS = 240


def wait_until(it_is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not it_is_so():
        assert time.monotonic() < end
        time.sleep(0.02)


def is_there(pid: int) -> bool:
    """What has ended and was not waited for yet is gone."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"
