"""The segment map and the event list in a real browser: what is drawn, pointed at, walked and filtered."""

from typing import Any

import pytest

from memviz.figures.colouring import colouring, pixel_palette
from memviz.trace.model import Trace
from memviz.ui.components.plots import SegmentMap, moment_server
from memviz.ui.components.tables import EventList, page_server, place_server
from memviz.ui.payloads.event_rows import list_value
from memviz.ui.payloads.segment_view import map_value
from tests.browser.conftest import rest
from tests.browser.mounting import Mounted, mount
from tests.facts import missing
from tests.traces import MiB, alloc, block, event, frame, free, segment, trace_of

SHARES_A_PAGE = True

LAYOUT_MODULE = "segment_map/layout.js"
BAD = '<img src=x onerror="window.hit=1">${value}{{x}}'

SLOW = """() => {
  const map = document.getElementById('host').memviz;
  const ask = map.server.segment_map;
  map.server.segment_map = async (asked) => {
    await new Promise((go) => { window.open = go; });
    return ask(asked);
  };
}"""
"""The server answers only when the test opens the gate."""


def two_segments() -> Trace:
    """40 MiB with 10 MiB live, 20 live of which 2 are rounding and 10 free; and 20 MiB, half of it waiting."""
    return trace_of(
        [
            event("segment_alloc", 0, 40 * MiB, time_us=0),
            alloc(0, 10 * MiB, frames=[frame(BAD, "model.py", 3)], time_us=10),
            alloc(10 * MiB, 18 * MiB, frames=[frame("forward", "model.py", 4)], time_us=20),
            alloc(64 * MiB, 10 * MiB, frames=[frame("step", "train.py", 5)], time_us=30),
            event("free_requested", 64 * MiB, 10 * MiB, time_us=40),
        ],
        [
            segment(0, 40 * MiB, [block(0, 10 * MiB), block(10 * MiB, 20 * MiB, 18 * MiB)]),
            segment(64 * MiB, 20 * MiB, [block(64 * MiB, 10 * MiB, state="active_pending_free")]),
        ],
    )


def shown(page: Any, trace: Trace, at: int = 4) -> Mounted:
    device = trace.devices[0]
    find = lambda key: (trace, device) if key == "k" else None  # noqa: E731
    value = map_value(device, "k", at=at)
    made = mount(page, SegmentMap, serve=[moment_server(find)], value=value, more=(LAYOUT_MODULE,))
    drawn(page, at)
    return made


def drawn(page: Any, at: int) -> None:
    page.wait_for_function(f"document.querySelector('.mvs').dataset.at === '{at}'")


def centre(page: Any, tile: int) -> tuple[float, float]:
    """Return the centre of a tile's first stretch, in page coordinates."""
    return tuple(
        page.evaluate(
            """(tile) => { const map = document.getElementById('host').memviz;
            const [{ row, from, to }] = memviz.layout.placesOf(map.layout, map.drawn.tiles, tile);
            const box = map.plot.getBoundingClientRect();
            const x = ((from + to) / 2 / map.layout.rowBytes) * map.width;
            return [box.left + x, box.top + map.canvas.tops[row] + map.canvas.tall / 2]; }""",
            tile,
        )
    )


def expect_colour(page: Any, tile: int, colour: int) -> None:
    """0xRRGGBB just right of a tile's left edge, above any text."""
    page.wait_for_function(
        """([tile, colour]) => { const map = document.getElementById('host').memviz;
        const [{ row, from }] = memviz.layout.placesOf(map.layout, map.drawn.tiles, tile);
        const x = Math.ceil((from / map.layout.rowBytes) * map.canvas.columns) + 2;
        const [r, g, b] = map.canvas.node.getContext('2d').getImageData(x, map.canvas.tops[row] + 2, 1, 1).data;
        return ((r << 16) | (g << 8) | b) === colour; }""",
        arg=[tile, colour],
    )


def tip(page: Any) -> list[str]:
    return page.locator(".mvs .mvt-tip > div").all_inner_texts()


def test_blocks_have_the_timelines_colours_in_both_modes(page):
    trace = two_segments()
    made = shown(page, trace)
    colours = colouring(trace, trace.devices[0])
    for mode in ("light", "dark"):
        page.evaluate("(mode) => document.body.classList.toggle('dark', mode === 'dark')", mode)
        for tile, row in ((0, 0), (1, 1)):
            shade = (row * 0x9E3779B1) % 2**32 % 5
            palette = pixel_palette(colours, dark=mode == "dark")
            expect_colour(page, tile, int(palette[colours.group[row], shade, 0]))
    assert made.errors == []


