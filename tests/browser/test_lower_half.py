"""The panels below the timeline: live set, icicle, inspector, Find, and allocations never freed."""

import csv
import pickle
import re
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import at_home, expect
from tests.traces import MiB, alloc, block, event, frame, free, segment, snapshot

SHARES_A_PAGE = True

EVIL = "<img src=x onerror=\"document.title='pwned'\">${document.title='pwned'}{{value}}</script><b>"
MAIN, MODEL = frame("main", "/p/train.py", 9), frame("forward", "/p/model.py", 36)
LIBRARY = frame("linear", "/v/site-packages/torch/nn/functional.py", 5)


SAME_PART = """
() => {
  const [one, other] = ["timeline", "segments-over-time"].map((id) => {
    const { viewport } = [...document.querySelectorAll(`#${id} *`)].find((node) => node.memviz?.data).memviz;
    return [Math.round(viewport.first), Math.round(viewport.last)];
  });
  return one[0] > 0 && String(one) === String(other);
}
"""


def open_trace(page: Any, server: str, path: Path, events: list[Any], *segments: Any, **more: Any) -> Any:
    path.write_bytes(pickle.dumps(snapshot(events, list(segments), **more)))
    at_home(page, server)
    page.set_input_files("#first-files input[type=file]", path)
    page.locator(".mvt[data-drawn]").first.wait_for()
    page.locator("#live-set table").wait_for()
    return page


@pytest.fixture
def run(page: Any, server: str, tmp_path: Path) -> Any:
    """3 MiB from the model that go again, and 1 MiB that stays; the peak is after event 1. Opened once for many."""
    if page.url.startswith(server) and page.locator("#traces [title=run]").count():
        page.get_by_role("tab", name="Live set").click()
        page.locator("#live-set table").wait_for()
        return page
    model = alloc(0, 3 * MiB, frames=[LIBRARY, MODEL, MAIN], time_us=10)
    events = [model, alloc(4 * MiB, MiB, frames=[MAIN], time_us=20), *free(0, 3 * MiB, frames=[MAIN], time_us=30)]
    return open_trace(page, server, tmp_path / "run.pickle", events)


def rows(page: Any, panel: str = "#live-set") -> list[str]:
    return [" ".join(all_inner_text.split()) for all_inner_text in page.locator(f"{panel} tbody tr").all_inner_texts()]


def test_an_allocation_is_pinned_and_the_icicle_walked_by_keyboard(run):
    run.locator("#timeline .mvt-plot").focus()
    for key in ("ArrowUp", "Enter"):
        run.keyboard.press(key)
    run.get_by_role("heading", name="Pinned allocation").wait_for()
    assert "in model.py:36" in run.locator("#inspector").inner_text()
    run.get_by_text("1 library frame").click()
    run.get_by_role("button", name="Copy", exact=True).click()
    assert run.evaluate("navigator.clipboard.readText()").splitlines()[1] == "forward /p/model.py:36"
    run.get_by_role("button", name="Stack", exact=True).focus()
    run.keyboard.press("Escape")
    run.get_by_role("heading", name="Event 1", exact=True).wait_for()
    run.get_by_role("button", name=re.compile("^all 4.00 MiB")).focus()
    for key in ("ArrowDown", "ArrowDown", "Enter"):
        run.keyboard.press(key)
    run.get_by_role("navigation", name="Zoomed into").wait_for()
    assert rows(run) == ["model.py:36 forward probably output 1 3.00 MiB 100 %"]
    run.get_by_role("navigation", name="Zoomed into").get_by_role("button", name="all").click()
    run.locator("#live-set tbody").get_by_text("train.py:9 main").wait_for()
    assert len(rows(run)) == 2


