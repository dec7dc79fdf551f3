"""Findings under the headline: what one lights, the estimate it opens, and the tab it leads to."""

import re
from typing import Any

import pytest

from tests.browser.conftest import at_home, expect


@pytest.fixture
def explored(same_page: Any, server: str) -> Any:
    """The first of the two traces of a sample, with the actions offered for its findings. Opened once."""
    if not same_page.url.startswith(server):
        at_home(same_page, server)
        same_page.locator(".mv-sample[data-sample=checkpointing]").click()
        # The sample turns to Compare by itself.
        same_page.locator("#compare-B .mvt[data-drawn]").wait_for()
    same_page.get_by_role("tab", name="Explore").click()
    same_page.locator("#findings [data-act=estimate]").first.wait_for(state="attached")
    return same_page


def unfold(page: Any, size: str) -> None:
    """Open a finding by its chip, from behind the count of the others if it is there."""
    if not page.locator("#findings .mv-fold details").get_attribute("open"):
        page.locator("#findings .mv-fold summary").click()
    page.locator("#findings .mv-finding", has_text=size).click()


def test_all_but_two_are_folded(explored):
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


def test_a_finding_is_lit_by_keyboard_and_let_go(explored):
    second = explored.locator("#findings .mv-finding").nth(1)
    second.focus()
    explored.keyboard.press("Enter")
    expect(second).to_have_attribute("aria-pressed", "true")
    chip = explored.get_by_role("button", name=re.compile("^Show all, not only 128 MiB"))
    chip.wait_for()
    explored.keyboard.press("Escape")
    expect(second).to_have_attribute("aria-pressed", "false")


def test_a_finding_leads_to_the_tab_that_helps(explored):
    unfold(explored, "112 MiB")
    explored.locator("#findings").get_by_role("button", name="What if", exact=True).click()
    expect(explored.get_by_role("tab", name="What if")).to_have_attribute("aria-selected", "true")
    explored.locator("#what-if-verdict h1").wait_for()


def test_a_finding_leads_to_a_run_with_what_helps_on_and_says_which_model_stands_in(explored):
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