def test_pointing_says_what_a_block_is(page):
    shown(page, two_segments())
    page.mouse.move(*centre(page, 1))
    assert tip(page) == [
        "18.0 MiB model.py:4 forward",
        "probably output · 18,874,368 B asked, in a block of 20,971,520 B",
        "since event 2: 2 events, 20 µs old",
    ]
    page.mouse.move(*centre(page, 3))
    assert missing(tip(page)[2], "waiting for another stream", "since event 3: 1 event", "10 µs old") == []


def test_pointing_at_free_memory_names_its_segment(page):
    shown(page, two_segments())
    page.mouse.move(*centre(page, 2))
    assert missing(tip(page), "10.0 MiB free", "40.0 MiB at 0x0", "large pool") == []


def test_a_click_pins_and_the_pin_is_outlined(page):
    made = shown(page, two_segments())
    page.mouse.click(*centre(page, 1))
    assert made.heard == [{"pin": 1}]
    made.say(key="k", at=4, pin=1)
    assert page.locator(".mvs-pinned").count() >= 1
    assert page.locator(".mvs").get_attribute("data-pinned") == "1"
    made.say(key="k", at=0, pin=1)
    drawn(page, 0)
    assert page.locator(".mvs-pinned").count() == 0
    assert missing(page.inner_text(".mvs-words"), "pinned", "allocation") == []


def test_the_keyboard_walks_blocks_and_pins(page):
    made = shown(page, two_segments())
    page.locator(".mvs-plot").focus()
    for key in ("ArrowRight", "ArrowRight", "Enter", "End"):
        page.keyboard.press(key)
    assert made.heard == [{"pin": 1}]
    assert tip(page)[0] == "10.0 MiB free"
    page.keyboard.press("Escape")
    assert page.locator(".mvs .mvt-tip").is_hidden()


def test_the_slider_moves_map_figures_and_timeline(page):
    made = shown(page, two_segments())
    page.get_by_label("Moment").fill("1")
    drawn(page, 1)
    page.wait_for_function("window.heard.length > 0")
    assert made.heard == [{"at": 1}]
    assert page.inner_text(".mvs-title").startswith("event 1 · 2 segments")
    assert "largest free piece 30.0 MiB" in page.inner_text(".mvs-figures")
    assert page.locator(".mvs-slider").get_attribute("aria-valuetext") == "event 1"


def test_the_last_picture_stays_until_the_newest_is_there(page):
    made = shown(page, two_segments())
    page.evaluate(SLOW)
    asked = len(made.asked)
    for at in (0, 1, 2):
        made.say(key="k", at=at)
    assert page.locator(".mvs").get_attribute("data-at") == "4"
    page.evaluate("window.open()")
    drawn(page, 0)
    page.evaluate("window.open()")
    drawn(page, 2)
    assert [each["at"] for each in made.asked[asked:]] == [0, 2]


def test_the_table_is_there_for_those_who_cannot_see_the_map(page):
    made = shown(page, two_segments())
    assert [each["table"] for each in made.asked] == [False]
    page.get_by_text("As a table").click()
    page.wait_for_selector(".mvs-table tbody tr")
    assert page.locator(".mvs-table tbody tr").count() == 2
    assert "62,914,560 B" in page.inner_text(".mvs-table tfoot")


MILLION = 1_000_000


def listed(page: Any, trace: Trace, at: int = 0) -> Mounted:
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
    made = listed(page, small())
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
    made = listed(page, small())
    made.say(key="k", at=200)
    page.wait_for_function("document.querySelector('.mve-moment .mve-event')?.textContent === '200'")
    assert "200" in lines(page)
    made.say(key="another", at=3)
    assert page.locator(".mve-moment .mve-event").inner_text() == "200"


def test_kinds_and_text_choose(page):
    listed(page, small())
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
    made = listed(page, small())
    page.get_by_role("button", name="free completed").click()
    page.wait_for_function("document.querySelector('.mve-total').textContent === '100 of 302 events'")
    page.wait_for_function("document.querySelector('.mve-rows .mve-site').textContent.startsWith('model')")
    page.locator(".mve-rows .mve-row:not([hidden])").nth(2).click()
    assert made.heard == [{"at": 8}]


def test_another_trace_starts_afresh_at_its_moment(page):
    made = listed(page, small(), at=250)
    page.get_by_role("button", name="alloc 101", exact=True).click()
    page.wait_for_function("document.querySelector('.mve-total').textContent === '101 of 302 events'")
    page.evaluate("window.give({ key: 'other', at: 7, count: 40, actions: [[0, 'alloc', 40]] })")
    assert page.inner_text(".mve-total").startswith(("40 events", "The events could not be read"))
    assert lines(page)[0] == "0"
    page.evaluate("window.give({})")
    assert page.locator(".mve").is_hidden()
    assert made.errors == []
