"""A click on one of many ranks draws it without a wait: before the server has answered, of pieces that are at hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import at_home, reload
from tests.ranks.files import write_ranks
from tests.traces import MiB

COUNT = 5
HIGHEST = 3
QUESTIONS = "**/gradio_api/queue/join*"
ANSWERED_AT_ONCE = "**/gradio_api/run/predict*"
AHEAD = "#timeline .mvt[data-ahead]"
BEFORE_THE_PEAK = "event 19"
WORDS = "#verdict .mv-verdict"
SEE_HEADS = """() => {
  const head = document.querySelector("#lower-head");
  window.heads = [];
  const see = () => window.heads.push(head.textContent);
  new MutationObserver(see).observe(head, { subtree: true, childList: true, characterData: true });
}"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("recorded")
    return sorted(write_ranks(folder, COUNT, **{f"rank{HIGHEST}": 16 * MiB}).iterdir())


@pytest.fixture
def dropped(page: Any, server: str, files: list[Path]) -> Any:
    at_home(page, server)
    page.set_input_files("#first-files input[type=file]", files)
    page.locator(".mv-trace").nth(COUNT - 1).wait_for()
    page.locator(WORDS, has_text="120 MiB").wait_for()
    return page


@contextmanager
def nobody_answers(page: Any) -> Iterator[None]:
    """Hold the page's requests to its server, and send them in order at the end."""
    held: list[Any] = []
    page.route(QUESTIONS, lambda route: held.append(route))
    yield
    while held:
        held.pop(0).continue_()
    page.unroute(QUESTIONS)


def row(page: Any, rank: int) -> Any:
    return page.get_by_role("button", name=f"run.rank{rank}").first


def key_of(page: Any, rank: int) -> str:
    key: str = row(page, rank).get_attribute("data-mv-timeline")
    return key


def expect_asked_for(page: Any, rank: int) -> None:
    """Wait until the rank is requested and its answer has arrived."""
    page.locator(f'#timeline .mvt[data-asked~="{key_of(page, rank)}"]').wait_for()


def expect_shown_ahead(page: Any, rank: int) -> None:
    page.locator(f'{AHEAD}[data-key="{key_of(page, rank)}"]').wait_for()
    assert page.locator(".mv-trace.mv-chosen").inner_text().startswith(f"run.rank{rank}")
    assert page.locator("#traces [aria-current=true]").count() == 1
    # Panels about the previous rank are dimmed.
    page.wait_for_function("() => getComputedStyle(document.querySelector('#verdict')).opacity < 1")


def expect_answered(page: Any, words: str) -> None:
    page.locator(AHEAD).wait_for(state="detached")
    page.locator(WORDS, has_text=words).wait_for()
    page.wait_for_function("() => getComputedStyle(document.querySelector('#verdict')).opacity === '1'")


def test_a_rank_that_was_dropped_is_drawn_before_the_server_answers(dropped: Any) -> None:
    with nobody_answers(dropped):
        row(dropped, HIGHEST).click()
        expect_shown_ahead(dropped, HIGHEST)
    expect_answered(dropped, "136 MiB")
    with nobody_answers(dropped):
        row(dropped, 0).click()
        expect_shown_ahead(dropped, 0)
    expect_answered(dropped, "120 MiB")


def test_an_answer_that_is_overtaken_on_its_way_is_not_what_stays(dropped: Any) -> None:
    held: list[tuple[Any, Any]] = []

    def hold_the_peak(route: Any) -> None:
        """Delay the other trace's answer at its peak, so that it arrives last."""
        sent = route.request.post_data_json
        if held or sent["event_data"] is not None or len(sent["data"]) != 3:
            route.continue_()
        else:
            held.append((route, route.fetch()))

    dropped.route(ANSWERED_AT_ONCE, hold_the_peak)
    row(dropped, HIGHEST).click()
    expect_answered(dropped, "136 MiB")
    dropped.locator("#timeline .mvt-plot").focus()
    dropped.keyboard.press("Shift+ArrowLeft")
    dropped.locator("#lower-head", has_text=BEFORE_THE_PEAK).wait_for()
    dropped.evaluate(SEE_HEADS)
    [(route, answer)] = held
    route.fulfill(response=answer)
    dropped.wait_for_function("at => window.heads.some((words) => words.includes(at))", arg="event 20 ")
    dropped.locator("#lower-head", has_text=BEFORE_THE_PEAK).wait_for()


def test_after_a_reload_what_the_mouse_rests_on_and_its_neighbours_are_asked_for(dropped: Any) -> None:
    reload(dropped)
    dropped.locator("#timeline .mvt[data-drawn]").wait_for()
    row(dropped, 1).wait_for()
    row(dropped, 1).hover()
    expect_asked_for(dropped, 1)
    with nobody_answers(dropped):
        row(dropped, 1).click()
        expect_shown_ahead(dropped, 1)
    expect_answered(dropped, "120 MiB")
    expect_asked_for(dropped, 2)
    with nobody_answers(dropped):
        # By the keyboard: nothing rested on it.
        row(dropped, 2).evaluate("(node) => node.click()")
        expect_shown_ahead(dropped, 2)
    expect_answered(dropped, "120 MiB")
