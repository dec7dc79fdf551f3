"""The What if tab: the sample that ran out of memory, the fixes that avoid it, and other questions."""

import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from memviz.trace.load import load_trace
from tests.browser.conftest import at_home, expect, new_visitor

SHARES_A_PAGE = True


@pytest.fixture
def tab(page: Any, server: str) -> Any:
    """The sample leads to the tab with the answer on screen."""
    at_home(page, server)
    page.locator("#samples [data-sample=out-of-memory]").click()
    # The previous test's text may still be shown, but its plot no longer counts.
    page.locator("#what-if-plot [data-drawn]").wait_for()
    expect(verdict(page)).to_contain_text("In 2,400 MiB this run runs out of memory at event 6,410.")
    return page


def verdict(page: Any) -> Any:
    return page.locator("#what-if-verdict h1")


def facts(page: Any) -> Any:
    return page.locator("#what-if-verdict .mv-known")


def field(page: Any, name: str) -> Any:
    return page.locator(f"#what-if-form [name={name}]")


def test_the_sample_is_answered_at_once_and_any_moment_can_be_looked_at(tab: Any) -> None:
    expect(verdict(tab)).to_contain_text("Expandable segments would fit, with 216 MiB to spare.")
    expect(facts(tab)).to_contain_text("replay of the recording exact, 0 of 2,384 addresses differ")
    assert (field(tab, "memory").input_value(), field(tab, "expandable").is_checked()) == ("2,400 MiB", True)
    expect(tab.locator("#what-if-plot .mvt-oomtext")).to_have_text("out of memory, event 6,410")
    expect(tab.locator("#what-if-maps .mvs[data-drawn]")).to_have_count(2)
    sides = "[...document.querySelectorAll('#what-if-maps .mvp-side')]"
    assert len(set(tab.evaluate(f"{sides}.map((each) => each.memviz.layout.rowBytes)"))) == 1
    tab.locator(".mvr-plot").focus()
    for key in ("Home", "Shift+ArrowRight", "Enter"):
        tab.keyboard.press(key)
    expect(tab.locator("#what-if-segments h2")).to_contain_text(re.compile(r"Segments at event \d\d\b"))


def test_without_a_trace_it_says_what_to_do_and_offers_samples_that_are_answered_there(page: Any, server: str) -> None:
    at_home(page, server)
    page.get_by_role("tab", name="What if").click()
    offer = page.locator("#what-if-offer")
    expect(offer.get_by_role("heading", level=1)).to_contain_text("Open a trace")
    line = "getComputedStyle(document.querySelector('.mv-what-if-form')).borderRightColor"
    assert page.evaluate(line) == "rgba(0, 0, 0, 0)"
    # This sample is answered in Explore.
    offer.locator("[data-sample=training]").click()
    expect(verdict(page)).to_contain_text("MiB")
    expect(page.get_by_role("tab", name="What if")).to_have_attribute("aria-selected", "true")
    expect(offer.get_by_role("heading")).to_have_count(0)
    page.get_by_role("button", name="Close training").click()
    expect(offer.get_by_role("heading", level=1)).to_be_visible()
    expect(verdict(page)).to_have_count(0)


def test_whoever_goes_to_another_tab_meanwhile_stays_there(page: Any, server: str) -> None:
    """The answer would switch to What if; it arrives after its visitor has switched to Run."""
    held: list[Any] = []
    at_home(page, server)
    turned = page.locator("#turn").text_content()
    page.route("**/queue/join*", lambda request: held.append(request))
    page.locator("#samples [data-sample=out-of-memory]").click()
    page.get_by_role("tab", name="Run").click()
    for request in held:
        request.continue_()
    page.unroute("**/queue/join*")
    expect(page.locator("#turn")).not_to_have_text(turned or "")
    expect(page.locator("#traces .mv-chosen")).to_contain_text("out-of-memory")
    expect(page.get_by_role("tab", name="Run")).to_have_attribute("aria-selected", "true")
    page.get_by_role("tab", name="What if").click()
    expect(verdict(page)).to_contain_text("In 2,400 MiB this run runs out of memory at event 6,410.")


