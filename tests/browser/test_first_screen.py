"""The first screen of Explore, Compare and What if: few words and controls, a picture that stays, and findings."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.browser.conftest import SAMPLES, at_home, expect

SHARES_A_PAGE = True

COUNT = """() => {
  const showing = (element) => element.checkVisibility({ opacityProperty: true, visibilityProperty: true });
  /* The middle of it is on the screen, and inside all that clips it: text for screen readers alone is not. */
  const seen = (element, rect) => {
    if (rect.width < 2 || rect.height < 2) return false;
    const [x, y] = [rect.left + rect.width / 2, rect.top + rect.height / 2];
    const within = (box) => x >= box.left && x <= box.right && y >= box.top && y <= box.bottom;
    if (!within({ left: 0, top: 0, right: innerWidth, bottom: innerHeight })) return false;
    for (let at = element; at && at !== document.body; at = at.parentElement) {
      if (getComputedStyle(at).overflow !== "visible" && !within(at.getBoundingClientRect())) return false;
    }
    return true;
  };
  const wordsOf = (text) => text.split(/\\s+/).filter((word) => /[\\p{L}\\p{N}]/u.test(word));
  const words = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const [node, element] = [texts.currentNode, texts.currentNode.parentElement];
    if (["SCRIPT", "STYLE", "OPTION", "TITLE", "TEXTAREA"].includes(element.tagName) || !showing(element)) continue;
    for (const { index, 0: word } of node.textContent.matchAll(/\\S+/g)) {
      const range = document.createRange();
      range.setStart(node, index);
      range.setEnd(node, index + word.length);
      if (wordsOf(word).length && seen(element, range.getBoundingClientRect())) words.push(word);
    }
  }
  for (const element of document.body.querySelectorAll("*")) {
    if (!showing(element) || !seen(element, element.getBoundingClientRect())) continue;
    for (const part of ["::before", "::after"]) {
      const { content, display } = getComputedStyle(element, part);
      if (/^"/.test(content) && display !== "none") words.push(...wordsOf(content.slice(1, -1)));
    }
    if (element.tagName === "SELECT") words.push(...wordsOf(element.selectedOptions[0]?.text || ""));
    const typed = element.matches("input:not([type=checkbox], [type=radio], [type=file]), textarea");
    if (typed) words.push(...wordsOf(element.value || element.placeholder));
  }
  const pressed = "button, a[href], input, select, textarea, summary, [role=button], [role=tab]";
  const isSeen = (each) => showing(each) && seen(each, each.getBoundingClientRect());
  const nameOf = (each) => each.getAttribute("aria-label") || each.textContent.trim() || each.name || each.tagName;
  return { words, controls: [...document.querySelectorAll(pressed)].filter(isSeen).map(nameOf) };
}"""
"""Lists the words, those of menus, fields and styles too, and the controls that a person sees without scrolling."""
MOST_WORDS, MOST_CONTROLS = 150, 30
MOVES = """() => {
  const seen = (window.tops = new Set());
  const note = () => {
    if (seen !== window.tops) return;
    const parts = ["overview-row", "plot"].map((name) => document.querySelector(`#timeline .mvt-${name}`));
    const [overview, plot] = parts.map((part) => part?.getBoundingClientRect());
    if (overview?.width) seen.add(`${Math.round(overview.top + scrollY)} ${Math.round(plot.top + scrollY)}`);
    requestAnimationFrame(note);
  };
  note();
}"""
"""Notes in each frame where overview and plot begin."""


@pytest.fixture
def opened(page: Any, server: str) -> Any:
    """Two traces, compared; the findings of the one in Explore have their estimates. Tests only read them."""
    page.set_viewport_size({"width": 1440, "height": 900})
    if not page.url.startswith(server) or page.locator("#traces .mv-trace").count() != 2:
        at_home(page, server)
        expect_little(page)
        page.locator("[data-sample=checkpointing]").click()
        page.locator("#compare-B .mvt[data-drawn]").wait_for()
        page.locator("#differences table").wait_for()
    return page


@pytest.fixture
def explored(opened: Any) -> Any:
    """The one in Explore, with the actions offered for its findings."""
    opened.get_by_role("tab", name="Explore").click()
    # What lies under the mouse of the story before would be lit.
    opened.mouse.move(0, 0)
    opened.locator("#findings [data-act=estimate]").first.wait_for(state="attached")
    return opened


def expect_little(page: Any, words: int = MOST_WORDS, controls: int = MOST_CONTROLS, no_word: str = "") -> None:
    """Expect few words, without those that match a pattern, and few controls."""
    seen = page.evaluate(COUNT)
    shown = [word for word in seen["words"] if not re.fullmatch(no_word, word)]
    assert len(shown) <= words, (len(shown), " ".join(shown))
    assert len(seen["controls"]) <= controls, (len(seen["controls"]), seen["controls"])


def test_every_tab_has_little_and_what_if_says_the_rest_beside_what_is_pointed_at(opened: Any) -> None:
    page = opened
    expect_little(page)
    page.get_by_role("tab", name="Explore").click()
    page.locator("#findings [data-act=estimate]").first.wait_for(state="attached")
    page.locator("#timeline .mvt[data-drawn] .mvt-pilltext").wait_for()
    expect_little(page)
    page.get_by_role("tab", name="What if").click()
    page.locator("#what-if-plot [data-drawn]").wait_for()
    expect_little(page)
    help_text = page.locator("#what-if-help-max_split")
    expect(help_text).to_be_hidden()
    field = page.get_by_label("max_split_size_mb")
    field.focus()
    expect(help_text).to_be_visible()
    assert field.get_attribute("aria-describedby") == "what-if-help-max_split"
    overhead = page.locator("#what-if-form [name=overhead]")
    expect(overhead).to_be_hidden()
    page.locator("#what-if-form [name=card]").select_option("24")
    expect(overhead).to_be_visible()


def expect_beside(page: Any) -> None:
    plot, beside = page.locator("#timeline .mvt").bounding_box(), page.locator("#inspector").bounding_box()
    assert beside["x"] >= plot["x"] + plot["width"]
    assert plot["y"] <= beside["y"] < plot["y"] + 30
    assert beside["height"] <= plot["height"] + 30, "what is long scrolls inside"


def test_nor_more_after_a_run_that_ran_out_of_memory(page: Any, server: str) -> None:
    at_home(page, server)
    page.set_viewport_size({"width": 1440, "height": 900})
    page.locator("#samples [data-sample=out-of-memory]").click()
    page.locator("#what-if-plot [data-drawn]").wait_for()
    expect_little(page)
    page.get_by_role("tab", name="Explore").click()
    page.locator("#timeline .mvt[data-drawn] .mvt-pilltext").wait_for()
    expect_little(page)


@pytest.mark.parametrize(
    ("name", "width", "height"), [("training", 1440, 900), ("late-start", 1024, 768), ("out-of-memory", 1024, 768)]
)
def test_the_picture_begins_in_the_upper_third_and_stays_there(
    page: Any, server: str, name: str, width: int, height: int
) -> None:
    page.set_viewport_size({"width": width, "height": height})
    at_home(page, server)
    page.evaluate(MOVES)
    page.set_input_files("#first-files input[type=file]", SAMPLES / f"{name}.pickle.gz")
    page.locator("#findings .mv-finding").first.wait_for()
    page.locator("#findings [data-act=estimate]").first.wait_for(state="attached")
    page.locator("#timeline .mvt[data-drawn] .mvt-pilltext").wait_for()
    page.locator("#live-set table").wait_for()
    page.locator("#timeline .mvt-plot").focus()
    for key in ("ArrowUp", "Enter"):
        page.keyboard.press(key)
    page.locator("#inspector .mv-pinned").wait_for()
    expect_beside(page)
    (tops,) = page.evaluate("[...window.tops]")
    overview, _ = map(int, tops.split())
    assert 0 < overview <= height / 3


def test_a_finding_opens_whole_and_a_pinned_allocation_beside_the_picture(explored: Any) -> None:
    page = explored
    page.locator("#timeline .mvt[data-drawn] .mvt-pilltext").wait_for()
    estimate = page.locator("#findings [data-act=estimate]").first
    expect(estimate).to_be_hidden()
    chip = page.locator("#findings .mv-finding").first
    chip.click()
    expect(estimate).to_be_visible()
    # A press on what it says keeps it open.
    page.locator("#findings .mv-kept .mv-whole p").first.click()
    expect(estimate).to_be_visible()
    chip.click()
    expect(estimate).to_be_hidden()
    page.locator("#timeline .mvt-plot").focus()
    for key in ("ArrowUp", "Enter"):
        page.keyboard.press(key)
    page.get_by_role("heading", name="Pinned allocation").wait_for()
    expect_little(page)
    expect_beside(page)
    alike = page.locator("#inspector .mv-alike button")
    alike.click()
    expect(page.locator(".mvt-chip")).to_contain_text("like this one")
    page.keyboard.press("Escape")
    expect(page.locator("#inspector .mv-pinned")).to_have_count(0)
    expect(page.locator(".mvt-chip")).to_have_count(0)


def unfold(page: Any, size: str) -> None:
    """Open a finding by its chip, from behind the count of the others if it is there."""
    if not page.locator("#findings .mv-fold details").get_attribute("open"):
        page.locator("#findings .mv-fold summary").click()
    page.locator("#findings .mv-finding", has_text=size).click()


def test_a_finding_is_lit_by_keyboard_and_let_go(explored: Any) -> None:
    second = explored.locator("#findings .mv-finding").nth(1)
    second.focus()
    explored.keyboard.press("Enter")
    expect(second).to_have_attribute("aria-pressed", "true")
    chip = explored.get_by_role("button", name=re.compile("^Show all, not only 128 MiB"))
    chip.wait_for()
    explored.keyboard.press("Escape")
    expect(second).to_have_attribute("aria-pressed", "false")


def test_a_finding_leads_to_the_tab_that_helps(explored: Any) -> None:
    unfold(explored, "112 MiB")
    explored.locator("#findings").get_by_role("button", name="What if", exact=True).click()
    expect(explored.get_by_role("tab", name="What if")).to_have_attribute("aria-selected", "true")
    explored.locator("#what-if-verdict h1").wait_for()


def test_a_finding_leads_to_a_run_with_what_helps_on_and_says_which_model_stands_in(explored: Any) -> None:
    unfold(explored, "1,170 MiB")
    explored.locator("#findings").get_by_role("button", name="Run", exact=True).first.click()
    note = explored.locator("#run-form [data-part=stand-in]")
    workload = explored.locator("#run-form [name=workload]")
    expect(note).to_contain_text("stands in")
    assert workload.locator("option:checked").inner_text() in note.inner_text()
    expect(explored.get_by_role("tab", name="Run")).to_have_attribute("aria-selected", "true")
    expect(explored.locator("#run-form [name='o:checkpointing']")).to_be_checked()
    expect(explored.locator("#run-form [data-part='price:checkpointing'] b")).to_be_visible()
    assert explored.locator("#run-form [name='w:mode']").input_value() == "training"
    # Of another model it is no longer so.
    workload.select_option("llama")
    expect(note).to_be_empty()


def test_all_but_two_are_folded(explored: Any) -> None:
    """The last story: after a narrow window the sidebar stays a drawer."""
    everything = explored.locator("#findings .mv-finding").count()
    assert everything > 2
    for width in (1440, 390):
        explored.set_viewport_size({"width": width, "height": 900})
        seen = explored.locator("#findings .mv-finding:visible")
        expect(seen).to_have_count(2)
        fold = explored.locator("#findings .mv-fold summary")
        fold.focus()
        explored.keyboard.press("Enter")
        expect(seen).to_have_count(everything)
        explored.keyboard.press("Enter")
        expect(seen).to_have_count(2)
