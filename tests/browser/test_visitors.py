"""Several visitors at once, and one with two windows or who reloads: none loses or sees another's traces."""

import pickle
import re
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import at_home, expect, new_visitor, reload
from tests.facts import missing
from tests.server import started
from tests.traces import alloc, frame, free, snapshot

SHARES_A_PAGE = True


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    path = tmp_path / "secret-run.pickle"
    events = [alloc(512 * i, 512, time_us=i + 1, frames=[frame("secret_function", "model.py", i)]) for i in range(50)]
    path.write_bytes(pickle.dumps(snapshot(events)))
    return path


def open_file(page: Any, server: str, path: Path) -> None:
    at_home(page, server)
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
    page.locator("#findings .mv-finding").first.click()
    page.locator("#findings [data-act=estimate]").first.click()
    page.locator("#compare-B .mvt[data-drawn]").wait_for()
    page.wait_for_url(re.compile("traces=.*checkpoint"))
    page.get_by_text("Share", exact=True).click()
    page.get_by_role("button", name="Copy link on this machine only").click()
    page.get_by_text("Copied", exact=True).wait_for()
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
    whom = page.locator("[data-mv-whom]")
    expect(whom).to_have_text("on this machine only")
    page.get_by_role("tab", name="Explore").click()
    expect(whom).to_have_text("in this browser only")
    page.locator("#traces [title='training']").click()
    expect(whom).to_have_text("on this machine only")
    page.get_by_role("tab", name="Compare").click()
    page.locator("#compare-top").get_by_role("checkbox", name="secret-run").click()
    expect(whom).to_have_text("in this browser only")


def test_a_copy_is_kept_for_others_where_the_owner_allows_it(
    context: Any, browser: Any, watched: Callable[[Any], Any], secret_file: Path
) -> None:
    page = watched(context)
    with started({"MEMVIZ_LINK_HOURS": "72"}, quickly=True) as server:
        open_file(page, server.address, secret_file)
        page.get_by_text("Share", exact=True).click()
        page.get_by_role("button", name="Share link a copy on this server, for 3 days").click()
        address = page.get_by_label("Address of the copy").input_value()
        visitor = new_visitor(browser)
        other = watched(visitor)
        other.goto(address)
        other.locator("[data-saved=ready]").wait_for()
        other.locator("#timeline .mvt[data-drawn]").wait_for()
        assert "secret_function" in other.content()
        assert other.evaluate("origin") == "null", "it may not act as the page"
        page.get_by_role("button", name="Delete now").click()
        page.get_by_label("Address of the copy").wait_for(state="detached")
        visitor.close()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(address, timeout=120)


def test_a_trace_is_renamed_in_place_and_keeps_its_name(page: Any, server: str, secret_file: Path) -> None:
    open_file(page, server, secret_file)
    page.locator("#traces .mv-trace b").dblclick()
    field = page.get_by_label("New name of secret-run")
    field.fill("<b>x</b> fix")
    field.press("Enter")
    row = page.locator("#traces [data-act=choose][title='<b>x</b> fix']")
    row.wait_for()
    expect(row).to_be_focused()
    page.keyboard.press("F2")
    page.keyboard.type("no")
    page.keyboard.press("Escape")
    expect(page.get_by_label("New name of")).to_have_count(0)
    page.locator("#foot").get_by_role("button", name="Samples").click()
    page.locator("[data-sample=training]").click()
    page.get_by_role("tab", name="Compare").click()
    page.locator("#compare-top h1", has_text="<b>x</b> fix").wait_for()
    reload(page)
    row.wait_for()
    page.locator(".mv-scores", has_text="<b>x</b> fix").wait_for()
    assert "secret-run" not in page.locator("#frame").inner_text()
    row.focus()
    page.keyboard.press("F2")
    page.get_by_label("New name of").fill(" ")
    page.keyboard.press("Enter")
    page.locator("#traces .mv-trace", has_text="secret-run").wait_for()


def test_a_broken_file_is_explained_and_nothing_open_is_lost(
    page: Any, server: str, secret_file: Path, tmp_path: Path
) -> None:
    open_file(page, server, secret_file)
    broken = tmp_path / "broken.pickle"
    broken.write_bytes(secret_file.read_bytes()[:-50])
    page.set_input_files("#files input[type=file]", broken)
    alert = page.get_by_role("alert").filter(has_text="broken.pickle was not opened.")
    alert.wait_for()
    assert "truncated" in alert.inner_text()
    assert missing(alert.inner_text(), "1 open", "untouched") == []
    page.locator(".mvt[data-drawn]").first.wait_for()
    # It goes with the next thing that works.
    page.locator("#traces").get_by_role("button", name=re.compile("^secret-run")).click()
    alert.wait_for(state="hidden")


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
