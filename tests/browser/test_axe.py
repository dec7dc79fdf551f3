"""axe-core finds nothing serious on any tab, light or dark, wide or narrow, with what opens on it open."""

from typing import Any

import pytest

from tests.browser.conftest import at_home

axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")

WIDTHS, HEIGHT = (1440, 390), 1000
SERIOUS = ("serious", "critical")


@pytest.fixture
def opened(same_page: Any, server: str) -> Any:
    """Two traces, compared; Explore shows one of them. Opened once, because every test only reads the page.

    The first test has the sidebar next to the content. After a narrow window it stays a drawer.
    """
    page = same_page
    page.set_viewport_size({"width": max(WIDTHS), "height": HEIGHT})
    if not page.url.startswith(server):
        at_home(page, server)
        page.locator("[data-sample=checkpointing]").click()
        for letter in "AB":
            page.locator(f"#compare-{letter} .mvt[data-drawn]").wait_for()
        page.locator(".sidebar.open").wait_for()
    return page


def turn_to(page: Any, tab: str) -> None:
    page.get_by_role("tab", name=tab, exact=tab != "Compare").click()


TWO_FRAMES = "() => new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))"
# Gradio dims what waits for an answer.
RESTS = """() => !document.querySelector(".pending") && document.getAnimations().every(({ effect, playState }) =>
  playState !== "running" || effect.getComputedTiming().endTime === Infinity)"""
RUN = "(within) => axe.run(within, { resultTypes: ['violations'] }).then(({ violations }) => violations)"


def violations(page: Any, within: str) -> list[dict[str, Any]]:
    """Return the violations; axe is injected once per page, to be compiled once."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(axe.Axe().axe_script)
    return page.evaluate(RUN, within)  # type: ignore[no-any-return]


def expect_nothing_serious(page: Any, within: str = "html") -> None:
    """Colours depend on the mode and sizes on the width: two of the four pairs hold both."""
    for width, is_dark in zip(WIDTHS, (False, True), strict=True):
        page.set_viewport_size({"width": width, "height": HEIGHT})
        page.evaluate("(isDark) => document.body.classList.toggle('dark', isDark)", is_dark)
        page.evaluate(TWO_FRAMES)
        page.wait_for_function(RESTS)
        serious = [
            (rule["id"], node["target"], node["failureSummary"])
            for rule in violations(page, within)
            for node in rule["nodes"]
            if rule["impact"] in SERIOUS
        ]
        assert serious == [], (width, "dark" if is_dark else "light")
    page.evaluate("document.body.classList.remove('dark')")


def test_with_nothing_open_and_run(page: Any, server: str) -> None:
    """On a separate page, because the sidebar stays a drawer after a narrow window."""
    at_home(page, server)
    expect_nothing_serious(page)
    page.set_viewport_size({"width": max(WIDTHS), "height": HEIGHT})
    turn_to(page, "Run")
    page.locator("#run-form .mv-price-head").wait_for()
    expect_nothing_serious(page)


def test_compare(opened: Any) -> None:
    expect_nothing_serious(opened)


def test_a_pinned_allocation_beside_the_timeline_and_as_a_sheet(opened: Any) -> None:
    turn_to(opened, "Explore")
    opened.locator("#timeline .mvt[data-drawn] .mvt-pilltext").wait_for()
    opened.locator("#timeline .mvt-plot").focus()
    for key in ("ArrowUp", "Enter"):
        opened.keyboard.press(key)
    opened.locator("#inspector .mv-pinned").wait_for()
    expect_nothing_serious(opened, "#inspector")
    opened.keyboard.press("Escape")
    opened.locator("#inspector .mv-pinned").wait_for(state="detached")


def test_explore_with_a_filter_a_ruler_and_part_of_the_height(opened: Any) -> None:
    turn_to(opened, "Explore")
    opened.locator("#timeline .mvt[data-drawn] .mvt-pilltext").wait_for()
    opened.locator("#timeline .mvt-legend .mvt-key").first.click()
    plot = opened.locator("#timeline .mvt-plot")
    plot.focus()
    for key in ("m", "ArrowDown", "ArrowLeft", "w"):
        opened.keyboard.press(key)
    opened.locator("#timeline .mvt-full").wait_for()
    opened.locator("#timeline .mvt-chip").wait_for()
    expect_nothing_serious(opened)
    opened.locator("#timeline .mvt-more").click()
    opened.set_viewport_size({"width": min(WIDTHS), "height": HEIGHT})
    expect_nothing_serious(opened, "#timeline")


@pytest.mark.parametrize("view", ["Segments", "Events", "Never freed"])
def test_the_views_below_the_timeline(opened: Any, view: str) -> None:
    turn_to(opened, "Explore")
    turn_to(opened, view)
    shown = {"Segments": ".mvs[data-drawn]", "Events": ".mve-scroll [role=row]", "Never freed": "h3"}
    opened.locator("#lower").locator(shown[view]).first.wait_for()
    # The previous test checked the surroundings.
    expect_nothing_serious(opened, "#lower")


def test_what_if(opened: Any) -> None:
    turn_to(opened, "What if")
    opened.locator("#what-if-plot [data-drawn]").wait_for()
    expect_nothing_serious(opened)