def test_a_row_that_is_clicked_stays_lit_until_escape(run):
    run.evaluate("window.lit = []; window.addEventListener('memviz:light', ({detail}) => window.lit.push(detail))")
    run.get_by_role("button", name="train.py:9 main").hover()
    run.wait_for_function("window.lit.length > 0")
    run.get_by_role("button", name="train.py:9 main").click()
    run.mouse.move(700, 30)
    kept = {"by": "site", "group": "/p/train.py:9 main"}
    run.wait_for_function("window.lit.length > 1")
    assert run.evaluate("window.lit.every((each) => each && each.group === '/p/train.py:9 main')")
    assert run.evaluate("window.lit.at(-1)") == kept
    row = run.get_by_role("button", name="train.py:9 main", exact=True)
    assert row.get_attribute("aria-pressed") == "true"
    assert run.locator(".mvt-chip").inner_text() == "only train.py:9 main ×"
    run.keyboard.press("Escape")
    run.wait_for_function("window.lit.at(-1) === null")


def test_slash_finds_and_lights(run):
    run.evaluate("window.lit = []; window.addEventListener('memviz:light', ({detail}) => window.lit.push(detail))")
    run.keyboard.press("/")
    run.keyboard.type("MODEL >1MiB")
    run.get_by_text("1 allocation at 1 site").wait_for()
    assert rows(run, "#found") == ["model.py:36 forward 1 3.00 MiB 1"]
    run.wait_for_function("window.lit.at(-1)?.group === 'MODEL >1MiB'")
    found = run.locator(".mv-icicle .mv-hit")
    expect(found).to_have_count(1)
    expect(found).to_contain_text("model:36 forward")
    run.keyboard.type(">")
    run.get_by_role("alert").filter(has_text="not a size or a lifetime").wait_for()
    run.keyboard.press("Escape")
    run.wait_for_function("!document.querySelector('#found').textContent.trim()")
    expect(found).to_have_count(0)


def test_the_whole_table_is_downloaded_and_only_the_tab_that_is_seen_is_there(run):
    with run.expect_download() as download:
        run.get_by_role("button", name="CSV").click()
    assert download.value.suggested_filename == "live-at-1-by-site.csv"
    with open(download.value.path(), newline="") as file:
        assert [row[-2:] for row in csv.reader(file)] == [["blocks", "bytes"], ["1", str(3 * MiB)], ["1", str(MiB)]]
    run.get_by_role("tab", name="Segments").click()
    run.locator("#segments").wait_for()
    assert run.locator("#live-set table").count() == 0
    run.get_by_role("tab", name="Never freed").click()
    run.get_by_text("1 allocation made here is alive at the end").wait_for()
    assert not run.locator("#segments").is_visible()


def test_a_menu_closes_with_escape_with_a_click_elsewhere_and_with_a_choice(run):
    share = run.get_by_text("Share", exact=True)
    opened = run.locator("details.mv-menu[open]")
    share.click()
    expect(opened).to_have_text(re.compile("^Share"))
    run.keyboard.press("Escape")
    expect(opened).to_have_count(0)
    expect(share).to_be_focused()
    share.press("Enter")
    expect(opened).to_have_count(1)
    expect(opened).to_have_text(re.compile("^Share"))
    run.get_by_role("heading", name="Event").first.click()
    expect(opened).to_have_count(0)
    share.click()
    with run.expect_download():
        run.get_by_role("button", name="Picture (SVG)").click()
    expect(opened).to_have_count(0)


