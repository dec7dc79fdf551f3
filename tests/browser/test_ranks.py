"""Many ranks in the real page: dropped or passed on the command line, drawn before the server has answered."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from memviz.ranks.gather import Gathering, gather_ranks
from tests.browser.conftest import at_home, reload, watch
from tests.browser.test_axe import expect_nothing_serious
from tests.browser.test_first_screen import expect_little
from tests.ranks.files import write_ranks
from tests.server import started
from tests.traces import MiB

SHARES_A_PAGE = True

GIVEN = """
import sys
from memviz.ranks.gather import Gathering, gather_ranks
from memviz.ui.app import build_app, launch_options

build_app(ranks_given=gather_ranks(Gathering((sys.argv[1],), processes=1))).launch(**launch_options())
"""
ROW = """(rank) => {
  const map = document.querySelector("#ranks-map .mvn").parentElement.memviz
    || [...document.querySelectorAll("#ranks-map *")].find((node) => node.memviz).memviz;
  const box = map.plot.getBoundingClientRect();
  const row = map.value.ranks.indexOf(rank);
  return { x: box.left + box.width / 2, y: box.top + (row + 0.5) * map.height };
}"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_ranks(tmp_path_factory.mktemp("recorded") / "job", 6, rank4=16 * MiB)


@pytest.fixture(scope="module")
def given(folder: Path) -> Iterator[str]:
    with started({}, program=("-c", GIVEN, str(folder)), quickly=True) as own:
        yield own.address


@pytest.fixture
def drawn(page: Any, given: str) -> Any:
    """The page as it began: each test leaves rank 4 chosen, but the last, which leaves the tab."""
    if not page.url.startswith(given):
        page.goto(given)
    page.locator("#ranks-map .mvn[data-drawn]").wait_for()
    return page


def heading(page: Any, rank: int) -> Any:
    return page.locator("#ranks-one h2", has_text=re.compile(rf"^Rank {rank}$"))


def test_given_ranks_are_what_is_seen_first(drawn: Any) -> None:
    assert drawn.get_by_role("tab", name="Ranks").get_attribute("aria-selected") == "true"
    said = drawn.locator("#ranks-verdict h1").inner_text()
    assert said.startswith("Highest peak of 6 ranks: 136 MiB, on rank 4. 5 need the same, 1 differs.")
    heading(drawn, 4).wait_for()
    drawn.get_by_role("heading", name="Outliers").wait_for()


def test_a_click_and_the_keys_choose_a_rank(drawn: Any) -> None:
    at = drawn.evaluate(ROW, 2)
    drawn.mouse.move(**at)
    drawn.locator("#ranks-map .mvt-tip", has_text=re.compile("rank 2.*peak 120 MiB.*about", re.DOTALL)).wait_for()
    drawn.mouse.click(**at)
    heading(drawn, 2).wait_for()
    assert drawn.evaluate(ROW, 2)["y"] == at["y"], (
        "what is pointed at stays where it is, however long the answer above it"
    )
    plot = drawn.locator("#ranks-map .mvn-plot")
    plot.focus()
    drawn.keyboard.press("ArrowDown")
    assert plot.get_attribute("aria-valuetext") == "rank 3, peak 120 MiB"
    drawn.keyboard.press("Enter")
    heading(drawn, 3).wait_for()
    assert plot.get_attribute("aria-valuetext") == "rank 3, peak 120 MiB, chosen"
    drawn.locator("#ranks-lists").get_by_role("button", name="rank 4", exact=True).click()
    heading(drawn, 4).wait_for()


def test_the_map_is_sent_as_a_page_in_which_a_rank_is_chosen(drawn: Any, context: Any, tmp_path: Path) -> None:
    drawn.get_by_text("Share", exact=True).click()
    with drawn.expect_download() as download:
        drawn.get_by_role("button", name="One-file page").click()
    download.value.save_as(tmp_path / "ranks.html")
    sent = context.new_page()
    faults = watch(sent)
    sent.goto((tmp_path / "ranks.html").as_uri())
    sent.locator("#ranks-map .mvn[data-drawn]").wait_for()
    heading(sent, 4).wait_for()
    sent.mouse.click(**sent.evaluate(ROW, 2))
    heading(sent, 2).wait_for()
    sent.locator("#ranks-lists").get_by_role("button", name="rank 4", exact=True).click()
    heading(sent, 4).wait_for()
    assert sent.evaluate("document.querySelector('#ranks-map').memviz.value.chosen") == 4
    assert not faults


def test_axe_finds_nothing_serious(drawn: Any) -> None:
    expect_nothing_serious(drawn)


def test_a_rank_is_compared_with_the_median_rank_and_opened(drawn: Any) -> None:
    drawn.get_by_role("button", name="Compare with rank").click()
    drawn.locator("#compare-B .mvt[data-drawn]").wait_for()
    assert drawn.locator(".mv-scores .mv-whose").all_inner_texts() == ["run.rank2", "run.rank4"]
    drawn.get_by_role("tab", name="Ranks").click()
    drawn.get_by_role("button", name="Open in Explore").click()
    drawn.locator("#timeline .mvt[data-drawn]").wait_for()
    assert "136 MiB" in drawn.locator("#verdict .mv-verdict").inner_text()


