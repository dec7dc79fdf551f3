"""What a page costs while nobody asks it anything."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import pytest

from tests.server import started

_SECONDS = 3.0
_SEEN = re.compile(r"voluntary_ctxt_switches:\s*(\d+)")


def wakings(pid: int) -> int:
    """Of all its threads, so far."""
    statuses = Path(f"/proc/{pid}/task").glob("*/status")
    return sum(int(number) for status in statuses for number in _SEEN.findall(status.read_text()))


@pytest.mark.skipif(sys.platform != "linux", reason="counts in /proc how often the process wakes up")
def test_a_page_that_nobody_asks_wakes_up_rarely():
    with started({}, quickly=True) as server:
        begun, before = time.monotonic(), wakings(server.pid)
        time.sleep(_SECONDS)
        a_second = (wakings(server.pid) - before) / (time.monotonic() - begun)
    assert a_second < 300
