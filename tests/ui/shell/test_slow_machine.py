"""A page comes up however slow its machine is."""

from __future__ import annotations

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