def test_sixteen_ranks_have_few_words_and_a_list_that_opens(page: Any, server: str, tmp_path: Path) -> None:
    page.set_viewport_size({"width": 1440, "height": 900})
    at_home(page, server)
    page.set_input_files("#first-files input[type=file]", sorted(write_ranks(tmp_path, 16, rank4=16 * MiB).iterdir()))
    heading(page, 4).wait_for()
    page.locator("#traces summary", has_text="10 more").wait_for()
    expect_little(page)
    page.locator("#traces summary").click()
    page.locator(".mv-trace", has_text="rank15").click()
    page.locator("#traces details[open] .mv-chosen", has_text="rank15").wait_for()
    page.locator(".mv-trace b", has_text="rank4").dblclick()
    page.locator(".mv-rename").fill("slow node")
    page.keyboard.press("Enter")
    page.get_by_role("tab", name="Ranks").click()
    page.locator("#ranks-map .mvn-names", has_text="4 slow node").wait_for()
    page.locator("#ranks-one h2", has_text="Rank 4 slow node").wait_for()


def test_ranks_dropped_together_open_their_tab_which_a_reload_keeps(page: Any, server: str, folder: Path) -> None:
    at_home(page, server)
    assert page.get_by_role("tab", name="Ranks").count() == 0
    page.set_input_files("#first-files input[type=file]", sorted(folder.iterdir(), reverse=True))
    page.locator(".mv-trace").nth(5).wait_for()
    names = [text.split("\n")[0] for text in page.locator(".mv-trace").all_inner_texts()]
    assert names == [f"rank{number}" for number in range(6)], "what all have in common is left out"
    assert page.locator(".mv-trace.mv-chosen").inner_text().startswith("rank0")
    heading(page, 4).wait_for()
    page.get_by_label("Check fit on").select_option("RTX 3060")
    page.wait_for_url("**tab=ranks&card=RTX+3060")
    said = page.locator("#ranks-verdict h1", has_text="RTX 3060").inner_text()
    reload(page)
    page.locator("#ranks-map .mvn[data-drawn]").wait_for()
    heading(page, 4).wait_for()
    page.locator("#ranks-verdict h1", has_text=said).wait_for()
    assert page.get_by_label("Check fit on").input_value() == "RTX 3060", "the choice is kept, too"
    page.get_by_role("button", name="Open in Explore").click()
    page.locator(".mv-trace.mv-chosen", has_text="rank4").wait_for()
    page.get_by_role("button", name="Close all").click()
    page.locator("#samples").wait_for()
    page.get_by_role("tab", name="Ranks").wait_for(state="detached")
    page.wait_for_url(lambda address: "trace=" not in address)
    assert page.locator(".mv-trace").count() == 0


def test_a_table_that_is_dropped_opens_its_tab_and_closes(page: Any, server: str, folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    table = tmp_path / "ranks.parquet"
    gather_ranks(Gathering((str(folder),), output=table, processes=1))
    at_home(page, server)
    page.set_input_files("#first-files input[type=file]", table)
    page.locator("#ranks-map .mvn[data-drawn]").wait_for()
    heading(page, 4).wait_for()
    assert page.get_by_role("tab", name="Ranks").get_attribute("aria-selected") == "true"
    assert page.get_by_role("button", name="Open in Explore").count() == 0
    page.wait_for_url("**tab=ranks**")
    reload(page)
    page.locator("#ranks-map .mvn[data-drawn]").wait_for()
    heading(page, 4).wait_for()
    page.get_by_role("button", name="Close ranks.parquet").click()
    page.get_by_role("tab", name="Ranks").wait_for(state="detached")


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
    """Dropped once: each test begins with a rank of 120 MiB in Explore, and the last reloads the page."""
    if page.locator(".mv-trace").count() != COUNT:
        at_home(page, server)
        page.set_input_files("#first-files input[type=file]", files)
        page.locator(".mv-trace").nth(COUNT - 1).wait_for()
        page.locator("#ranks-map .mvn[data-drawn]").wait_for()
        page.get_by_role("tab", name="Explore").click()
    page.locator(WORDS, has_text="120 MiB").wait_for()
    page.wait_for_function("!location.search.includes('tab=ranks')")
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
    return page.get_by_role("button", name=f"rank{rank}").first


def key_of(page: Any, rank: int) -> str:
    key: str = row(page, rank).get_attribute("data-mv-timeline")
    return key


def expect_asked_for(page: Any, rank: int) -> None:
    """Wait until the rank is requested and its answer has arrived."""
    page.locator(f'#timeline .mvt[data-asked~="{key_of(page, rank)}"]').wait_for()


def expect_shown_ahead(page: Any, rank: int) -> None:
    page.locator(f'{AHEAD}[data-key="{key_of(page, rank)}"]').wait_for()
    assert page.locator(".mv-trace.mv-chosen").inner_text().startswith(f"rank{rank}")
    assert page.locator("#traces [aria-current=true]").count() == 1
    # Panels about the previous rank are dimmed.
    page.wait_for_function("() => getComputedStyle(document.querySelector('#verdict')).opacity < 1")


def expect_answered(page: Any, words: str) -> None:
    page.locator(AHEAD).wait_for(state="detached")
    page.locator(WORDS, has_text=words).wait_for()
    page.wait_for_function("() => getComputedStyle(document.querySelector('#verdict')).opacity === '1'")


def test_a_rank_that_was_dropped_is_drawn_before_the_server_answers(dropped: Any) -> None:
    row(dropped, HIGHEST).hover()
    expect_asked_for(dropped, HIGHEST)
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
    dropped.unroute(ANSWERED_AT_ONCE)
    row(dropped, 0).click()
    expect_answered(dropped, "120 MiB")


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