def test_segments_over_time_show_the_part_of_the_run_that_is_looked_at(page, server, tmp_path):
    taken = [event("segment_alloc", at * 20 * MiB, 20 * MiB, time_us=at) for at in range(2)]
    used = [alloc(at * MiB, MiB, frames=[MODEL], time_us=10 + at) for at in range(19)]
    gone = event("segment_free", 20 * MiB, 20 * MiB, time_us=50)
    left = segment(0, 20 * MiB, [block(at * MiB, MiB) for at in range(19)])
    open_trace(page, server, tmp_path / "other.pickle", [*taken, *used, gone], left)
    page.get_by_role("tab", name="Segments").click()
    page.locator("#segments-over-time .mvt[data-drawn]").wait_for()
    keys = page.locator("#segments-over-time .mvt-key:visible").all_inner_texts()
    # 1 to 19 MiB of the first segment's 20 are in use: 47 % on average. The second is never used.
    assert [" ".join(each.split()) for each in keys] == ["10 to 50 % used 20.0 MiB", "under 10 % used 20.0 MiB"]
    page.locator("#timeline .mvt-plot").focus()
    for key in ("+", "+"):
        page.keyboard.press(key)
    page.wait_for_function(SAME_PART)
    # The story after this one begins with the table.
    page.get_by_role("tab", name="Live set").click()
    page.locator("#live-set table").wait_for()


def test_names_from_a_file_stay_text_everywhere(page, server, tmp_path):
    stack = [frame(EVIL, f"/p/{EVIL}.py", 3), frame(f"{EVIL}2", f"/p/{EVIL}.py", 4)]
    made = alloc(0, MiB, frames=stack, time_us=1, user_metadata=EVIL, compile_context=EVIL)
    ends = (("START", 1), ("END", 4))
    phase = [{"name": EVIL, "stage": stage, "device": 0, "time_us": at} for stage, at in ends]
    events = [made, alloc(MiB, MiB, frames=stack[1:], time_us=2)]
    open_trace(page, server, tmp_path / "other.pickle", events, external_annotations=phase)
    page.locator(".mvt-phase").first.wait_for()
    page.locator("#timeline .mvt-plot").focus()
    for key in ("ArrowUp", "Enter"):
        page.keyboard.press(key)
    page.get_by_role("heading", name="Pinned allocation").wait_for()
    texts = [page.locator(each).inner_text() for each in ("#live-set", "#inspector")]
    page.keyboard.press("/")
    page.keyboard.type("onerror")
    page.locator("#found table").wait_for()
    page.get_by_role("tab", name="Never freed").click()
    page.get_by_text("2 allocations made here are alive at the end").wait_for()
    texts += [page.locator(each).inner_text() for each in ("#found", "#live-set")]
    # Long names are written in parts, so that their middle can be cut.
    assert [text for text in texts if "<imgsrc=xonerror=" not in "".join(text.split())] == []
    assert "${document.title='pwned'}{{value}}</script><b>" in texts[1]
    assert page.title() != "pwned"
    assert page.locator("img[src=x], #lower b b").count() == 0


def test_on_a_narrow_screen_the_pinned_allocation_is_a_sheet_with_a_handle(run):
    """The last story: after a narrow window the sidebar stays a drawer."""
    run.locator(".sidebar.open").wait_for()
    run.set_viewport_size({"width": 390, "height": 900})
    # When the window narrows, the open sidebar does not cover it.
    run.locator(".sidebar:not(.open)").wait_for(state="attached")
    plot = run.locator("#timeline .mvt-plot")
    plot.click(position={"x": 60, "y": 60})
    plot.focus()
    for key in ("ArrowUp", "Enter"):
        run.keyboard.press(key)
    handle = run.get_by_role("button", name="Taller or smaller")
    handle.wait_for()
    sheet = run.locator("#inspector")
    half = sheet.bounding_box()["y"]
    handle.focus()
    run.keyboard.press("ArrowUp")
    run.wait_for_function("(half) => document.querySelector('#inspector').getBoundingClientRect().y < half", arg=half)
    run.keyboard.press("ArrowDown")
    run.wait_for_function("(half) => document.querySelector('#inspector').getBoundingClientRect().y >= half", arg=half)
    place = handle.bounding_box()
    run.mouse.move(place["x"] + 50, place["y"] + 5)
    run.mouse.down()
    run.mouse.move(place["x"] + 50, place["y"] + 90, steps=3)
    run.mouse.up()
    handle.wait_for(state="detached")
