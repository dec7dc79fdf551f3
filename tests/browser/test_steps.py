"""The back button undoes a zoom, a choice, a tab, a turn to another trace, one at a time; forward does them again."""

from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.browser.conftest import at_home, expect, reload, rest

SAMPLES = Path(__file__).parents[2] / "sample_traces"
RESTS_MS = 750
"""`REST_MS` of the page's steps is 700."""
VIEW = """() => {
  const host = [...document.querySelectorAll('#timeline, #timeline *')].find((node) => node.memviz);
  const { viewport, pin, data } = host.memviz;
  return { ...viewport.sight(), pin, colour: data.meaning, key: data.key };
}"""

BURST = """(plot, [clientX, clientY]) => {
  const wheel = { clientX, clientY, deltaY: -120, bubbles: true, cancelable: true };
  for (let i = 0; i < 8; i++) plot.dispatchEvent(new WheelEvent("wheel", wheel));
  for (let i = 0; i < 4; i++) plot.dispatchEvent(new WheelEvent("wheel", { ...wheel, shiftKey: true }));
}"""
"""Separate mouse events could be so far apart on a busy machine that the view rests in between."""


@pytest.fixture
def opened(same_page: Any, server: str) -> Any:
    page = same_page
    at_home(page, server)
    open_sample(page, "training")
    return page


def open_sample(page: Any, name: str) -> None:
    page.locator("#first-files input[type=file], #files input[type=file]").first.set_input_files(
        SAMPLES / f"{name}.pickle.gz"
    )
    page.locator(f"#traces .mv-chosen [title^='{name}']").first.wait_for()
    page.locator("#timeline .mvt[data-drawn] .mvt-pilltext").wait_for()
    rest(page, RESTS_MS)


def view(page: Any) -> dict[str, Any]:
    seen: dict[str, Any] = page.evaluate(VIEW)
    return seen


def entries(page: Any) -> int:
    count: int = page.evaluate("history.length")
    return count


def expect_entries(page: Any, count: int) -> None:
    """Wait for exactly this number of history entries."""
    page.wait_for_function("(count) => history.length >= count", arg=count)
    rest(page, RESTS_MS)
    assert entries(page) == count


def back(page: Any, wanted: dict[str, Any], *, forward: bool = False) -> None:
    page.evaluate("forward => forward ? history.forward() : history.back()", forward)
    page.wait_for_function(f"(wanted) => JSON.stringify(({VIEW})()) === JSON.stringify(wanted)", arg=wanted)
    rest(page, RESTS_MS)


def test_a_burst_of_zooms_is_one_step_and_each_step_is_undone_and_done_again(opened: Any) -> None:
    begun, before = view(opened), entries(opened)
    box = opened.locator("#timeline .mvt-plot").bounding_box()
    opened.locator("#timeline .mvt-plot").evaluate(BURST, [box["x"] + 400, box["y"] + 200])
    expect_entries(opened, before + 1)
    zoomed = view(opened)
    assert zoomed["top"] < begun["top"] and zoomed["last"] < begun["last"]
    # Low in the plot, where an allocation is.
    opened.locator("#timeline .mvt-plot").click(position={"x": 400, "y": 0.8 * box["height"]}, force=True)
    expect_entries(opened, before + 2)
    pinned = view(opened)
    assert pinned["pin"] >= 0
    opened.locator("#timeline").get_by_label("Colour", exact=True).select_option("site")
    expect_entries(opened, before + 3)
    coloured = view(opened)
    back(opened, pinned)
    assert "colour=category" in opened.url
    back(opened, zoomed)
    back(opened, begun)
    assert "low=" not in opened.url
    back(opened, zoomed, forward=True)
    back(opened, pinned, forward=True)
    back(opened, coloured, forward=True)
    assert "colour=site" in opened.url and "pin=" in opened.url and "low=" in opened.url
    assert entries(opened) == before + 3, "going back and forth makes no steps of its own"


def shown_tab(page: Any, name: str) -> None:
    expect(page.get_by_role("tab", name=name)).to_have_attribute("aria-selected", "true")


def test_from_the_first_trace_back_leads_to_the_samples_and_forward_to_it_again(page: Any, server: str) -> None:
    at_home(page, server)
    before = entries(page)
    page.locator("[data-sample=training]").click()
    page.locator("#timeline .mvt[data-drawn] .mvt-pilltext").wait_for()
    expect_entries(page, before + 1)
    first = view(page)
    page.evaluate("history.back()")
    page.locator("#samples [data-sample=training]").wait_for()
    assert page.url.startswith(server) and "trace=" not in page.url
    # It stays open.
    expect(page.locator("#traces .mv-trace")).to_have_count(1)
    back(page, first, forward=True)
    page.locator("#verdict h1").wait_for()
    assert entries(page) == before + 1


def test_an_estimate_is_one_step_though_it_opens_a_trace_and_turns_to_another_tab(page: Any, server: str) -> None:
    at_home(page, server)
    page.locator("[data-sample=training]").click()
    page.locator("#findings .mv-finding").first.click()
    offered = page.locator("#findings [data-act=estimate]").first
    offered.wait_for()
    page.wait_for_timeout(RESTS_MS)
    before, first = entries(page), view(page)
    offered.click()
    page.locator("#compare-B .mvt[data-drawn]").wait_for()
    expect_entries(page, before + 1)
    back(page, first)
    shown_tab(page, "Explore")
    page.evaluate("history.forward()")
    shown_tab(page, "Compare")
    expect(page.locator("#compare-top h1")).to_contain_text("checkpoint 8 layers")


@pytest.mark.parametrize(("tab", "shown"), [("run", "Run"), ("ranks", "Explore")])
def test_a_link_to_a_trace_turns_to_its_tab_unless_that_is_hidden(page: Any, server: str, tab: str, shown: str) -> None:
    page.goto(f"{server}?trace=sample:training.pickle.gz&tab={tab}")
    page.locator("#traces .mv-chosen").wait_for()
    expect(page.get_by_role("tab", name=shown, selected=True)).to_be_visible()


def test_the_address_names_the_trace_that_is_shown_and_nothing_of_another_one(opened: Any) -> None:
    opened.locator("#timeline .mvt-plot").focus()
    for key in ("ArrowRight", "ArrowRight"):
        opened.keyboard.press(key)
    opened.wait_for_function("location.search.includes('at=')")
    first = link_in(opened.url)
    open_sample(opened, "late-start")
    opened.wait_for_function("(first) => !location.search.includes(first)", arg=first)
    second = link_in(opened.url)
    assert "at=" not in opened.url, "the moment was chosen in the other trace"
    opened.locator("#traces [title^='training']").first.click()
    opened.wait_for_function("(first) => location.search.includes(first)", arg=first)
    rest(opened, RESTS_MS)
    assert link_in(opened.url) == first and "at=" not in opened.url
    opened.locator("#traces [title^='late-start']").first.click()
    opened.wait_for_function("(second) => location.search.includes(second)", arg=second)
    reload(opened)
    opened.locator("#traces .mv-chosen [title^='late-start']").first.wait_for()


def link_in(address: str) -> str:
    return parse_qs(urlsplit(address).query)["trace"][0]
