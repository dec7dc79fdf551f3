"""Two samples side by side, in the real page: display and interaction."""

import csv
import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from memviz.trace.load import load_trace
from memviz.trace.write import write_pickle
from tests.browser.conftest import SAMPLES, at_home, new_visitor, rest

DRAWN = ".mv-linked .mvt[data-drawn]:not([hidden])"


@pytest.fixture
def compared(same_page: Any, server: str) -> Any:
    """The checkpointing sample, which opens in this tab, with both timelines drawn."""
    page = same_page
    # What lies under the mouse must see it come.
    page.mouse.move(0, 0)
    at_home(page, server)
    page.locator("[data-sample=checkpointing]").click()
    # How one looks at a comparison stays when its traces are closed.
    page.get_by_role("button", name="Side by side").click()
    for letter in "AB":
        page.locator(f"#compare-{letter} .mvt[data-drawn]").wait_for()
    _wait_until_it_rests(page)
    return page


def _wait_until_it_rests(page: Any) -> None:
    """Wait until the plots are redrawn in device pixels and the table reflects Gradio's session."""
    before: list[str] = []
    for _ in range(40):
        rest(page, 300)
        now = page.evaluate(
            """[...[..."AB"].map((letter) => document.querySelector(`#compare-${letter} .mvt`).dataset.drawn),
              document.getElementById("differences").innerHTML]"""
        )
        if now == before:
            return
        before = now
    raise AssertionError("The comparison is drawn again and again")


def names(page: Any) -> list[str]:
    return page.locator(".mv-scores .mv-whose").all_inner_texts()


def views(page: Any) -> list[list[float]]:
    """Return the viewport of each timeline, as shares of its own run."""
    return page.evaluate(
        """[...document.querySelectorAll('.mv-linked *')].filter((node) => node.memviz?.data).map((node) => {
          const { viewport } = node.memviz;
          return [viewport.first / viewport.instants, viewport.last / viewport.instants];
        })"""
    )


def pixels(page: Any, letter: str) -> str:
    return page.evaluate(f"document.querySelector('#compare-{letter} canvas.mvt-canvas').toDataURL()")


SITE_COLOURS = """() => [...document.querySelectorAll('.mv-linked *')].filter((node) => node.memviz?.data).map(
  ({ memviz }) => Object.fromEntries(memviz.data.labels.map((label, i) => [label, memviz.data.colours.light[i]])))"""


def expect_drawn_otherwise(page: Any, letter: str, old: str) -> None:
    page.wait_for_function(
        "([letter, old]) => document.querySelector(`#compare-${letter} canvas.mvt-canvas`).toDataURL() !== old",
        arg=[letter, old],
    )


def colour_by(page: Any, meaning: str) -> None:
    """A choice closes the menu of tools."""
    page.locator("#compare-bar .mvt-tools summary").click()
    page.get_by_role("group", name="Colours").get_by_role("button", name=meaning).click()


def test_sites_have_one_colour_in_all_timelines_and_the_legend_says_which(compared: Any) -> None:
    colour_by(compared, "Site")
    compared.wait_for_function(f"({SITE_COLOURS})().every((shown) => 'other' in shown)")
    one, other = compared.evaluate(SITE_COLOURS)
    shared = one.keys() & other.keys()
    assert len(shared) > 2 and all(one[label] == other[label] for label in shared)
    named = compared.locator("#compare-bar .mv-legend .mv-key[title]").evaluate_all(
        "(all) => all.map((key) => key.title)"
    )
    assert {*one, *other} - {"other"} <= set(named)
    compared.wait_for_function("location.search.includes('colour=site')")
    before = pixels(compared, "A")
    colour_by(compared, "Category")
    compared.wait_for_function(f"({SITE_COLOURS})().every((shown) => 'activation' in shown)")
    expect_drawn_otherwise(compared, "A", before)


def test_zooming_one_moves_the_other_and_the_ruler_runs_through_both(compared: Any) -> None:
    compared.locator("#compare-A .mvt-plot").hover()
    compared.mouse.wheel(0, -600)
    compared.wait_for_function("document.querySelector('#compare-B .mvt').dataset.drawn > 2")
    first, second = views(compared)
    assert first == pytest.approx(second, abs=1e-9)
    assert first[1] - first[0] < 0.9
    texts = [compared.locator(f"#compare-{each} .mvt-secondtext").text_content() for each in "AB"]
    assert texts[0] == texts[1] != ""


