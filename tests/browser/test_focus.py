"""Keyboard focus stays on the page after every press, even if the pressed control is replaced."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import at_home, playwright
from tests.ranks.files import write_ranks
from tests.traces import MiB

SHARES_A_PAGE = True


STANDS_ON = """() => {
  const node = document.activeElement;
  return node === document.body ? "nowhere" : (node.getAttribute("aria-label") || node.textContent).trim();
}"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("recorded")
    damaged = folder / "damaged.pickle"
    damaged.write_bytes(b"\x80\x04 and no more")
    return [*sorted(write_ranks(folder / "job", 4, rank3=16 * MiB).iterdir()), damaged]


@pytest.fixture
def dropped(page: Any, server: str, files: list[Path]) -> Any:
    at_home(page, server)
    page.set_input_files("#first-files input[type=file]", files)
    page.locator(".mv-trace").nth(3).wait_for()
    page.locator("#ranks-map .mvn[data-drawn]").wait_for()
    page.get_by_role("tab", name="Explore").click()
    page.locator("#timeline .mvt[data-drawn]").wait_for()
    page.get_by_role("button", name="Dismiss").wait_for()
    return page


def press(page: Any, control: Any) -> None:
    control.focus()
    page.keyboard.press("Enter")


def expect_to_stand_on(page: Any, words: str) -> None:
    with suppress(playwright.TimeoutError):
        page.wait_for_function(f"(words) => ({STANDS_ON})() === words", arg=words)
    assert page.evaluate(STANDS_ON) == words


def test_the_keyboard_is_never_left_nowhere(dropped: Any) -> None:
    press(dropped, dropped.get_by_role("button", name="Dismiss"))
    expect_to_stand_on(dropped, "Explore")
    press(dropped, dropped.get_by_role("button", name="Close run.rank1"))
    expect_to_stand_on(dropped, "Close run.rank2")
    key = dropped.locator("#timeline .mvt-key").first
    words = key.text_content()
    press(dropped, key)
    dropped.locator("#timeline .mvt-key[aria-pressed=true]").first.wait_for()
    expect_to_stand_on(dropped, words)
    press(dropped, dropped.get_by_role("tab", name="Segments"))
    empty = dropped.locator('#loaded .mvs-plot[aria-label*="no segments"]')
    empty.wait_for(state="attached")
    assert empty.get_attribute("tabindex") == "-1", "where nothing is drawn, nobody stops unseen"
    press(dropped, dropped.get_by_role("tab", name="Ranks"))
    press(dropped, dropped.get_by_role("button", name="Compare with rank"))
    expect_to_stand_on(dropped, "Compare")


def test_an_answer_that_turns_the_page_takes_the_keyboard_along(page: Any, server: str) -> None:
    at_home(page, server)
    press(page, page.get_by_role("button", name="What does checkpointing save?"))
    expect_to_stand_on(page, "Compare")
    page.locator("#compare-B .mvt[data-drawn]").wait_for()
    press(page, page.get_by_role("button", name="Overlay", exact=True))
    page.locator("[data-value=overlay][aria-pressed=true]").wait_for()
    expect_to_stand_on(page, "Overlay")


def test_a_switch_keeps_the_keyboard_while_its_answer_comes(page: Any, server: str) -> None:
    at_home(page, server)
    page.get_by_role("tab", name="Run").click()
    switch = page.locator("#run-form [name='o:allocator_settings']")
    switch.focus()
    page.keyboard.press("Space")
    page.locator("#run-results .mv-variant").nth(1).wait_for()
    assert switch.evaluate("(each) => each === document.activeElement")


def test_who_points_at_things_is_put_nowhere(dropped: Any) -> None:
    dropped.get_by_role("button", name="Dismiss").click()
    dropped.get_by_role("button", name="Dismiss").wait_for(state="detached")
    assert dropped.evaluate(STANDS_ON) == "nowhere", "the space bar scrolls the page, and presses no tab"
