"""The timeline in a real browser: labels, legend, ruler, range, and zoom of both axes."""

import pickle
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memviz.trace.load import load_trace
from memviz.trace.model import Annotations, HostBytes, Stage, Trace
from tests.browser.conftest import SAMPLES, at_home, expect, rest
from tests.browser.mounting import TIMELINE, Mounted, mount_timeline, take_tool
from tests.traces import MiB, alloc, event, free, segment, snapshot, trace_of

SHARES_A_PAGE = True


@pytest.fixture
def drawn(page: Any, server: str, tmp_path: Path) -> Any:
    """Six events; the last one ran out of memory. Opened once."""
    if page.url.startswith(server):
        return page
    steps = [each for i in range(2) for each in (event("segment_alloc", i << 30, 20 * MiB), alloc(i << 30, 19 * MiB))]
    last = [alloc(20 * MiB + (1 << 30), MiB), event("oom", 0, 64 * MiB, device_free=MiB)]
    file = tmp_path / "failed.pickle"
    file.write_bytes(pickle.dumps(snapshot([*steps, *last], [segment(i << 30, 20 * MiB, []) for i in range(2)])))
    at_home(page, server)
    page.locator("#first-files input[type=file]").first.set_input_files(file)
    page.locator("#timeline .mvt[data-drawn] .mvt-oomtext").wait_for()
    return page


def test_the_words_of_a_failure_are_not_struck_through_by_the_line_of_what_is_reserved(drawn: Any) -> None:
    # Both in one frame: between two questions the plot may be drawn anew.
    drawn.wait_for_function(
        """() => {
          const parts = [".mvt-oomtext", "circle.mvt-oom"].map((part) => document.querySelector(`#timeline ${part}`));
          const [words, mark] = parts.map((part) => part.getBBox());
          const line = mark.y + mark.height / 2;
          return words.y > line || words.y + words.height < line + 1;
        }"""
    )


def test_an_event_axis_names_the_column_of_each_event(drawn: Any) -> None:
    """The moment's line is in the middle of its event's column, which begins at that event's tick."""
    ticks = drawn.locator("#timeline .mvt-tick[text-anchor]").evaluate_all(
        "(all) => all.map((each) => [each.textContent.replace('event ', ''), Number(each.getAttribute('x'))])"
    )
    (first, left), (second, right) = ((int(text), x) for text, x in ticks[:2])
    assert first == 0
    column = (right - left) / second
    drawn.locator("#timeline .mvt-plot").focus()
    drawn.keyboard.press("Shift+ArrowLeft")
    drawn.locator("#timeline .mvt-pilltext", has_text="event 3").wait_for()
    line = float(drawn.locator("#timeline .mvt-svg line.mvt-moment").get_attribute("x1"))
    assert left + 3 * column < line < left + 4 * column


@pytest.mark.parametrize("strip", [".mvt-events", ".mvt-overview"])
def test_a_click_on_the_axis_or_the_overview_chooses_that_moment(drawn: Any, strip: str) -> None:
    along = drawn.locator(f"#timeline {strip}")
    box = along.bounding_box()
    # Row 0 is before the first event. Wherever the strip is by then: findings above it may grow. A frame lies over one.
    for event_number in (4, 1):
        at = {"x": box["width"] * (event_number + 1.5) / 7, "y": box["height"] / 2}
        along.click(position=at, force=True)
        drawn.locator("#timeline .mvt-pilltext", has_text=f"event {event_number}").wait_for()
    drawn.get_by_role("heading", name="Event 1", exact=True).wait_for()


