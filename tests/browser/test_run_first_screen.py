"""The first 900 pixels of Run: few words, few controls, all reached by keys; on phones the answer comes first."""

from typing import Any

import pytest

from tests.browser.conftest import expect, opened
from tests.browser.test_axe import expect_nothing_serious
from tests.browser.test_first_screen import expect_little
from tests.browser.test_run import choose_model, done, field, fill, row, switch
from tests.runner.processes import wait_until

FIGURE = r"[^a-zA-Z]*|[KMGT]?i?B|[TGM]FLOP|m?s|[\d.,]+(e-?\d+|m?s)?"
"""A figure with its unit is no word."""
FOCUSED = """() => {
  const each = document.activeElement, style = getComputedStyle(each);
  const ring = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0;
  return [each.name || each.className || each.id, ring || style.boxShadow !== "none"];
}"""


@pytest.fixture
def tab(same_page: Any, runs: Any) -> Any:
    """A training step, whose prices and output check are all there; one page for all tests of it."""
    page = same_page
    page.set_viewport_size({"width": 1440, "height": 900})
    if not page.url.startswith(runs.address):
        opened(page, runs.address)
    if not switch(page, "checkpointing").is_checked():
        answered(page)
    return page


def answered(tab: Any) -> None:
    choose_model(tab, "gpt2", "dropout")
    field(tab, "w:mode").select_option("training")
    expect(field(tab, "optimizer")).to_be_visible()
    fill(tab, sequence="64", layers="2")
    tab.locator("#run-form .mv-more").first.evaluate("(each) => (each.open = false)")
    switch(tab, "checkpointing").check()
    expect(row(tab, 1)).to_contain_text("bitwise equal")
    done(tab, 2)
    expect(tab.locator(".mv-shimmer")).to_have_count(0)
    expect(tab.locator(":is(#run-A, #run-B) .mvt-plot:visible")).to_have_count(2)


def test_the_first_visit_has_few_words_and_controls(same_page: Any, runs: Any) -> None:
    same_page.set_viewport_size({"width": 1440, "height": 900})
    tab = opened(same_page, runs.address)
    expect(tab.locator("#run-cards .mv-case")).to_have_count(6)
    expect(tab.locator(".mv-idle")).to_contain_text("not usable")
    expect_little(tab, 145, 40, FIGURE)


def test_an_answer_has_few_words_and_keys_reach_all_of_it_with_a_visible_focus(tab: Any) -> None:
    expect_little(tab, 145, 40, FIGURE)
    switch(tab, "checkpointing").focus()
    # By keys from here on, which is what shows the focus.
    tab.keyboard.press("Shift+Tab")
    tab.keyboard.press("Tab")
    reached = []
    for _ in range(60):
        name, is_visible = tab.evaluate(FOCUSED)
        assert is_visible, name
        reached.append(name)
        if tab.evaluate("document.activeElement.matches('#run-results summary')"):
            break
        tab.keyboard.press("Tab")
    usable = [each.get_attribute("name") for each in tab.locator("#run-form [role=switch]:visible").all()]
    assert set(usable) <= set(reached)
    assert sum("mvt-plot" in name for name in reached) == 2, reached
    tab.locator(".mv-chip summary:visible").press("Enter")
    expect(tab.locator("[name='o:checkpointing:every']")).to_be_visible()
    tab.keyboard.press("Tab")
    assert tab.evaluate(FOCUSED)[0] == "o:checkpointing:every"
    row(tab, 1).get_by_role("button", name="Pin").press("Enter")
    expect(row(tab, 1).get_by_role("button", name="Unpin")).to_be_visible()
    switch(tab, "activation_offload").press("Space")
    expect(row(tab, 2)).to_contain_text("Activation offload")
    switch(tab, "activation_offload").press("Space")
    expect(switch(tab, "activation_offload")).not_to_be_checked()
    row(tab, 1).get_by_role("button", name="Unpin").click()
    # What opens at a chip would cover the switches of a narrow window.
    tab.locator(".mv-chip summary:visible").press("Enter")


def test_on_a_phone_the_answer_comes_before_the_list_and_its_headline_stays(tab: Any) -> None:
    tab.set_viewport_size({"width": 390, "height": 844})
    parts = ("[name='workload']", "#run-head h1", "#run-A .mvt-plot", ".mv-variants", ".mv-price-head", ".mv-find-fit")

    def is_in_order() -> bool:
        boxes = [tab.locator(part).bounding_box() for part in parts]
        return None not in boxes and boxes == sorted(boxes, key=lambda box: box["y"])

    wait_until(is_in_order)
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    assert tab.get_by_text("Optimizations", exact=True).filter(visible=True).count() == 1
    switch(tab, "activation_offload").scroll_into_view_if_needed()
    switch(tab, "activation_offload").check()
    expect(row(tab, 1)).to_contain_text("Activation offload")
    headline = tab.locator("#run-head h1")
    expect(headline).to_contain_text("ctivation offload")

    def stays_above_the_switch() -> bool:
        box, below = headline.bounding_box(), switch(tab, "activation_offload").bounding_box()
        return bool(box and below) and 0 <= box["y"] < 60 and below["y"] > box["y"] + box["height"]

    wait_until(stays_above_the_switch)


def test_axe_finds_nothing_serious_in_an_answer_with_all_that_opens_in_it(tab: Any) -> None:
    for summary in tab.locator("#run-results summary, .mv-idle summary").all():
        summary.click()
    expect_nothing_serious(tab)