def test_a_row_of_the_ranking_fills_the_form_and_stays_while_one_looks_elsewhere(tab: Any) -> None:
    rows = tab.locator(".mv-tried tbody tr")
    # The recording itself is the first.
    expect(rows).to_have_count(10)
    rows.get_by_role("button", name="max_split_size_mb:128").press("Enter")
    expect(verdict(tab)).to_contain_text("max_split_size_mb:128 would fit")
    assert (field(tab, "max_split").input_value(), field(tab, "expandable").is_checked()) == ("128", False)
    tab.get_by_role("button", name="Find the best").click()
    expect(verdict(tab)).to_contain_text("Expandable segments would fit")
    assert (field(tab, "max_split").input_value(), field(tab, "expandable").is_checked()) == ("", True)
    field(tab, "expandable").uncheck()
    field(tab, "max_split").fill("128")
    tab.get_by_role("tab", name="Explore").click()
    tab.get_by_role("tab", name="What if").click()
    expect(tab.locator(".mv-tried tr[aria-current]")).to_contain_text("max_split_size_mb:128")
    tab.locator("#what-if-form").get_by_role("button", name="Copy").click()
    assert tab.evaluate("navigator.clipboard.readText()") == "PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128"


def test_the_replay_is_a_trace_to_save_to_explore_and_to_compare(tab: Any, tmp_path: Path) -> None:
    expect(facts(tab)).to_contain_text("fragmentation 173 MiB, 7.9 % of the peak")
    expect(facts(tab)).to_contain_text("smallest card 4 GiB")
    with tab.expect_download() as download:
        tab.get_by_text("Share", exact=True).click()
        tab.get_by_role("button", name="Snapshot").click()
    download.value.save_as(tmp_path / download.value.suggested_filename)
    again = load_trace(tmp_path / "out-of-memory-replayed.pickle")
    assert again.about.label == "replayed with expandable_segments:True"
    field(tab, "max_split").fill("64")
    expect(verdict(tab)).to_contain_text("max_split_size_mb:64")
    tab.get_by_role("button", name="Open the replay in Explore").click()
    expect(tab.locator("#verdict h1")).to_contain_text("2,011 MiB")
    expect(tab.get_by_role("button", name="Close replay of out-of-memory in 2,400 MiB")).to_be_visible()
    expect(tab.locator("#traces .mv-dashed")).to_have_count(2)
    tab.locator("#traces").get_by_text("out-of-memory", exact=True).click()
    # The same text is still shown until the tab learns that another trace was opened.
    expect(verdict(tab)).to_have_count(0)
    expect(tab.locator("#verdict h1")).to_contain_text("It ran out of memory")
    tab.get_by_role("tab", name="What if").click()
    expect(verdict(tab)).to_contain_text("In 2,400 MiB this run runs out of memory at event 6,410.")
    assert field(tab, "max_split").input_value() == "64"
    tab.get_by_role("button", name="Compare with the recording").click()
    expect(tab.locator("#compare-top")).to_contain_text("32.0 MiB higher than out-of-memory")


def test_the_address_holds_the_question_and_a_link_asks_it_again(tab: Any, browser: Any, watched: Any) -> None:
    field(tab, "expandable").uncheck()
    field(tab, "max_split").fill("128")
    expect(verdict(tab)).to_contain_text("max_split_size_mb:128 would fit")
    tab.wait_for_url(re.compile("max_split=128"))
    asked = parse_qs(urlsplit(tab.url).query)
    assert asked.pop("trace")[0].startswith("sample:")
    assert asked == {"tab": ["what-if"], "memory": ["2,400 MiB"], "max_split": ["128"]}
    visitor = new_visitor(browser)
    other = watched(visitor)
    other.goto(tab.url)
    expect(verdict(other)).to_contain_text("max_split_size_mb:128 would fit")
    assert (field(other, "max_split").input_value(), field(other, "memory").input_value()) == ("128", "2,400 MiB")
    other.get_by_role("tab", name="Explore").click()
    other.wait_for_url(lambda url: "tab=" not in url and "max_split" not in url)
    visitor.close()
