"""Tests of a page in a process of its own: it stays up on a slow machine, and sleeps while nothing happens."""

import re
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.server import started

SLOW = """
import runpy
import gradio
import httpx

def too_late(url, **options):
    raise httpx.ReadTimeout("as on a machine that others keep busy")

wait = gradio.Blocks.block_thread

def say_and_wait(page):
    print("it stays", flush=True)
    wait(page)

httpx.head = too_late
gradio.Blocks.block_thread = say_and_wait
runpy.run_path("app.py", run_name="__main__")
"""


@pytest.mark.slow
def test_a_page_that_answers_late_is_not_ended() -> None:
    with started({}, program=("-c", SLOW), quickly=True) as server:
        server.wait_until_it_says("it stays")


_SECONDS = 3.0
_SEEN = re.compile(r"^voluntary_ctxt_switches:\s*(\d+)", re.MULTILINE)
"""Voluntary context switches only: the thread waited, and was not preempted for another process."""


def wakings(pid: int) -> int:
    """Return the number of wake-ups of all threads so far."""
    seen = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        # A thread may have ended since.
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
