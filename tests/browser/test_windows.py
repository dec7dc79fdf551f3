"""A visitor with two windows, and one who reloads during requests."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import reload
from tests.traces import alloc, frame, free, snapshot

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
expect = playwright.expect


def written(folder: Path, name: str, count: int = 200) -> Path:
    path = folder / f"{name}.pickle"
    events = []
    for i in range(count):
        stack = [frame(f"{name}_{i % 7}", "model.py", i % 7)]
        events += [alloc(4096 * i, 512 * (1 + i % 9), frames=stack, time_us=2 * i)]
        events += free(4096 * i, 512 * (1 + i % 9), frames=stack, time_us=2 * i + 1) if i % 2 else []
    path.write_bytes(pickle.dumps(snapshot(events)))
    return path


def window(make: Callable[[Any], Any], context: Any, server: str) -> Any:
    page = make(context)
    page.goto(server)
    page.locator("#home, .mvt[data-drawn]").first.wait_for()
    return page


def opens(page: Any, path: Path) -> None:
    # A browser does not draw in a background window, and users choose files in the front one.
    page.bring_to_front()
    target = "#files" if page.locator("#traces .mv-trace").count() else "#first-files"
    page.set_input_files(f"{target} input[type=file]", path)
    trace(page, path.stem).wait_for()


def trace(page: Any, name: str) -> Any:
    return page.locator("#traces .mv-trace").filter(has_text=name)


def remembered(page: Any, names: set[str]) -> None:
    """Check that a new window of the same browser shows these traces, as after a reload."""
    again = page.context.new_page()
    again.goto(page.url.partition("?")[0])
    for name in names:
        trace(again, name).wait_for()
    expect(again.locator("#traces .mv-trace")).to_have_count(len(names))
    again.close()


def test_two_windows_of_one_visitor_take_nothing_from_each_other(
    context: Any, watched: Callable[[Any], Any], server: str, tmp_path: Path
) -> None:
    one, two = window(watched, context, server), window(watched, context, server)
    opens(one, written(tmp_path, "apple"))
    opens(two, written(tmp_path, "banana"))
    opens(one, written(tmp_path, "cherry"))
    expect(one.locator("#traces .mv-trace")).to_have_count(2)
    expect(two.locator("#traces .mv-trace")).to_have_count(1)
    # Both windows write one list of what is open; whichever wrote last, nothing is lost by a reload.
    remembered(one, {"apple", "banana", "cherry"})
    two.bring_to_front()
    reload(two)
    expect(two.locator("#traces .mv-trace")).to_have_count(3)
    # What is closed in one is still looked at in the other.
    one.bring_to_front()
    trace(one, "apple").get_by_role("button", name=re.compile("Close")).click()
    trace(one, "apple").wait_for(state="detached")
    two.bring_to_front()
    trace(two, "apple").get_by_role("button", name=re.compile("^apple")).click()
    expect(two.locator("#verdict .mv-verdict")).to_be_visible()
    two.get_by_role("tab", name="Events").click()
    two.locator(".mve-rows .mve-row").first.wait_for()


def test_a_visitor_who_reloads_in_the_middle_of_everything_loses_nothing(
    context: Any, watched: Callable[[Any], Any], server: str, tmp_path: Path
) -> None:
    page = window(watched, context, server)
    opens(page, written(tmp_path, "apple"))
    # While a file is on its way.
    page.route("**/memviz/readings/*", lambda route: None if route.request.method == "POST" else route.continue_())
    page.set_input_files("#files input[type=file]", written(tmp_path, "banana", 5000))
    page.locator(".mv-arrival").get_by_text("reading").wait_for()
    # Still held back: handed on first, the file might be read before the page goes.
    reload(page)
    page.unroute("**/memviz/readings/*")
    trace(page, "apple").wait_for()
    expect(page.locator(".mv-arrival")).to_have_count(0)
    opens(page, written(tmp_path, "banana", 5000))
    # While it is replayed.
    page.get_by_role("tab", name="What if").click()
    reload(page)
    expect(page.locator("#traces .mv-trace")).to_have_count(2)
    page.get_by_role("tab", name="What if").click()
    expect(page.locator("#what-if-verdict h1")).to_be_visible()
    # While a model runs.
    page.get_by_role("tab", name="Run").click()
    expect(page.locator("#run-form .mv-price-head")).to_be_visible()
    page.locator("#run-form [name='workload']").select_option("gpt2")
    page.locator("#run-results .mv-variant").first.wait_for()
    reload(page)
    expect(page.locator("#traces .mv-trace")).to_have_count(2)
    page.get_by_role("tab", name="Run").click()
    expect(page.locator("#run-form .mv-price-head")).to_be_visible()
    page.locator("#run-form [name='w:batch']").fill("2")
    expect(page.locator("#run-results :is(.mv-is-done, .mv-is-failed)").first).to_be_visible()
    expect(page.get_by_role("button", name="Cancel")).to_have_count(0)
