"""The legend names every visible colour, for every colouring and width; a kept selection has a chip."""

import re
from pathlib import Path
from typing import Any

import pytest

from memviz.trace.load import load_trace
from tests.browser.conftest import expect, rest
from tests.browser.mounting import TIMELINE, mount_timeline

SAMPLE = Path(__file__).parents[2] / "sample_traces" / "training.pickle.gz"
RESTS_MS = 400
NAMED = """() => [...document.querySelectorAll('.mvt-legend .mvt-key, .mvt-more-list .mvt-key')].map((key) => [
  key.title.replace(/: [\\d,]+ B$/, ''), getComputedStyle(key.querySelector('i')).backgroundColor])"""
IN_SIGHT = f"""() => {{
  const {{ canvas, data }} = {TIMELINE};
  const groups = new Set([...canvas.grid].filter((row) => row >= 0).map((row) => data.group[row]));
  return [...groups].map((group) => data.labels[group]);
}}"""


@pytest.fixture(scope="module")
def trace() -> Any:
    return load_trace(SAMPLE)


@pytest.fixture
def page(same_page: Any, trace: Any) -> Any:
    mount_timeline(same_page, trace)
    return same_page


@pytest.mark.parametrize("width", [1440, 1024, 390])
@pytest.mark.parametrize("meaning", ["category", "site", "module", "size"])
def test_every_colour_in_sight_is_named_once(page: Any, meaning: str, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.get_by_label("Colour", exact=True).select_option(meaning)
    page.wait_for_function(f"({TIMELINE}).data.meaning === '{meaning}'")
    rest(page, RESTS_MS)
    named = page.evaluate(NAMED)
    assert len({name for name, _ in named}) == len(named)
    assert set(page.evaluate(IN_SIGHT)) <= {name for name, _ in named}
    # Input and output are two words for the two ends of one thing.
    colours = {colour for name, colour in named if name != "output"}
    assert len(colours) == len([name for name, _ in named if name != "output"])
    row = page.locator(".mvt-legend")
    fits = "(row) => row.scrollWidth <= row.clientWidth + 1 && row.scrollHeight <= row.clientHeight + 1"
    assert row.evaluate(fits), "no name is cut off"
    hidden = page.locator(".mvt-more-list .mvt-key").count()
    more = page.locator(".mvt-more")
    assert more.is_visible() == (hidden > 0)
    if hidden:
        assert more.inner_text().startswith(f"{hidden} more")
        more.click()
        expect(page.locator(".mvt-more-list .mvt-key").first).to_be_visible()
        box = page.locator(".mvt-more-list").bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= width
        page.keyboard.press("Escape")
        expect(page.locator(".mvt-more-list")).to_be_hidden()


def test_what_is_kept_has_a_chip_outlives_the_meaning_of_colours_and_goes_with_its_chip(page: Any) -> None:
    page.locator(".mvt-legend .mvt-key", has_text="optimizer state").click()
    page.mouse.move(700, 700)
    chip = page.locator(".mvt-chip")
    expect(chip).to_have_text("only optimizer state ×")
    lit = page.evaluate(f"({TIMELINE}).lit.reduce((sum, bit) => sum + bit, 0)")
    assert 0 < lit < page.evaluate(f"({TIMELINE}).lit.length")
    page.get_by_label("Colour", exact=True).select_option("site")
    page.wait_for_function(f"({TIMELINE}).data.meaning === 'site'")
    assert page.evaluate(f"({TIMELINE}).lit.reduce((sum, bit) => sum + bit, 0)") == lit
    expect(chip).to_have_text("only optimizer state ×")
    chip.click()
    page.mouse.move(700, 700)
    expect(chip).to_have_count(0)
    assert page.evaluate(f"({TIMELINE}).lit") is None


@pytest.mark.parametrize("width", [1440, 1024, 760])
def test_what_is_clicked_stays_in_sight_and_the_room_of_its_chip_lights_nothing_else(page: Any, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    rest(page, RESTS_MS)
    titles = page.locator(".mvt-legend .mvt-key").evaluate_all("(keys) => keys.map((key) => key.title)")
    # Of those that have room the one that would lose it next.
    name, _ = min((title.rsplit(": ", 1) for title in titles), key=lambda each: int(re.sub(r"\D", "", each[1])))
    key = page.locator(f".mvt-legend .mvt-key[title^='{name}:']")
    box = key.bounding_box()
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    expect(page.locator(".mvt-chip")).to_have_text(f"only {name} ×")
    rest(page, RESTS_MS)
    expect(key).to_be_visible()
    lit = f"""() => {{
      const {{ lit, data }} = {TIMELINE};
      return [...new Set([...lit].flatMap((bit, row) => (bit ? [data.labels[data.group[row]]] : [])))];
    }}"""
    assert page.evaluate(lit) == [name]


def test_a_key_that_keeps_a_colour_keeps_the_focus(page: Any) -> None:
    page.locator(".mvt-legend .mvt-key", has_text="optimizer state").focus()
    page.keyboard.press("Enter")
    expect(page.locator(".mvt-chip")).to_have_text("only optimizer state ×")
    rest(page, RESTS_MS)
    assert "optimizer state" in page.evaluate("document.activeElement.textContent")
    page.keyboard.press("Enter")
    expect(page.locator(".mvt-chip")).to_have_count(0)