def test_a_row_lights_its_allocations_in_both_and_stays_when_clicked(compared: Any) -> None:
    before = pixels(compared, "A"), pixels(compared, "B")
    row = compared.locator(".mv-changes tbody tr").first
    row.hover()
    for letter, old in zip("AB", before, strict=True):
        expect_drawn_otherwise(compared, letter, old)
    row.get_by_role("button").click()
    compared.locator("#compare-top h1").hover()
    rest(compared, 400)
    lit = pixels(compared, "A")
    assert lit != before[0]
    compared.keyboard.press("Escape")
    # Not what was there first: on a busy machine that may have been drawn once more since.
    expect_drawn_otherwise(compared, "A", lit)


def test_clicks_that_come_before_the_answer_are_all_answered_in_their_order(compared: Any) -> None:
    """Gradio by itself drops them, or answers the first one once more."""
    compared.evaluate(
        """() => {
          const button = (act, value) => `#differences [data-act=${act}][data-value=${value}]`;
          const click = (act, value) => document.querySelector(button(act, value)).click();
          for (const grouping of ["site", "stack", "category"]) click("by", grouping);
          click("sort", "a");
          click("by", "module");
        }"""
    )
    compared.locator("#differences [data-by=module]").wait_for()
    compared.locator("#differences th[aria-sort] [data-value=a]").wait_for()
    compared.wait_for_url(re.compile("by=module&sort=a"))
    # Nothing comes after it.
    rest(compared, 500)
    assert compared.locator("#differences [data-by=module]").count() == 1
    assert "by=module&sort=a" in compared.url


def test_a_press_counts_where_the_table_is_drawn_anew_under_it(compared: Any) -> None:
    table = compared.locator("#differences")
    drawn, other = ("site", "stack") if table.locator("[data-by=site]").count() else ("stack", "site")
    table.locator(f"[data-value={drawn}]").click()
    table.locator(f"[data-by={drawn}]").wait_for()
    table.locator(f"[data-value={other}]").hover()
    compared.mouse.down()
    compared.evaluate(
        "(value) => { const old = document.querySelector(`#differences [data-value=${value}]`);"
        " old.replaceWith(old.cloneNode(true)); }",
        other,
    )
    compared.mouse.up()
    table.locator(f"[data-by={other}]").wait_for()


def test_rows_add_up_however_they_are_grouped_and_in_the_file_taken_away(compared: Any, tmp_path: Path) -> None:
    exact = compared.locator(".mv-changes tfoot small").all_inner_texts()
    for grouping in ("site", "stack", "module", "category"):
        compared.locator(f"#differences [data-value={grouping}]").click()
        compared.locator(f"#differences [data-by={grouping}]").wait_for()
        compared.locator("#differences [data-act=sort][data-value=a]").click()
        compared.locator("#differences th[aria-sort] [data-value=a]").wait_for()
        assert compared.locator(".mv-changes tfoot small").all_inner_texts() == exact
        assert f"add up to {exact[2]}, to the byte" in compared.locator(".mv-falltitle").inner_text()
    with compared.expect_download() as download:
        compared.get_by_text("Share", exact=True).click()
        compared.get_by_role("button", name="Table (CSV)").click()
    path = tmp_path / download.value.suggested_filename
    download.value.save_as(path)
    rows = list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))
    assert rows[-1]["category"] == "peak"
    assert sum(int(row["B_minus_A_bytes"]) for row in rows[:-1]) == int(rows[-1]["B_minus_A_bytes"])


def test_another_baseline_turns_it_round_and_with_one_left_the_tab_says_what_to_add(compared: Any) -> None:
    compared.get_by_role("button", name="B, make B the baseline").click()
    compared.get_by_text(re.compile("^training peaks .* higher than training-checkpointed")).wait_for()
    assert names(compared) == ["training-checkpointed", "training"]
    compared.keyboard.press("Shift+B")
    compared.get_by_text(re.compile("^training-checkpointed peaks .* lower than training")).wait_for()
    compared.get_by_role("button", name="Remove training-checkpointed from the comparison").click()
    compared.get_by_role("heading", name="Add a trace to compare training with.").wait_for()
    assert compared.locator(DRAWN).count() == 0
    compared.get_by_role("checkbox", name="training-checkpointed").click()
    compared.locator("#compare-B .mvt-plot").wait_for()