@pytest.mark.parametrize("width", [1440, 390])
def test_host_memory_is_a_lane_below_the_plot(page: Any, width: int) -> None:
    trace = load_trace(SAMPLES / "training.pickle.gz")
    device, zeros = trace.devices[0], [0, 0, 0]
    count = len(device.events)
    page.set_viewport_size({"width": width, "height": 900})
    mount_timeline(page, trace)
    expect(page.locator(".mvt-host")).to_be_hidden()
    plot_before = page.locator(".mvt-plot").bounding_box()

    host = HostBytes.typed(
        [0, count // 2, count], [100 * MiB, 800 * MiB, 200 * MiB], [0, 200 * MiB, 200 * MiB], zeros, zeros
    )
    mount_timeline(page, replace(trace, devices=(replace(device, host=host),)), key="with host")
    page.locator(".mvt-hostmost", has_text="800 MiB").wait_for()
    lane, plot = page.locator(".mvt-host").bounding_box(), page.locator(".mvt-plot").bounding_box()
    assert plot == plot_before
    assert (lane["x"], lane["width"]) == (plot["x"], plot["width"]) and lane["y"] >= plot["y"] + plot["height"]
    page.evaluate(f"({TIMELINE}).choosing.setMoment({count // 2 - 1})")
    page.locator(".mvt-hostnow", has_text="host 100 MiB").wait_for()
    page.evaluate(f"({TIMELINE}).choosing.setMoment({count // 2})")
    page.locator(".mvt-hostnow", has_text="host 800 MiB").wait_for()
    page.mouse.move(lane["x"] + 0.75 * lane["width"], lane["y"] + 10)
    title = "CPU tensors: 800 MiB, pinned 200 MiB"
    expect(page.locator(".mvt-host")).to_have_attribute("title", title)
    # Half of the run has the full height.
    tops = page.locator(".mvt-hosttotal").evaluate("(path) => path.getBBox().height")
    assert 27 <= tops <= 29


def test_a_mark_of_the_program_chooses_its_moment(page: Any) -> None:
    trace = load_trace(SAMPLES / "training.pickle.gz")
    device = trace.devices[0]
    at, name = len(device.events) // 2, len(trace.strings)
    # Between two events.
    times = 2 * np.arange(len(device.events))
    annotations = Annotations.typed([name, name], [Stage.START, Stage.END], [2 * at + 1, 2 * at + 1])
    marked = replace(device, events=replace(device.events, time_us=times), annotations=annotations)
    mount_timeline(page, replace(trace, strings=(*trace.strings, "after <eval>"), devices=(marked,)))
    page.locator(".mvt-marktext", has_text="after <eval>").wait_for()
    page.locator(".mvt-mark-of-program text").click()
    page.locator(".mvt-pilltext", has_text=f"event {at:,}").wait_for()


RESTS_MS = 400
NAMED = """() => [...document.querySelectorAll('.mvt-legend .mvt-key, .mvt-more-list .mvt-key')].map((key) => [
  key.title.replace(/: [\\d,]+ B$/, ''), getComputedStyle(key.querySelector('i')).backgroundColor])"""
IN_SIGHT = f"""() => {{
  const {{ canvas, data }} = {TIMELINE};
  const groups = new Set([...canvas.grid].filter((row) => row >= 0).map((row) => data.group[row]));
  return [...groups].map((group) => data.labels[group]);
}}"""


@pytest.fixture(scope="module")
def trace() -> Any:
    return load_trace(SAMPLES / "training.pickle.gz")


@pytest.fixture
def mounted(page: Any, trace: Any) -> Any:
    mount_timeline(page, trace)
    return page


@pytest.mark.parametrize("width", [1440, 1024, 390])
@pytest.mark.parametrize("meaning", ["category", "site", "module", "size"])
def test_every_colour_in_sight_is_named_once(mounted: Any, meaning: str, width: int) -> None:
    mounted.set_viewport_size({"width": width, "height": 900})
    mounted.get_by_label("Colour", exact=True).select_option(meaning)
    mounted.wait_for_function(f"({TIMELINE}).data.meaning === '{meaning}'")
    rest(mounted, RESTS_MS)
    named = mounted.evaluate(NAMED)
    assert len({name for name, _ in named}) == len(named)
    assert set(mounted.evaluate(IN_SIGHT)) <= {name for name, _ in named}
    # Input and output are two words for the two ends of one thing.
    colours = {colour for name, colour in named if name != "output"}
    assert len(colours) == len([name for name, _ in named if name != "output"])
    row = mounted.locator(".mvt-legend")
    fits = "(row) => row.scrollWidth <= row.clientWidth + 1 && row.scrollHeight <= row.clientHeight + 1"
    assert row.evaluate(fits), "no name is cut off"
    hidden = mounted.locator(".mvt-more-list .mvt-key").count()
    more = mounted.locator(".mvt-more")
    assert more.is_visible() == (hidden > 0)
    if hidden:
        assert more.inner_text().startswith(f"{hidden} more")
        more.click()
        expect(mounted.locator(".mvt-more-list .mvt-key").first).to_be_visible()
        box = mounted.locator(".mvt-more-list").bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= width
        mounted.keyboard.press("Escape")
        expect(mounted.locator(".mvt-more-list")).to_be_hidden()


def test_what_is_kept_has_a_chip_outlives_the_meaning_of_colours_and_goes_with_its_chip(mounted: Any) -> None:
    mounted.locator(".mvt-legend .mvt-key", has_text="optimizer state").click()
    mounted.mouse.move(700, 700)
    chip = mounted.locator(".mvt-chip")
    expect(chip).to_have_text("only optimizer state ×")
    lit = mounted.evaluate(f"({TIMELINE}).lit.reduce((sum, bit) => sum + bit, 0)")
    assert 0 < lit < mounted.evaluate(f"({TIMELINE}).lit.length")
    mounted.get_by_label("Colour", exact=True).select_option("site")
    mounted.wait_for_function(f"({TIMELINE}).data.meaning === 'site'")
    assert mounted.evaluate(f"({TIMELINE}).lit.reduce((sum, bit) => sum + bit, 0)") == lit
    expect(chip).to_have_text("only optimizer state ×")
    chip.click()
    mounted.mouse.move(700, 700)
    expect(chip).to_have_count(0)
    assert mounted.evaluate(f"({TIMELINE}).lit") is None


@pytest.mark.parametrize("width", [1440, 1024, 760])
def test_what_is_clicked_stays_in_sight_and_the_room_of_its_chip_lights_nothing_else(mounted: Any, width: int) -> None:
    mounted.set_viewport_size({"width": width, "height": 900})
    rest(mounted, RESTS_MS)
    titles = mounted.locator(".mvt-legend .mvt-key").evaluate_all("(keys) => keys.map((key) => key.title)")
    # Of those that have room the one that would lose it next.
    name, _ = min((title.rsplit(": ", 1) for title in titles), key=lambda each: int(re.sub(r"\D", "", each[1])))
    key = mounted.locator(f".mvt-legend .mvt-key[title^='{name}:']")
    box = key.bounding_box()
    mounted.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    expect(mounted.locator(".mvt-chip")).to_have_text(f"only {name} ×")
    rest(mounted, RESTS_MS)
    expect(key).to_be_visible()
    lit = f"""() => {{
      const {{ lit, data }} = {TIMELINE};
      return [...new Set([...lit].flatMap((bit, row) => (bit ? [data.labels[data.group[row]]] : [])))];
    }}"""
    assert mounted.evaluate(lit) == [name]


def test_a_key_that_keeps_a_colour_keeps_the_focus(mounted: Any) -> None:
    mounted.locator(".mvt-legend .mvt-key", has_text="optimizer state").focus()
    mounted.keyboard.press("Enter")
    expect(mounted.locator(".mvt-chip")).to_have_text("only optimizer state ×")
    rest(mounted, RESTS_MS)
    assert "optimizer state" in mounted.evaluate("document.activeElement.textContent")
    mounted.keyboard.press("Enter")
    expect(mounted.locator(".mvt-chip")).to_have_count(0)


WORDS = ".mvt-measurewords"


@pytest.fixture
def plot(page: Any) -> Any:
    """Ten allocations of 10 MiB and 3 bytes, 1 ms apart, in 128 MiB."""
    page.emulate_media(reduced_motion="reduce")
    begin = event("segment_alloc", 0, 128 * MiB, time_us=0)
    steps = [alloc(i * 11 * MiB, 10 * MiB + 3, time_us=1000 * (i + 1)) for i in range(10)]
    mount_timeline(page, trace_of([begin, *steps]))
    return page


def place(page: Any, instant: int, size: int) -> tuple[float, float]:
    """Return the screen coordinates of bytes at an instant."""
    box = page.locator(".mvt-plot").bounding_box()
    x, y = page.evaluate(
        f"([i, b]) => [({TIMELINE}).viewport.xOfInstant(i), ({TIMELINE}).viewport.yOf(b)]", [instant, size]
    )
    return box["x"] + x, box["y"] + y


def drag(page: Any, start: tuple[float, float], end: tuple[float, float]) -> None:
    page.mouse.move(*start)
    page.mouse.down()
    page.mouse.move(*end, steps=4)
    page.mouse.up()


def test_a_drag_measures_between_the_edges_of_allocations_to_the_byte(plot: Any) -> None:
    step = 10 * MiB + 3
    before = plot.evaluate(f"({TIMELINE}).viewport.sight()")
    take_tool(plot, "Ruler")
    (x1, y1), (x2, y2) = place(plot, 4, 2 * step), place(plot, 9, 7 * step)
    drag(plot, (x1, y1 + 3), (x2, y2 - 2))
    expect(plot.locator(WORDS)).to_have_text("50.0 MiB · 5 events · 5.00 ms")
    live = plot.locator(".mvt [aria-live=polite]").first
    expect(live).to_have_text(f"Ruler: 50.0 MiB · 5 events · 5.00 ms, exactly {5 * step:,} B")
    assert plot.evaluate(f"({TIMELINE}).viewport.sight()") == before, "a ruler does not move the view"
    plot.keyboard.press("Escape")
    expect(plot.locator(WORDS)).to_have_count(0)
    assert plot.locator(".mvt-tools [aria-pressed=true]", has_text="Move").count() == 1


def test_it_stays_on_what_it_measures_when_the_view_moves(plot: Any) -> None:
    plot.keyboard.down("Alt")
    drag(plot, place(plot, 2, 40 * MiB), place(plot, 6, 90 * MiB))
    plot.keyboard.up("Alt")
    words = plot.locator(WORDS).text_content()
    ends = plot.evaluate(f"({TIMELINE}).ruler.ends")
    plot.keyboard.press("w")
    plot.keyboard.press("+")
    plot.wait_for_function(f"!({TIMELINE}).viewport.isFullHeight()")
    assert plot.evaluate(f"({TIMELINE}).ruler.ends") == ends
    expect(plot.locator(WORDS)).to_have_text(words)
    # What the view shows is drawn a frame later.
    plot.wait_for_function(
        f"""() => {{
          const dots = document.querySelectorAll(".mvt-svg circle.mvt-dot");
          const x = ({TIMELINE}).viewport.xOfInstant(({TIMELINE}).ruler.ends[1].instant);
          return Math.abs(Number(dots[dots.length - 1].getAttribute("cx")) - x) < 0.001;
        }}"""
    )


def test_keys_take_it_move_its_end_and_let_it_go(plot: Any) -> None:
    step = 10 * MiB + 3
    plot.locator(".mvt-plot").focus()
    plot.keyboard.press("m")
    expect(plot.locator(WORDS)).to_have_text("0 B · 0 events · 0 µs")
    for _ in range(3):
        plot.keyboard.press("ArrowDown")
    for _ in range(2):
        plot.keyboard.press("Shift+ArrowLeft")
    expect(plot.locator(WORDS)).to_have_text("30.0 MiB · 2 events · 2.00 ms")
    measured = plot.evaluate(f"({TIMELINE}).ruler.ends.map((end) => [end.instant, end.bytes])")
    assert measured == [[11, 10 * step], [9, 7 * step]]
    plot.keyboard.press("Enter")
    plot.keyboard.press("ArrowUp")
    expect(plot.locator(WORDS)).to_have_text("10.0 MiB · 0 events · 0 µs")
    moment = plot.evaluate(f"({TIMELINE}).moment")
    plot.keyboard.press("Escape")
    expect(plot.locator(WORDS)).to_have_count(0)
    plot.keyboard.press("Shift+ArrowLeft")
    assert plot.evaluate(f"({TIMELINE}).moment") == moment - 1, "the arrows are the timeline's again"


def test_on_the_axis_of_time_it_measures_a_pause_between_two_events(plot: Any) -> None:
    take_tool(plot, "Time")
    plot.wait_for_function(f"({TIMELINE}).viewport.axis === 'time'")
    take_tool(plot, "Ruler")
    box = plot.locator(".mvt-plot").bounding_box()
    x1, x2 = (box["x"] + x for x in plot.evaluate(f"[4200, 4800].map((us) => ({TIMELINE}).viewport.xOf(us))"))
    drag(plot, (x1, box["y"] + 40), (x2, box["y"] + 40))
    words = plot.locator(WORDS)
    expect(words).to_have_text(re.compile(r"^0 B · 0 events · (59\d|60\d) µs$"))
    line = plot.locator(".mvt-svg line.mvt-measure")
    drawn = [box["x"] + float(line.get_attribute(end)) for end in ("x1", "x2")]
    assert drawn == pytest.approx([x1, x2], abs=1), "it stands where it was drawn"
    drag(plot, (x1, box["y"] + 40), (x2 + (x2 - x1) / 3 + 3, box["y"] + 40))
    expect(words).to_have_text(re.compile(r"· 1 event · (79\d|80\d) µs$"))
    assert plot.evaluate(f"({TIMELINE}).ruler.ends[1].us") is None, "an event that is near draws it there"
    plot.locator(".mvt-plot").focus()
    plot.keyboard.press("Shift+ArrowRight")
    expect(words).to_have_text(re.compile(r"· 2 events · 1\.(79|80) ms$"))


def test_the_overview_is_drawn_along_the_axis_of_the_plot(page: Any) -> None:
    """A click selects the moment shown there, and the window covers the visible range."""
    steps = [alloc(i * 11 * MiB, 10 * MiB, time_us=1000 * (i + 1)) for i in range(9)]
    trace = trace_of([event("segment_alloc", 0, 128 * MiB, time_us=0), *steps, alloc(99 * MiB, MiB, time_us=100_000)])
    mount_timeline(page, trace)
    painted = """(share) => {
      const strip = document.querySelector(".mvt-overview");
      const column = strip.getContext("2d").getImageData(Math.floor(strip.width * share), 0, 1, strip.height).data;
      return column.filter((value, i) => i % 4 === 3 && value > 0).length / strip.height;
    }"""
    # After a fifth of the events few are there; after a fifth of the time nearly all.
    assert page.evaluate(painted, 0.2) < 0.25
    take_tool(page, "Time")
    page.wait_for_function(f"({TIMELINE}).viewport.axis === 'time'")
    assert page.evaluate(painted, 0.2) > 0.6


def test_the_right_button_on_the_overview_moves_nothing(plot: Any) -> None:
    plot.locator(".mvt-plot").focus()
    plot.keyboard.press("+")
    plot.wait_for_function(f"!({TIMELINE}).viewport.isAll()")
    before = plot.evaluate(f"({TIMELINE}).viewport.sight()")
    box = plot.locator(".mvt-overview").bounding_box()
    plot.mouse.click(box["x"] + 3, box["y"] + 10, button="right")
    assert plot.evaluate(f"({TIMELINE}).viewport.sight()") == before


PEAK = 4


@pytest.fixture
def peaks(page: Any) -> Any:
    """Up to 70 MiB at event 4, then 10 and 30 MiB in turns."""
    events = [event("segment_alloc", 0, 128 * MiB), alloc(0, 10 * MiB), alloc(10 * MiB, 40 * MiB)]
    events += [alloc(50 * MiB, 10 * MiB), alloc(60 * MiB, 10 * MiB), free(50 * MiB, 10 * MiB), free(60 * MiB, 10 * MiB)]
    events += [free(10 * MiB, 40 * MiB)]
    for _ in range(8):
        events += [alloc(10 * MiB, 20 * MiB), free(10 * MiB, 20 * MiB)]
    mount_timeline(page, trace_of(events))
    return page


def legend_bytes(page: Any) -> int:
    sizes = "[...document.querySelectorAll('.mvt-legend button')].map((each) => each.title.replace(/.*: |,| B/g, ''))"
    return sum(int(size) for size in page.evaluate(sizes))


def test_legend_pill_and_what_is_told_are_of_the_peak_of_the_range(peaks: Any) -> None:
    assert legend_bytes(peaks) == 70 * MiB
    box = peaks.locator(".mvt-plot").bounding_box()
    left, right = (box["x"] + x for x in peaks.evaluate(f"[14, 20].map((at) => ({TIMELINE}).viewport.xOfInstant(at))"))
    peaks.keyboard.down("Shift")
    peaks.mouse.move(left, box["y"] + 9)
    peaks.mouse.down()
    peaks.mouse.move(right, box["y"] + 9, steps=3)
    peaks.mouse.up()
    peaks.keyboard.up("Shift")
    peaks.wait_for_function("window.states.some(({ range }) => range)")
    said = peaks.evaluate("window.states.at(-1)")
    first, last = said["range"]
    assert (first, last) == (13, 19)
    highest = peaks.evaluate(f"({TIMELINE}).data.spans.largestIn({first + 1}, {last + 2})") - 1
    assert first <= said["at"] == highest <= last and highest > PEAK
    expect(peaks.locator(".mvt-pilltext").first).to_have_text(f"range’s peak · event {highest}")
    assert legend_bytes(peaks) == 30 * MiB
    peaks.keyboard.press("Escape")
    expect(peaks.locator(".mvt-pilltext").first).to_have_text(f"peak · event {PEAK}")


def test_keys_mark_one_end_and_then_the_other(peaks: Any) -> None:
    peaks.locator(".mvt-plot").focus()
    at = f"({TIMELINE}).choosing.setMoment"
    ends = f"({TIMELINE}).range"
    peaks.evaluate(f"{at}(10)")
    peaks.keyboard.press("[")
    peaks.evaluate(f"{at}(15)")
    peaks.keyboard.press("]")
    assert peaks.evaluate(ends) == [10, 15]
    peaks.evaluate(f"{at}(6)")
    peaks.keyboard.press("]")
    assert peaks.evaluate(ends) == [0, 6], "an end before the begin begins a range anew"
    peaks.keyboard.press("Escape")
    peaks.evaluate(f"{at}(12)")
    peaks.keyboard.press("[")
    assert peaks.evaluate(ends)[0] == 12 and peaks.evaluate(ends)[1] > 20, "Escape has forgotten the other end"


SHARES_A_PAGE = True
GiB = 1 << 30


def crowded() -> Trace:
    """32 GiB of four allocations, and between them on the stack blocks of 512 bytes."""
    events: list[Any] = [alloc(i * 8 * GiB, 8 * GiB - MiB) for i in range(4)]
    events += [alloc(40 * GiB + 512 * i, 512) for i in range(8)]
    for _ in range(40):
        events += [alloc(50 * GiB, 30 * MiB), free(50 * GiB, 30 * MiB)]
    return trace_of(events)


def shown(page: Any, state: dict[str, Any] | None = None) -> Mounted:
    page.emulate_media(reduced_motion="reduce")
    return mount_timeline(page, crowded(), state=state)


def sight(page: Any) -> dict[str, float]:
    edges: dict[str, float] = page.evaluate(f"({TIMELINE}).viewport.sight()")
    return edges


def plot_box(page: Any) -> dict[str, float]:
    box: dict[str, float] = page.locator(".mvt-plot").bounding_box()
    return box


def under_pointer(page: Any, x: float, y: float) -> float:
    """Bytes at a point of the screen, by the viewport's own reckoning."""
    box = plot_box(page)
    there: float = page.evaluate(f"(y) => ({TIMELINE}).viewport.bytesAt(y)", y - box["y"])
    return there


@pytest.mark.parametrize("key", ["Shift", "Control"])
def test_the_wheel_with_a_key_zooms_the_height_about_the_pointer_and_leaves_the_width(page: Any, key: str) -> None:
    shown(page)
    before, box = sight(page), plot_box(page)
    x, y = box["x"] + 300, box["y"] + 100
    page.mouse.move(x, y)
    bytes_there = under_pointer(page, x, y)
    page.keyboard.down(key)
    for _ in range(4):
        page.mouse.wheel(0, -300)
    page.keyboard.up(key)
    seen = f"({TIMELINE}).viewport.top - ({TIMELINE}).viewport.bottom"
    page.wait_for_function(f"{seen} < {before['top'] * 0.1}")
    after = sight(page)
    assert (after["first"], after["last"]) == (before["first"], before["last"])
    assert under_pointer(page, x, y) == pytest.approx(bytes_there, rel=1e-6)
    page.get_by_role("button", name="Show the full height").click()
    page.wait_for_function(f"({TIMELINE}).viewport.isFullHeight()")
    page.locator(".mvt-full").wait_for(state="hidden")


def test_over_the_bytes_at_the_side_the_wheel_needs_no_key_and_a_drag_chooses_what_is_seen(page: Any) -> None:
    shown(page)
    before, box = sight(page), plot_box(page)
    page.mouse.move(box["x"] - 20, box["y"] + 150)
    page.mouse.wheel(0, -400)
    page.wait_for_function(f"!({TIMELINE}).viewport.isFullHeight()")
    page.mouse.dblclick(box["x"] - 20, box["y"] + 150)
    page.wait_for_function(f"({TIMELINE}).viewport.isFullHeight()")
    page.mouse.down()
    page.mouse.move(box["x"] - 25, box["y"] + 200, steps=3)
    page.locator(".mvt-box").wait_for()
    page.mouse.up()
    page.wait_for_function(f"!({TIMELINE}).viewport.isFullHeight()")
    after = sight(page)
    assert after["first"] == before["first"] and after["last"] == before["last"]
    height, whole = box["height"], before["top"]
    assert after["top"] == pytest.approx(whole * (1 - 150 / height), rel=0.01)
    assert after["bottom"] == pytest.approx(whole * (1 - 200 / height), rel=0.01)


def test_a_box_zooms_both_sides_and_all_shows_both_again(page: Any) -> None:
    shown(page)
    before, box = sight(page), plot_box(page)
    take_tool(page, "Box")
    page.mouse.move(box["x"] + 100, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + 400, box["y"] + 120, steps=4)
    page.mouse.up()
    page.wait_for_function(f"!({TIMELINE}).viewport.isFullHeight()")
    after, width = sight(page), before["last"] - before["first"]
    assert after["first"] == pytest.approx(before["first"] + width * 100 / box["width"], rel=0.02)
    assert after["last"] == pytest.approx(before["first"] + width * 400 / box["width"], rel=0.02)
    assert after["top"] == pytest.approx(before["top"] * (1 - 50 / box["height"]), rel=0.02)
    assert after["bottom"] == pytest.approx(before["top"] * (1 - 120 / box["height"]), rel=0.02)
    page.keyboard.press("Escape")
    assert page.locator(".mvt-tools [aria-pressed=true]", has_text="Move").count() == 1
    page.get_by_role("button", name="Show all (0)").click()
    page.wait_for_function(f"({TIMELINE}).viewport.isFullHeight() && ({TIMELINE}).viewport.isAll()")


def test_keys_come_to_one_block_of_512_bytes_above_32_gibibytes(page: Any) -> None:
    """Walked to, pinned and fitted: then it fills most of the plot, and one more zoom ends at the block itself."""
    mounted = shown(page, {"at": 11})
    page.locator(".mvt-plot").focus()
    for _ in range(6):
        page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    page.keyboard.press("v")
    page.wait_for_function(f"!({TIMELINE}).viewport.isFullHeight()")
    row = page.evaluate(f"({TIMELINE}).pin")
    assert page.evaluate(f"(row) => ({TIMELINE}).data.spans.size[row]", row) == 512
    seen = sight(page)
    assert seen["top"] - seen["bottom"] == pytest.approx(512 * 1.3)
    for _ in range(6):
        page.keyboard.press("w")
    page.wait_for_function(f"({TIMELINE}).viewport.top - ({TIMELINE}).viewport.bottom === 512")
    rest(page, RESTS_MS)
    rows = page.evaluate(
        f"""() => {{
            const {{ canvas, viewport }} = {TIMELINE};
            const x = viewport.xOfInstant(({TIMELINE}).moment);
            const ys = [1, 0.25, 0.5, 0.75].map((share) => Math.max(share * viewport.height - 1, 0));
            return [...new Set(ys.map((y) => canvas.rowAt({{ x, y }})))];
        }}"""
    )
    assert rows == [row]
    assert page.locator(".mvt-from").text_content() == f"axis starts at {32 * GiB - 4 * MiB:,} B"
    assert mounted.errors == []


def test_two_fingers_above_each_other_zoom_the_height(browser: Any, page: Any) -> None:
    context = browser.new_context(has_touch=True, viewport={"width": 900, "height": 700})
    try:
        touched = context.new_page()
        shown(touched)
        before, box = sight(touched), plot_box(touched)
        session = context.new_cdp_session(touched)
        x = box["x"] + 200

        def fingers(kind: str, *heights: float) -> None:
            points = [{"x": x + 3 * i, "y": box["y"] + y, "id": i} for i, y in enumerate(heights)]
            session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

        fingers("touchStart", 120, 180)
        for step in range(1, 6):
            fingers("touchMove", 120 - 10 * step, 180 + 10 * step)
        fingers("touchEnd")
        touched.wait_for_function(f"!({TIMELINE}).viewport.isFullHeight()")
        after = sight(touched)
        assert (after["first"], after["last"]) == (before["first"], before["last"])
        assert (after["top"] - after["bottom"]) / before["top"] == pytest.approx(60 / 160, rel=0.1)
    finally:
        context.close()


def test_what_is_seen_of_the_height_is_said_and_taken_back_from_a_link(page: Any) -> None:
    shown(page, {"low": 20 * GiB, "high": 21 * GiB})
    assert sight(page)["bottom"] == 20 * GiB and sight(page)["top"] == 21 * GiB
    page.locator(".mvt-plot").focus()
    page.keyboard.press("p")
    live = page.evaluate(f"({TIMELINE}).data.spans.live[({TIMELINE}).data.spans.peak]")
    # What was chosen is said at once, and what is seen of it as it comes into sight.
    page.wait_for_function("(live) => window.states.length && window.states.at(-1).high >= live", arg=live)
    peak = page.evaluate("window.states.at(-1)")
    assert peak["low"] <= live
    assert peak["high"] - peak["low"] == pytest.approx(GiB, abs=2)
    page.keyboard.press("0")
    page.wait_for_function("window.states.at(-1).low === null && window.states.at(-1).high === null")


@pytest.mark.parametrize("axis", ["event", "time"])
def test_a_view_that_comes_back_from_a_link_is_the_same_link(page: Any, axis: str) -> None:
    """It grew by an event each time."""
    stairs = trace_of([alloc(i * MiB, MiB, time_us=1000 * i) for i in range(60)])
    links = [{"from": 20, "to": 30, "axis": axis}]
    for number in range(2):
        mount_timeline(page, stairs, key=f"trace{number}", state=links[-1])
        page.wait_for_function(f"({TIMELINE})?.data && ({TIMELINE}).viewport.axis === '{axis}'")
        said = page.evaluate(f"({TIMELINE}).telling.state('', '')")
        links.append({name: said[name] for name in ("from", "to", "axis")})
    assert links[1] == links[2] == links[0]
