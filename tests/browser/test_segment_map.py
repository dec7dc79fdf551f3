"""The segment map in a real browser: area is bytes, every block is drawn, and pointing names it."""

import random
from typing import Any

import pytest

from memviz.figures.colouring import colouring, pixel_palette
from memviz.trace.model import Trace
from memviz.ui.components.plots import SegmentMap, moment_server
from memviz.ui.payloads.segment_view import map_value
from tests.browser.mounting import Mounted, load, mount
from tests.facts import missing
from tests.traces import MiB, alloc, block, event, frame, segment, trace_of

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

LAYOUT = """([sizes, group, rowBytes]) => {
  const order = memviz.layout.drawingOrder(sizes, group, "size");
  const { pieces, heads, rows } = memviz.layout.shelve(sizes, group, order, rowBytes);
  const list = [...pieces.values()].flat().map((each) => [each.segment, each.row, each.from, each.start, each.length]);
  return { pieces: list, heads: heads.map((each) => [each.group, each.row]), rows };
}"""

OWNERS = """([sizes, tileSizes, rowBytes, width]) => {
  const first = [0];
  const [segment, offset, size] = [[], [], []];
  tileSizes.forEach((list, s) => {
    let at = 0;
    for (const each of list) { segment.push(s); offset.push(at); size.push(each); at += each; }
    first.push(size.length);
  });
  const L = memviz.layout;
  const layout = L.shelve(sizes, sizes.map(() => 0), sizes.map((_, i) => i), rowBytes);
  const tiles = { first, segment, offset, size };
  return { grid: [...L.owners(layout, tiles, width)], places: size.map((_, t) => L.placesOf(layout, tiles, t)) };
}"""


@pytest.fixture
def layout(page: Any) -> Any:
    page.goto("about:blank")
    load(page, LAYOUT_MODULE)
    return page


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


def test_a_segment_starts_where_it_fits_and_only_a_longer_one_is_broken(layout):
    found = layout.evaluate(LAYOUT, [[4, 25, 4, 3], [0, 0, 0, 0], 10])
    assert found == {
        "pieces": [
            [1, 0, 0, 0, 10],
            [1, 1, 0, 10, 10],
            [1, 2, 0, 20, 5],
            [0, 2, 5, 0, 4],
            [2, 3, 0, 0, 4],
            [3, 3, 4, 0, 3],
        ],
        "heads": [[0, 0]],
        "rows": 4,
    }


def test_each_group_begins_a_row(layout):
    found = layout.evaluate(LAYOUT, [[2, 3, 4], [1, 0, 1], 10])
    assert found["heads"] == [[0, 0], [1, 1]]
    assert found["pieces"] == [[1, 0, 0, 0, 3], [2, 1, 0, 0, 4], [0, 1, 4, 0, 2]]


@pytest.mark.parametrize("seed", range(5))
def test_every_byte_is_drawn_once_and_no_row_is_longer_than_the_others(layout, seed):
    dice = random.Random(seed)
    sizes = [dice.choice([1, 5, 20, 20, 333]) for _ in range(60)]
    found = layout.evaluate(LAYOUT, [sizes, [dice.randrange(3) for _ in sizes], dice.choice([7, 40, 1000])])
    per_segment = [sum(each[4] for each in found["pieces"] if each[0] == i) for i in range(len(sizes))]
    assert per_segment == sizes
    spans = sorted((row, begin, begin + length) for _, row, begin, _, length in found["pieces"])
    assert all(a[0] < b[0] or a[2] <= b[1] for a, b in zip(spans, spans[1:], strict=False))


def test_a_pixel_shows_the_tile_that_covers_most_of_it(layout):
    found = layout.evaluate(OWNERS, [[20, 10], [[3, 2, 1, 14], [10]], 20, 4])
    assert found["grid"] == [0, 3, 3, 3, 4, 4, -1, -1]
    found = layout.evaluate(OWNERS, [[8], [[1, 1, 1, 5]], 4, 4])
    assert found["grid"] == [0, 1, 2, 3, 3, 3, 3, 3]
    assert found["places"][3] == [{"row": 0, "from": 3, "to": 4}, {"row": 1, "from": 0, "to": 4}]


@pytest.mark.parametrize("count", [1, 40, 700, 20_000])
def test_there_are_never_more_than_200_rows(layout, count):
    rows = layout.evaluate(
        """(count) => { const sizes = Array.from({ length: count }, (_, i) => ((i * 37) % 50 + 1) * 2 ** 21);
        const [L, group] = [memviz.layout, sizes.map(() => 0)];
        const order = L.drawingOrder(sizes, group, 'size');
        return L.shelveWithin(sizes, group, order, L.chooseRowLength(sizes, group, order, 700)).rows; }""",
        count,
    )
    assert 1 <= rows <= 48


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
