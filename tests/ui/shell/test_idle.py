"""What a page costs while nobody asks it anything."""

from __future__ import annotations

import re
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.server import started

_SECONDS = 3.0
_SEEN = re.compile(r"^voluntary_ctxt_switches:\s*(\d+)", re.MULTILINE)
"""Where it waited for something, and not where the system took the processor from it for another process."""


def wakings(pid: int) -> int:
    """Of all its threads, so far."""
    seen = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        # A thread may end meanwhile.
        with suppress(OSError):
            seen += sum(map(int, _SEEN.findall(status.read_text())))
    return seen


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="counts in /proc how often the process wakes up")
def test_a_page_that_nobody_asks_wakes_up_rarely():
    with started({}, quickly=True) as server:
        begun, before = time.monotonic(), wakings(server.pid)
        time.sleep(_SECONDS)
        a_second = (wakings(server.pid) - before) / (time.monotonic() - begun)
    assert a_second < 300
