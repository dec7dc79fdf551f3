"""axe-core finds nothing serious on any tab, light or dark, wide or narrow, with what opens on it open."""

from __future__ import annotations

from typing import Any

import pytest

from tests.browser.conftest import at_home

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")

PATIENCE_MS = 20_000
SETTLES_MS = 400
WIDTHS = (1440, 390)
SERIOUS = ("serious", "critical")


@pytest.fixture
def home(page: Any, server: str) -> Any:
    """A page of its own: narrow for once, the sidebar stays a drawer."""
    page.set_default_timeout(PATIENCE_MS)
    at_home(page, server)
    return page


@pytest.fixture
def opened(home: Any) -> Any:
    """Two traces, compared; Explore shows one of them."""
    home.locator("[data-sample=checkpointing]").click()
    for letter in "AB":
        home.locator(f"#compare-{letter} .mvt[data-drawn]").wait_for()
    return home


def turn_to(page: Any, tab: str) -> None:
    page.get_by_role("tab", name=tab, exact=tab != "Compare").click()


def expect_nothing_serious(page: Any) -> None:
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 1000})
        for is_dark in (False, True):
            page.evaluate("(isDark) => document.body.classList.toggle('dark', isDark)", is_dark)
            page.wait_for_timeout(SETTLES_MS)
            serious = [
                (rule["id"], node["target"], node["failureSummary"])
                for rule in axe.Axe().run(page).response["violations"]
                for node in rule["nodes"]
                if rule["impact"] in SERIOUS
            ]
            assert serious == [], (width, "dark" if is_dark else "light")
    page.evaluate("document.body.classList.remove('dark')")


def test_with_nothing_open(home: Any) -> None:
    expect_nothing_serious(home)


def test_compare(opened: Any) -> None:
    expect_nothing_serious(opened)


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
    opened.set_viewport_size({"width": 390, "height": 1000})
    expect_nothing_serious(opened)


@pytest.mark.parametrize("view", ["Segments", "Events", "Never freed"])
def test_the_views_below_the_timeline(opened: Any, view: str) -> None:
    turn_to(opened, "Explore")
    turn_to(opened, view)
    shown = {"Segments": ".mvs[data-drawn]", "Events": ".mve-scroll [role=row]", "Never freed": "h3"}
    opened.locator("#lower").locator(shown[view]).first.wait_for()
    expect_nothing_serious(opened)


def test_what_if(opened: Any) -> None:
    turn_to(opened, "What if")
    opened.locator("#what-if-plot [data-drawn]").wait_for()
    expect_nothing_serious(opened)


def test_run(home: Any) -> None:
    turn_to(home, "Run")
    home.locator("#run-form .mv-opt").first.wait_for()
    expect_nothing_serious(home)
