"""Saved reports, comparisons and what-ifs: one file, no server, and no network requests."""

import re
from collections.abc import Callable
from functools import cache
from typing import Any

from memviz.trace.load import load_trace
from memviz.ui.saved.report import report_page
from tests.browser.conftest import expect
from tests.house.repository import ROOT
from tests.traces import alloc, frame, trace_of

HOSTILE = "</script><img src=x onerror=alert(1)>\u2028\ud800<b>"


@cache
def sample(name: str) -> Any:
    trace = load_trace(ROOT / "sample_traces" / f"{name}.pickle.gz")
    return trace, trace.devices[0]


def the_view(page: Any) -> list[float]:
    """Return the bounds of the timeline's view, from its window in the overview."""
    box = page.locator("#timeline .mvt-window").bounding_box()
    return [box["x"], box["x"] + box["width"]]


def point_at_an_allocation(page: Any) -> None:
    """Point at an allocation that is tall enough to be drawn separately."""
    plot, tip = page.locator("#timeline .mvt-plot").bounding_box(), page.locator("#timeline .mvt-tip")
    for y in range(4, int(plot["height"]), 9):
        page.mouse.move(plot["x"] + plot["width"] * 0.44, plot["y"] + plot["height"] - y)
        if tip.is_visible() and "together" not in tip.inner_text():
            return
    raise AssertionError("there is no such allocation")


def drawn_otherwise(page: Any, timeline: str, before: str) -> None:
    other = "([id, before]) => document.querySelector(`${id} canvas.mvt-canvas`).toDataURL() !== before"
    page.wait_for_function(other, arg=[timeline, before])


def picture(page: Any, timeline: str) -> str:
    return str(page.evaluate("(id) => document.querySelector(`${id} canvas.mvt-canvas`).toDataURL()", timeline))


def test_a_report_is_zoomed_pointed_at_and_pinned_as_the_page_is(open_saved: Callable[[str], Any]) -> None:
    page = open_saved(report_page([sample("training")]))
    plot = page.locator("#timeline .mvt-plot")
    expect(page.locator("#timeline .mvt")).to_have_attribute("data-drawn", re.compile(".+"))
    # An animated view hides its tooltip until the animation ends.
    page.emulate_media(reduced_motion="reduce")
    whole = the_view(page)
    plot.focus()
    page.keyboard.press("+")
    width = "document.querySelector('#timeline .mvt-window').offsetWidth"
    page.wait_for_function(f"(most) => {width} < most", arg=(whole[1] - whole[0]) * 0.8)
    page.keyboard.press("0")
    page.wait_for_function(f"(least) => {width} > least", arg=(whole[1] - whole[0]) * 0.99)
    point_at_an_allocation(page)
    tip = page.locator("#timeline .mvt-tip")
    expect(tip).to_be_visible()
    expect(tip).to_contain_text("B")
    expect(tip).to_contain_text(".py")
    page.mouse.down()
    page.mouse.up()
    pinned = page.locator("#inspector .mv-pinned")
    expect(pinned).to_contain_text("Pinned allocation")
    expect(pinned).to_contain_text("Lifetime")
    expect(pinned.locator(".mv-stack .mv-frame").first).to_be_visible()
    pinned.get_by_role("button", name="Unpin").click()
    expect(page.locator("#inspector")).to_contain_text("2,")


def test_the_tables_of_a_report_are_sorted_grouped_and_light_the_timeline(open_saved: Callable[[str], Any]) -> None:
    page = open_saved(report_page([sample("training")]))
    page.locator('#lower-head [data-value="site"]').click()
    rows = page.locator("#live-set tbody tr")
    largest = rows.first.inner_text()
    page.locator('#live-set [data-act="sort"][data-value="bytes"]').click()
    expect(page.locator('#live-set th[aria-sort="ascending"]')).to_contain_text("Bytes")
    expect(rows.first).not_to_have_text(largest)
    names = page.locator('#live-set [data-act="sort"][data-value="name"]')
    names.click()
    shown = page.locator("#live-set tbody .mv-name").all_inner_texts()
    assert shown == sorted(shown, key=str.lower) and len(shown) > 5
    before = picture(page, "#timeline")
    page.locator("#live-set tbody tr").first.hover()
    drawn_otherwise(page, "#timeline", before)
    page.locator('#lower-head [data-value="never"]').click()
    expect(page.locator("#live-set")).to_contain_text("alive at the end")
    assert not page.locator("[data-act]:not([data-set]), [data-csv], [data-take]").count(), "a button that does nothing"


def test_a_saved_comparison_has_every_way_of_looking_at_it(open_saved: Callable[[str], Any]) -> None:
    page = open_saved(report_page([sample("training"), sample("training-checkpointed")]))
    expect(page.locator(".mv-linked .mvt")).to_have_count(2)
    first = page.locator("#differences tbody tr").first
    page.locator('#differences [data-act="by"][data-value="category"]').click()
    expect(first).to_contain_text("activation")
    page.locator('#differences [data-act="sort"][data-value="name"]').click()
    expect(page.locator("#differences th[aria-sort]")).to_contain_text("Category")
    before = picture(page, "#compare-A")
    page.locator("#differences tbody tr").filter(has_text="parameter").hover()
    drawn_otherwise(page, "#compare-A", before)
    page.locator('[data-act="overlay"][data-value="overlay"]').click()
    expect(page.locator("#compare-overlay .mvt")).to_be_visible()
    page.get_by_role("tab", name="B training-checkpointed").click()
    expect(page.locator("#verdict h1")).to_contain_text("The peak is")
    expect(page.locator("#timeline .mvt-plot")).to_be_visible()
    assert not page.locator("[data-act]:not([data-set]), [data-csv], [data-take]").count(), "a button that does nothing"


def test_a_saved_page_is_dark_where_the_system_is_and_fits_a_phone(open_saved: Callable[[str], Any], page: Any) -> None:
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size({"width": 390, "height": 800})
    open_saved(report_page([sample("training"), sample("training-checkpointed")]))
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(15, 15, 17)"
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.get_by_role("button", name="Light").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    page.get_by_role("tab", name="A training").click()
    expect(page.locator("#timeline .mvt-plot")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_text_of_a_trace_does_nothing_in_a_saved_page(open_saved: Callable[[str], Any]) -> None:
    frames = [frame(HOSTILE, f"/{HOSTILE}/model.py", 7)]
    trace = trace_of([alloc(i, 4096, frames=frames) for i in range(3)])
    page = open_saved(report_page([(trace, trace.devices[0])] * 2))
    assert page.evaluate("document.images.length") == 0
    page.get_by_role("tab").nth(1).click()
    expect(page.locator("#live-set")).to_contain_text("onerror=alert(1)")
    assert page.evaluate("document.images.length") == 0
