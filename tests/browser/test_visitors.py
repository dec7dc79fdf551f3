"""Several visitors at once: none sees another's traces, and the page answers regardless of the others' requests."""

from __future__ import annotations

import pickle
import re
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import at_home, new_visitor, program
from tests.traces import alloc, frame, snapshot


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    path = tmp_path / "secret-run.pickle"
    events = [alloc(512 * i, 512, time_us=i + 1, frames=[frame("secret_function", "model.py", i)]) for i in range(50)]
    path.write_bytes(pickle.dumps(snapshot(events)))
    return path


def open_file(page: Any, server: str, path: Path) -> None:
    page.goto(server)
    page.get_by_role("heading", name="See what fills your GPU.").wait_for()
    page.set_input_files("#first-files input[type=file]", path)
    page.locator(".mvt[data-drawn]").first.wait_for()
    # The picture comes first; only then is the trace in the list, and in what this browser remembers.
    page.locator("#traces .mv-trace").first.wait_for()


def test_another_visitor_sees_nothing_by_looking_or_by_link(
    page: Any, browser: Any, server: str, secret_file: Path
) -> None:
    open_file(page, server, secret_file)
    page.get_by_role("button", name=re.compile("secret-run")).first.wait_for()
    page.locator(".mvt-plot").first.focus()
    page.keyboard.press("Shift+ArrowLeft")
    page.wait_for_url(re.compile("trace="))
    link = page.url
    other = new_visitor(browser).new_page()
    other.goto(link)
    other.get_by_text("trace is not open in your session").wait_for()
    assert not re.search("secret[-_]", other.content())
    other.context.close()


def test_a_link_to_an_estimate_of_a_sample_makes_it_again_for_another_visitor(
    page: Any, browser: Any, watched: Callable[[Any], Any], server: str, secret_file: Path
) -> None:
    at_home(page, server)
    page.locator("[data-sample=training]").click()
    page.locator("#findings [data-act=estimate]").first.click()
    page.locator("#compare-B .mvt[data-drawn]").wait_for()
    page.wait_for_url(re.compile("traces=.*checkpoint"))
    page.get_by_role("button", name="Share link").click()
    page.get_by_role("button", name="Copied").wait_for()
    said = page.locator("#compare-top h1").inner_text()
    visitor = new_visitor(browser)
    other = watched(visitor)
    other.goto(page.evaluate("navigator.clipboard.readText()"))
    other.locator("#compare-B .mvt[data-drawn]").wait_for()
    assert other.locator("#compare-top h1").inner_text() == said
    visitor.close()
    # An uploaded trace restricts the link to this browser, even next to a sample.
    page.set_input_files("#files input[type=file]", secret_file)
    page.locator("#traces .mv-trace").nth(2).wait_for()
    page.get_by_role("button", name="Share link").wait_for()
    page.get_by_role("tab", name="Explore").click()
    page.get_by_role("button", name="Link for this browser alone").wait_for()
    page.locator("#traces [title='training']").click()
    page.get_by_role("button", name="Share link").wait_for()
    page.get_by_role("tab", name="Compare").click()
    page.locator("#compare-top").get_by_role("checkbox", name="secret-run").click()
    page.get_by_role("button", name="Link for this browser alone").wait_for()


def test_a_visitor_finds_their_own_traces_again_when_they_come_back(
    page: Any, context: Any, watched: Callable[[Any], Any], server: str, secret_file: Path
) -> None:
    """In another tab of the same browser; a reload would cut the page's pending requests."""
    open_file(page, server, secret_file)
    again = watched(context)
    again.goto(server)
    again.get_by_role("button", name=re.compile("secret-run")).first.wait_for()
    again.locator(".mvt[data-drawn]").first.wait_for()


def test_a_broken_file_is_explained_and_nothing_open_is_lost(
    page: Any, server: str, secret_file: Path, tmp_path: Path
) -> None:
    open_file(page, server, secret_file)
    broken = tmp_path / "broken.pickle"
    broken.write_bytes(secret_file.read_bytes()[:-50])
    page.set_input_files("#files input[type=file]", broken)
    alert = page.get_by_role("alert").filter(has_text="broken.pickle was not opened.")
    alert.wait_for()
    assert "cut off" in alert.inner_text()
    assert "Your 1 open trace is untouched." in alert.inner_text()
    page.locator(".mvt[data-drawn]").first.wait_for()
    # It goes with the next thing that works.
    page.locator("#traces").get_by_role("button", name=re.compile("^secret-run")).click()
    alert.wait_for(state="hidden")


def test_six_uploads_at_once_leave_the_page_answering(server: str, tmp_path: Path) -> None:
    client = pytest.importorskip("gradio_client")
    path = tmp_path / "large.pickle"
    events = [alloc(512 * i, 512, time_us=i + 1, frames=[frame("f", "m.py", i % 9)]) for i in range(5_000)]
    path.write_bytes(pickle.dumps(snapshot(events)))

    def ask(_: int) -> int:
        answer = program(server).predict(client.handle_file(path), api_name="/summary")
        return int(answer["devices"][0]["peak_bytes"])

    with ThreadPoolExecutor(6) as pool:
        waiting = [pool.submit(ask, i) for i in range(6)]
        slowest, begun = 0.0, time.monotonic()
        while not all(each.done() for each in waiting):
            started = time.monotonic()
            with urllib.request.urlopen(server, timeout=120) as answer:
                answer.read()
            slowest = max(slowest, time.monotonic() - started)
            time.sleep(0.1)
        assert [each.result() for each in waiting] == [5_000 * 512] * 6
    # Not a measure of speed: only that it never hangs until the others are done, however long they take here.
    assert slowest < max(20, (time.monotonic() - begun) / 2)
