"""Many ranks in the real page: dropped together, or passed on the command line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from memviz.ranks.gather import Gathering, gather_ranks
from tests.browser.conftest import at_home
from tests.browser.test_axe import expect_nothing_serious
from tests.ranks.files import write_ranks
from tests.server import started
from tests.traces import MiB

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
    page.goto(given)
    page.locator("#ranks-map .mvn[data-drawn]").wait_for()
    return page


def heading(page: Any, rank: int) -> Any:
    return page.locator("#ranks-one h2", has_text=re.compile(rf"^Rank {rank}$"))


def test_given_ranks_are_what_is_seen_first(drawn: Any) -> None:
    assert drawn.get_by_role("tab", name="Ranks").get_attribute("aria-selected") == "true"
    said = drawn.locator("#ranks-verdict h1").inner_text()
    assert said.startswith("Of 6 ranks the highest peak is 136 MiB, on rank 4. 5 need the same, 1 differs.")
    heading(drawn, 4).wait_for()
    drawn.get_by_role("heading", name="Ranks that stand out").wait_for()


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


def test_a_rank_is_compared_with_the_median_rank_and_opened(drawn: Any) -> None:
    drawn.get_by_role("button", name="Compare with rank").click()
    drawn.locator("#compare-B .mvt[data-drawn]").wait_for()
    assert drawn.locator(".mv-scores .mv-whose").all_inner_texts() == ["run.rank2", "run.rank4"]
    drawn.get_by_role("tab", name="Ranks").click()
    drawn.get_by_role("button", name="Open in Explore").click()
    drawn.locator("#timeline .mvt[data-drawn]").wait_for()
    assert "136 MiB" in drawn.locator("#verdict .mv-verdict").inner_text()


def test_axe_finds_nothing_serious(drawn: Any) -> None:
    expect_nothing_serious(drawn)


def test_files_dropped_together_stay_at_the_first_and_make_the_tab(page: Any, server: str, folder: Path) -> None:
    at_home(page, server)
    assert page.get_by_role("tab", name="Ranks").count() == 0
    page.set_input_files("#first-files input[type=file]", sorted(folder.iterdir()))
    page.locator(".mv-trace").nth(5).wait_for()
    names = [text.split("\n")[0] for text in page.locator(".mv-trace").all_inner_texts()]
    assert names == [f"run.rank{number}" for number in range(6)]
    assert page.locator(".mv-trace.mv-chosen").inner_text().startswith("run.rank0")
    page.get_by_role("tab", name="Ranks").click()
    page.locator("#ranks-map .mvn[data-drawn]").wait_for()
    heading(page, 4).wait_for()
    page.get_by_role("button", name="Open in Explore").click()
    page.locator(".mv-trace.mv-chosen", has_text="run.rank4").wait_for()


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
    page.get_by_role("button", name="Close ranks.parquet").click()
    page.get_by_role("tab", name="Ranks").wait_for(state="detached")
