"""The drawer of a narrow screen is closed even if the page loads late, and not moved afterwards."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.browser.conftest import new_visitor
from tests.browser.mounting import load

DRAWER = """() => {
  document.body.innerHTML = '<div class="sidebar"><button class="toggle-button">Traces</button></div>';
  const drawer = document.querySelector(".sidebar");
  drawer.firstChild.addEventListener("click", () => drawer.classList.toggle("open"));
}"""
OPEN = "document.querySelector('.sidebar').classList.toggle('open', true)"


@pytest.fixture
def narrow(browser: Any, watched: Callable[[Any], Any]) -> Iterator[Any]:
    """A narrow page with its own visitor, because an installed clock affects later pages and reorders messages."""
    visitor = new_visitor(browser)
    page = watched(visitor)
    page.set_viewport_size({"width": 390, "height": 844})
    page.clock.install()
    page.set_content("<body></body>")
    load(page, "../shell/narrow.js")
    yield page
    visitor.close()


def is_open(page: Any) -> bool:
    return page.evaluate("document.querySelector('.sidebar').matches('.open')")


def test_a_page_that_takes_a_minute_to_come_is_not_covered(narrow: Any) -> None:
    narrow.evaluate("memviz.narrow.closeDrawer()")
    narrow.clock.run_for(60_000)
    narrow.evaluate(DRAWER)
    narrow.clock.run_for(200)
    narrow.evaluate(OPEN)
    narrow.clock.run_for(200)
    assert not is_open(narrow)
    narrow.evaluate(OPEN)
    narrow.clock.run_for(200)
    assert is_open(narrow)


@pytest.mark.parametrize(
    ("waits_ms", "by_hand"), [(6_000, False), (200, True)], ids=["long after the page", "as soon as it is there"]
)
def test_one_that_is_opened_by_its_visitor_or_late_stays_open(narrow: Any, waits_ms: int, by_hand: bool) -> None:
    narrow.evaluate(DRAWER)
    narrow.evaluate("memviz.narrow.closeDrawer()")
    narrow.clock.run_for(waits_ms)
    narrow.get_by_role("button", name="Traces").click() if by_hand else narrow.evaluate(OPEN)
    narrow.clock.run_for(6_000)
    assert is_open(narrow)


def test_a_sample_that_is_tapped_far_down_shows_its_headline(page: Any, server: str) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(server)
    page.locator("#samples [data-sample=late-start]").scroll_into_view_if_needed()
    assert page.evaluate("scrollY") > 300
    page.locator("#samples [data-sample=late-start]").click()
    page.locator("#verdict h1").wait_for()
    page.wait_for_function("document.querySelector('#verdict h1').getBoundingClientRect().top >= 0 && scrollY === 0")
