"""The quick suite's only stories: one per tab, on one page with one visitor, and a saved page."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memviz.trace.load import load_trace
from memviz.ui.saved.report import report_page
from tests.browser.conftest import at_home, expect
from tests.house.repository import ROOT
from tests.ranks.files import write_ranks
from tests.traces import MiB


@pytest.fixture
def home(same_page: Any, runs: Any) -> Any:
    at_home(same_page, runs.address)
    return same_page


def test_explore_draws_a_file_and_says_its_peak(home: Any) -> None:
    home.set_input_files("#first-files input[type=file]", ROOT / "sample_traces" / "training.pickle.gz")
    home.locator("#timeline .mvt[data-drawn]").wait_for()
    expect(home.locator("#verdict .mv-verdict")).to_contain_text(re.compile(r"\d [MG]iB"))
    expect(home.locator("#live-set tbody tr").first).to_contain_text(re.compile(r"[MG]iB"))


def test_compare_draws_two_traces_and_says_which_peaks_lower(home: Any) -> None:
    home.locator("[data-sample=checkpointing]").click()
    expect(home.locator("#compare-top h1")).to_contain_text("lower than training")
    for letter in "AB":
        home.locator(f"#compare-{letter} .mvt[data-drawn]").wait_for()


def test_what_if_says_what_would_have_saved_a_run(home: Any) -> None:
    home.locator("#samples [data-sample=out-of-memory]").click()
    expect(home.locator("#what-if-verdict h1")).to_contain_text("Expandable segments would fit")
    home.locator("#what-if-plot [data-drawn]").wait_for()


def test_ranks_says_which_of_the_files_dropped_together_needs_most(home: Any, tmp_path: Path) -> None:
    folder = write_ranks(tmp_path / "job", 4, rank2=16 * MiB)
    home.set_input_files("#first-files input[type=file]", sorted(folder.iterdir()))
    expect(home.locator("#ranks-verdict h1")).to_contain_text("on rank 2")
    home.locator("#ranks-map .mvn[data-drawn]").wait_for()


def test_run_predicts_a_preset_as_it_is_switched_and_draws_both(home: Any) -> None:
    home.get_by_role("tab", name="Run").click()
    form = home.locator("#run-form")
    form.locator("[name='workload']").select_option("feed_forward")
    expect(form.locator("[name='w:activation']")).to_have_count(1)
    form.locator(".mv-more").first.evaluate("(each) => (each.open = true)")
    for name, text in {"sequence": "256", "layers": "2"}.items():
        form.locator(f"[name='w:{name}']").fill(text)
    form.locator("[name='o:split_feed_forward']").check()
    expect(home.locator("#run-results .mv-is-done")).to_have_count(2)
    expect(home.locator("#run-head h1")).to_contain_text(re.compile("[Ss]plit feed-forward"))
    home.locator("#run-B .mvt[data-drawn]").wait_for()


def test_a_report_opens_from_its_file(open_saved: Callable[[str], Any]) -> None:
    trace = load_trace(ROOT / "sample_traces" / "training.pickle.gz")
    page = open_saved(report_page([(trace, trace.devices[0])]))
    expect(page.locator("#timeline .mvt")).to_have_attribute("data-drawn", re.compile(".+"))
