"""The event list in a real browser: only visible rows are in the page; keys, wheel and filter move it."""

from typing import Any

import pytest

from memviz.trace.model import Trace
from memviz.ui.components.tables import EventList, page_server, place_server
from memviz.ui.payloads.event_rows import list_value
from tests.browser.conftest import rest
from tests.browser.mounting import Mounted, mount
from tests.traces import alloc, frame, free, trace_of

SHARES_A_PAGE = True

BAD = '<img src=x onerror="window.hit=1">${value}{{x}}'
MILLION = 1_000_000


def shown(page: Any, trace: Trace, at: int = 0) -> Mounted:
    device = trace.devices[0]
    find = lambda key: (trace, device) if key == "k" else None  # noqa: E731
    serve = [page_server(find), place_server(find)]
    made = mount(page, EventList, serve=serve, value=list_value(trace, device, "k", at))
    page.wait_for_function("document.querySelectorAll('.mve-rows .mve-row:not([hidden])').length > 0")
    return made


def long_list(page: Any) -> Mounted:
    """Lines that a real trace of that length would have; they are not looked at."""

    def event_page(asked: dict[str, Any]) -> list[list[Any]]:
        last = min(asked["last"], MILLION)
        return [
            [n, "0", "alloc", "1 B", "1 B", "0x0", "0", "d", f"s{n}", "", "grew"] for n in range(asked["first"], last)
        ]

    value = {"key": "k", "at": 0, "count": MILLION, "actions": [[0, "alloc", MILLION]], "has_times": True}
    made = mount(page, EventList, serve=[event_page], value=value)
    page.wait_for_function("document.body.innerText.includes('s0')")
    return made


def small() -> Trace:
    place = [frame("forward", "model.py", 7)]
    many = [[alloc(i * 512, 512, frames=place), *free(i * 512, 512)] for i in range(100)]
    events = [each for three in many for each in (three[0], *three[1:])]
    bad = [frame(BAD, "bad.py", 1)]
    oom = {"action": "oom", "device_free": 5, "size": 512, "stream": 0, "frames": bad}
    return trace_of([*events, alloc(0, 9, frames=bad), oom])


LINES = """() => [...document.querySelectorAll('.mve-rows .mve-row:not([hidden])')]
    .sort((a, b) => a.getBoundingClientRect().top - b.getBoundingClientRect().top)
    .map((each) => each.children[0].textContent)"""


def lines(page: Any) -> list[str]:
    """The numbers of the events in sight, from the top."""
    return page.evaluate(LINES)


def top(page: Any) -> float:
    return page.evaluate("document.getElementById('host').memviz.top")


def test_a_million_lines_take_few_elements_of_which_none_is_too_tall_and_each_can_be_reached(page):
    made = long_list(page)
    assert len(lines(page)) < 40
    assert page.locator(".mve-grid").get_attribute("aria-rowcount") == f"{MILLION + 1}"
    assert page.evaluate("document.querySelector('.mve-scroll').scrollHeight") <= 8_000_000
    page.locator(".mve-grid").focus()
    page.keyboard.press("End")
    page.wait_for_function("document.body.innerText.includes('s999999')")
    assert lines(page)[-1] == "999,999"
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    assert made.heard == [{"at": 999_998}]
    page.keyboard.press("Home")
    assert lines(page)[0] == "0"


def test_the_wheel_moves_a_long_list_as_far_as_any_other(page):
    long_list(page)
    page.evaluate(
        """(() => { const list = document.getElementById('host').memviz;
        list.setTop(12e6, list.scale); list.render(); })()"""
    )
    page.mouse.move(300, 300)
    page.mouse.wheel(0, 240)
    # Chromium lets it glide there.
    page.wait_for_function("document.getElementById('host').memviz.top > 12e6 + 238")
    rest(page, 400)
    assert top(page) == pytest.approx(12e6 + 240, abs=2)


def test_scrolling_past_pages_does_not_ask_for_them(page):
    made = long_list(page)
    page.evaluate("""async () => { const bar = document.querySelector('.mve-scroll');
        for (let i = 0; i < 40; i++) { bar.scrollTop += 150000; await new Promise(requestAnimationFrame); } }""")
    page.wait_for_function("!document.querySelector('.mve-rows').innerText.includes('…')")
    assert len(made.asked) < 60


def test_arrows_walk_and_enter_or_a_click_goes_there_and_marks_the_line(page):
    made = shown(page, small())
    page.locator(".mve-grid").focus()
    for _ in range(3):
        page.keyboard.press("ArrowDown")
    assert made.heard == []
    page.keyboard.press("Enter")
    assert made.heard == [{"at": 3}]
    assert page.locator(".mve-moment .mve-event").inner_text() == "3"
    page.locator(".mve-rows .mve-row:not([hidden])").nth(5).click()
    assert made.heard == [{"at": 3}, {"at": 5}]
    assert page.locator(".mve-rows [aria-selected=true] .mve-event").inner_text() == "5"


def test_a_moment_chosen_elsewhere_comes_into_sight(page):
    made = shown(page, small())
    made.say(key="k", at=200)
    page.wait_for_function("document.querySelector('.mve-moment .mve-event')?.textContent === '200'")
    assert "200" in lines(page)
    made.say(key="another", at=3)
    assert page.locator(".mve-moment .mve-event").inner_text() == "200"


def test_kinds_and_text_choose(page):
    shown(page, small())
    assert page.inner_text(".mve-total") == "302 events"
    page.get_by_role("button", name="out of memory 1").click()
    page.wait_for_function("document.querySelector('.mve-total').textContent === '1 of 302 events'")
    assert page.locator(".mve-oom .mve-action").inner_text() == "✗ out of memory"
    page.get_by_role("button", name="out of memory 1").click()
    page.get_by_label("Find by site").fill("MODEL.py")
    page.wait_for_function("document.querySelector('.mve-total').textContent === '300 of 302 events'")
    page.get_by_label("Find by site").fill("nowhere")
    page.wait_for_function("document.querySelector('.mve-total').textContent === '0 of 302 events'")
    assert page.get_by_text("No event matches.").is_visible()


def test_a_filtered_line_goes_to_its_own_event(page):
    made = shown(page, small())
    page.get_by_role("button", name="free completed").click()
    page.wait_for_function("document.querySelector('.mve-total').textContent === '100 of 302 events'")
    page.wait_for_function("document.querySelector('.mve-rows .mve-site').textContent.startsWith('model')")
    page.locator(".mve-rows .mve-row:not([hidden])").nth(2).click()
    assert made.heard == [{"at": 8}]


def test_another_trace_starts_afresh_at_its_moment(page):
    made = shown(page, small(), at=250)
    page.get_by_role("button", name="alloc 101", exact=True).click()
    page.wait_for_function("document.querySelector('.mve-total').textContent === '101 of 302 events'")
    page.evaluate("window.give({ key: 'other', at: 7, count: 40, actions: [[0, 'alloc', 40]] })")
    assert page.inner_text(".mve-total").startswith(("40 events", "The events could not be read"))
    assert lines(page)[0] == "0"
    page.evaluate("window.give({})")
    assert page.locator(".mve").is_hidden()
    assert made.errors == []