def test_aligned_by_a_step_and_laid_over_each_other(compared: Any) -> None:
    compared.locator(".mv-align summary").click()
    compared.get_by_role("button", name=re.compile("^step 2")).click()
    compared.get_by_text(re.compile("Align step 2")).wait_for()
    for letter in "AB":
        compared.locator(f"#compare-{letter} .mvt-phases", has_text="ProfilerStep#1").wait_for()
    compared.get_by_role("button", name="Overlay").click()
    compared.locator("#compare-overlay .mvt[data-drawn]").wait_for()
    assert compared.locator("#compare-overlay .mvt-letter").all_text_contents() == ["A", "B"]
    assert not compared.locator("#compare-A .mvt-plot").is_visible()
    compared.locator("#compare-overlay .mvt-plot").hover()
    assert re.search(r"A [\d,.]+ .iB\s+B [\d,.]+ .iB", compared.locator("#compare-overlay .mvt-tip").inner_text())
    compared.get_by_role("button", name="Side by side").click()
    compared.locator("#compare-A .mvt-plot").wait_for()
    assert not compared.locator("#compare-overlay .mvt-plot").is_visible()


def test_the_address_holds_the_comparison_and_a_link_restores_it(compared: Any, browser: Any, server: str) -> None:
    tab = compared.locator("#tabs [role=tab]").filter(has_text="Compare")
    assert tab.get_attribute("data-count") == "2"
    compared.locator("#differences [data-value=module]").click()
    compared.wait_for_url(re.compile("tab=compare.*by=module"))
    compared.get_by_role("button", name="Overlay").click()
    compared.wait_for_url(re.compile("overlay=1"))
    link = compared.url
    compared.locator("#tabs [role=tab]").filter(has_text="Explore").click()
    compared.wait_for_url(lambda url: "tab=compare" not in url)
    # Samples are open to all visitors, so another visitor sees the same.
    other = new_visitor(browser).new_page()
    other.goto(link)
    other.locator("#compare-overlay .mvt[data-drawn]").wait_for()
    other.locator("#differences [data-by=module]").wait_for()
    assert names(other) == ["training", "training-checkpointed"]
    assert other.url == link
    other.context.close()
    # The next story begins side by side; a click while its traces are being drawn could be drawn over.
    compared.get_by_role("tab", name="Compare").click()
    compared.get_by_role("button", name="Side by side").click()
    compared.locator("#compare-A .mvt[data-drawn]").wait_for()


RAN = {"step time": "12.3 ms", "work": "1.7 TFLOP", "output difference": "bitwise equal", "loss": "7.96045"}


def test_names_are_read_beside_columns_of_what_runs_wrote(same_page: Any, server: str, tmp_path: Path) -> None:
    """The last story: after a narrow window the sidebar stays a drawer."""
    page, files = same_page, []
    for name in ("training", "training-checkpointed"):
        trace = load_trace(SAMPLES / f"{name}.pickle.gz")
        files.append(tmp_path / f"{name}.pickle")
        with files[-1].open("wb") as file:
            write_pickle(replace(trace, about=replace(trace.about, facts={**trace.about.facts, **RAN})), file)
    at_home(page, server)
    page.set_input_files("#first-files input[type=file]", files)
    page.locator("#traces .mv-trace").nth(1).wait_for()
    page.get_by_role("tab", name="Compare").click()
    page.locator(".mv-scores").get_by_text("7.96045").first.wait_for(state="attached")
    whole = """(width) => innerWidth === width && [...document.querySelectorAll(".mv-scores .mv-whose")].every(
      (name) => name.clientWidth > 40 && name.scrollWidth <= name.clientWidth)"""
    for width in (1440, 1024, 390):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_function(whole, arg=width)
        page.wait_for_function(f"document.documentElement.scrollWidth <= {width}")
        assert page.evaluate("document.querySelector('.mv-scores').scrollWidth") <= width - 32
