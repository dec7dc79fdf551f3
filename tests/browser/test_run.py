"""The Run tab: configurations that fit a GPU, their cost, output checks and failures."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import new_visitor
from tests.runner.processes import wait_until
from tests.server import ROOT, started

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
expect = playwright.expect
PATIENCE_MS = 150_000
"""A first run imports PyTorch and the libraries of models."""

SMALL = {"sequence": "256", "layers": "2"}
"""Settings of the feed-forward stack that run in a fraction of a second."""


PAGE = """
from memviz.ui.app import build_app, launch_options
from tests import forked

forked.runs_from_here()
build_app().launch(**launch_options())
"""
"""Its runs have PyTorch as they start. Another story runs a model in the page as people start it."""


@contextmanager
def page_of(folder: Path, port: int = 0) -> Iterator[Any]:
    """Start a page that saves its runs in a folder of the tests."""
    known = {"MEMVIZ_RUNS": str(folder), "PYTHONPATH": str(ROOT)}
    with started(known, port, ("-c", PAGE), quickly=True) as server:
        yield server


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with page_of(tmp_path_factory.mktemp("runs")) as server:
        yield server


@pytest.fixture
def tab(page: Any, runs: Any) -> Any:
    return opened(page, runs.address)


def opened(page: Any, address: str) -> Any:
    page.goto(address)
    page.get_by_role("tab", name="Run").click()
    expect(page.locator("#run-form .mv-opt").first).to_be_visible()
    return page


def field(page: Any, name: str) -> Any:
    return page.locator(f"#run-form [name='{name}']")


def fill(page: Any, **texts: str) -> None:
    page.locator("#run-form .mv-more").first.evaluate("(each) => (each.open = true)")
    for name, text in texts.items():
        field(page, f"w:{name}").fill(text)


def row(page: Any, number: int) -> Any:
    return page.locator("#run-results .mv-variant").nth(number)


def verdict(page: Any) -> Any:
    return page.locator("#run-head h1")


def press(page: Any, words: str | re.Pattern[str]) -> None:
    page.locator("#run-form").get_by_role("button", name=words).click()


def done(page: Any, count: int) -> None:
    expect(page.locator("#run-results :is(.mv-is-done, .mv-is-failed)")).to_have_count(count)
    expect(page.get_by_role("button", name="Cancel")).to_have_count(0)


def workers(server: Any) -> list[int]:
    """Return the run processes that this page has started, each in its own session."""
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        try:
            _, parent, _, session = (each / "stat").read_text().rpartition(")")[2].split()[:4]
            if (int(parent), session) == (server.pid, each.name):
                found.append(int(each.name))
        except OSError:
            continue
    return found


def test_checkpointing_makes_a_training_step_fit_and_keeps_its_outputs(tab: Any) -> None:
    field(tab, "workload").select_option("ltx_video")
    expect(field(tab, "w:frames")).to_have_value("81")
    assert field(tab, "w:mode").input_value() == "training"
    field(tab, "card").select_option("NVIDIA GeForce RTX 4090")
    # A quarter of the blocks, for nearly five times as many tokens: more memory in a quarter of the time.
    fill(tab, layers="7", frames="561")
    field(tab, "o:checkpointing").check()
    press(tab, "Predict 2 variants")
    expect(row(tab, 0)).to_contain_text("does not fit")
    expect(row(tab, 1)).to_contain_text("✓ fits")
    expect(verdict(tab)).to_contain_text(
        re.compile(r"Checkpoint blocks makes the step fit, with no optimizer\. It saves .* more work\.")
    )
    done(tab, 2)
    expect(row(tab, 1)).to_contain_text("output bitwise equal")
    expect(tab.locator("#run-results table")).to_contain_text("bitwise equal, as claimed")
    expect(tab.locator(".mv-take-away")).to_contain_text("Checkpointing().apply(model)")
    line = "python -m memviz run ltx_video --set frames=561 --set layers=7 --with"
    expect(tab.locator(".mv-take-away")).to_contain_text(line)
    tab.get_by_role("button", name="Compare both").click()
    scores = tab.locator("#compare-top .mv-scores")
    expect(scores).to_contain_text("TFLOP")
    expect(scores).to_contain_text("bitwise equal")
    drawn = "[...document.querySelectorAll('.mv-linked *')].filter((each) => each.memviz?.data)"
    tab.wait_for_function(f"{drawn}.length === 2")
    tab.locator("#compare-A .mvt-plot").focus()
    tab.keyboard.press("+")
    tab.wait_for_function(f"{drawn}.filter((each) => each.memviz.viewport.first > 0).length === 2")


@pytest.mark.parametrize("width", [1440, 390])
def test_whoever_presses_far_below_sees_what_comes_of_it(tab: Any, width: int) -> None:
    tab.set_viewport_size({"width": width, "height": 844})
    field(tab, "workload").select_option("feed_forward")
    fill(tab, **SMALL)
    field(tab, "o:allocator_settings").scroll_into_view_if_needed()
    # What does not go explains itself where it is, and nothing moves.
    field(tab, "w:sequence").fill("no number")
    expect(tab.locator("#run-form [data-fault='w:sequence']")).to_contain_text("not a whole number")
    field(tab, "o:allocator_settings").scroll_into_view_if_needed()
    press(tab, "Predict")
    expect(tab.locator("#run-said")).to_contain_text("Nothing was run")
    assert tab.evaluate("scrollY") > 100
    fill(tab, **SMALL)
    expect(tab.locator("#run-form [data-fault='w:sequence']")).to_be_empty()
    field(tab, "o:allocator_settings").scroll_into_view_if_needed()
    press(tab, "Predict")
    expect(row(tab, 0)).to_be_in_viewport()
    expect(verdict(tab)).to_be_in_viewport()
    done(tab, 1)


def test_the_feed_forward_is_split_for_all_six_activations(tab: Any) -> None:
    fill(tab, **SMALL)
    field(tab, "w:activation").select_option("several …")
    boxes = tab.locator("#run-form fieldset.mv-several input")
    expect(boxes).to_have_count(6)
    assert [each.is_checked() for each in boxes.all()] == [True] * 6
    field(tab, "o:split_feed_forward").check()
    # A later estimate would replace the question.
    expect(tab.locator("#run-said")).to_contain_text("Split feed-forwards:")
    press(tab, "Predict 12 variants")
    expect(tab.locator("#run-said")).to_contain_text("These are 12 variants")
    tab.get_by_role("button", name="Run all 12").click()
    done(tab, 12)
    expect(row(tab, 11)).to_contain_text("linear-silu: Split feed-forwards")
    expect(tab.locator("#run-results .mv-variant").filter(has_text="equal up to rounding")).to_have_count(6)
    expect(verdict(tab)).to_contain_text("glu: Split feed-forwards saves")
    for each in boxes.all()[1:]:
        each.uncheck()
    expect(tab.get_by_role("button", name="Predict 2 variants")).to_be_visible()
    boxes.first.uncheck()
    expect(tab.locator("#run-form select[name='w:activation']")).to_have_value("gelu")


def test_a_run_that_is_killed_half_way_says_so_and_the_others_go_on(tab: Any, runs: Any) -> None:
    field(tab, "workload").select_option("gpt2")
    expect(field(tab, "w:sequence")).to_have_value("1024")
    # The first variant is long enough to be killed in time.
    fill(tab, layers="200, 1, 2", sequence="256")
    press(tab, "Predict 3 variants")
    expect(row(tab, 0).locator(".mv-phase")).to_be_visible()
    wait_until(lambda: workers(runs))
    for pid in workers(runs):
        os.kill(pid, signal.SIGKILL)
    expect(row(tab, 0)).to_contain_text("its process died")
    expect(row(tab, 0)).to_contain_text("SIGKILL")
    done(tab, 3)
    for number in (1, 2):
        expect(row(tab, number)).to_contain_text("fits")
    tab.get_by_role("tab", name="Explore").click()
    expect(tab.locator("#home")).to_be_visible()


def test_what_runs_can_be_cancelled_and_run_again(tab: Any) -> None:
    field(tab, "workload").select_option("ltx_video")
    expect(field(tab, "w:frames")).to_have_value("81")
    press(tab, "Predict")
    expect(row(tab, 0).locator(".mv-phase")).to_be_visible()
    tab.get_by_role("button", name="Cancel").click()
    expect(row(tab, 0)).to_contain_text("cancelled")
    field(tab, "workload").select_option("feed_forward")
    expect(field(tab, "w:layers")).to_have_value("5")
    fill(tab, **SMALL)
    press(tab, "Predict")
    expect(verdict(tab)).to_contain_text("This forward pass reserves")
    done(tab, 1)


def test_runs_are_kept_for_their_visitor_alone(browser: Any, tmp_path: Path, watched: Callable[..., Any]) -> None:
    context = new_visitor(browser)
    with page_of(tmp_path) as first:
        page = opened(watched(context), first.address)
        fill(page, **SMALL)
        press(page, "Predict")
        done(page, 1)
        page.close()
    with page_of(tmp_path, first.port) as again:
        page = opened(watched(context), again.address)
        kept = page.locator("#run-kept")
        kept.get_by_text("Kept runs, 1").click()
        kept.locator("input").fill("my first run")
        kept.get_by_role("button", name="Rename").click()
        expect(kept.get_by_role("button", name="Delete my first run")).to_be_visible()
        kept.get_by_role("button", name="Open my first run").click()
        expect(page.locator("#traces")).to_contain_text("my first run")
        expect(page.locator("#verdict h1")).to_contain_text("The peak is")
        stranger = new_visitor(browser)
        other = opened(watched(stranger), again.address)
        expect(other.locator("#run-kept summary")).to_have_count(0)
        stranger.close()
        page.get_by_role("tab", name="Run").click()
        # By key, because content drawn above the button moves it away from the pointer.
        kept.get_by_role("button", name="Delete my first run").press("Enter")
        expect(kept.locator("tbody tr")).to_have_count(0)
        context.close()


def test_keys_alone_are_enough(tab: Any) -> None:
    fill(tab, **SMALL)
    story = tab.locator("[data-story=flat-gradients]")
    field(tab, "workload").focus()
    for _ in range(10):
        tab.keyboard.press("Shift+Tab")
        if story.evaluate("(each) => each === document.activeElement"):
            break
    expect(story).to_be_focused()
    tab.keyboard.press("Enter")
    done(tab, 4)
    expect(row(tab, 3)).to_contain_text("Gradients flat")
    expect(field(tab, "o:flat_gradients")).to_be_checked()
    tab.get_by_role("button", name="Compute it").press("Enter")
    expect(tab.locator("#run-table tbody tr")).to_have_count(10)
    expect(tab.locator("#run-table")).to_contain_text("17.400")


def test_what_cannot_be_explains_itself_where_it_stands(tab: Any) -> None:
    field(tab, "o:checkpointing").check()
    reason = tab.locator("#run-form [data-fault='o:checkpointing']")
    expect(reason).to_have_text("It has an effect in training only, and this is inference.")
    press(tab, "Predict 2 variants")
    expect(tab.locator("#run-said")).to_contain_text("Nothing was run")
    expect(tab.locator("#run-results .mv-variant")).to_have_count(0)
    field(tab, "o:checkpointing").uncheck()
    expect(reason).to_be_empty()
    field(tab, "workload").select_option("ltx_video")
    expect(field(tab, "w:frames")).to_have_value("81")
    field(tab, "w:frames").fill("80")
    expect(tab.locator("#run-form [data-fault='w:frames']")).to_contain_text("it must be 1 more than a multiple of 8")
    field(tab, "w:frames").fill("81")
    expect(tab.locator("#run-form [data-fault='w:frames']")).to_be_empty()


def test_the_estimate_follows_what_is_switched_on(tab: Any) -> None:
    fill(tab, **SMALL)
    said = tab.locator("#run-said")
    expect(said).to_contain_text(re.compile(r"Estimate\. Baseline: [\d,.]+ MiB reserved, fits"))
    field(tab, "o:split_feed_forward").check()
    expect(said).to_contain_text(re.compile(r"Estimate\. Split feed-forwards: [\d,.]+ MiB reserved, fits"))
