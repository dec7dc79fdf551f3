"""The ruler and the range between two points: by pointer and keys, to the byte, removed by Escape."""

import re
from typing import Any

import pytest

from tests.browser.conftest import expect
from tests.browser.mounting import TIMELINE, mount_timeline, take_tool
from tests.traces import MiB, alloc, event, free, trace_of

WORDS = ".mvt-measurewords"


@pytest.fixture
def plot(same_page: Any) -> Any:
    """Ten allocations of 10 MiB and 3 bytes, 1 ms apart, in 128 MiB."""
    same_page.emulate_media(reduced_motion="reduce")
    begin = event("segment_alloc", 0, 128 * MiB, time_us=0)
    steps = [alloc(i * 11 * MiB, 10 * MiB + 3, time_us=1000 * (i + 1)) for i in range(10)]
    mount_timeline(same_page, trace_of([begin, *steps]))
    return same_page


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


def test_the_overview_is_drawn_along_the_axis_of_the_plot(same_page: Any) -> None:
    """A click selects the moment shown there, and the window covers the visible range."""
    steps = [alloc(i * 11 * MiB, 10 * MiB, time_us=1000 * (i + 1)) for i in range(9)]
    trace = trace_of([event("segment_alloc", 0, 128 * MiB, time_us=0), *steps, alloc(99 * MiB, MiB, time_us=100_000)])
    mount_timeline(same_page, trace)
    painted = """(share) => {
      const strip = document.querySelector(".mvt-overview");
      const column = strip.getContext("2d").getImageData(Math.floor(strip.width * share), 0, 1, strip.height).data;
      return column.filter((value, i) => i % 4 === 3 && value > 0).length / strip.height;
    }"""
    # After a fifth of the events few are there; after a fifth of the time nearly all.
    assert same_page.evaluate(painted, 0.2) < 0.25
    take_tool(same_page, "Time")
    same_page.wait_for_function(f"({TIMELINE}).viewport.axis === 'time'")
    assert same_page.evaluate(painted, 0.2) > 0.6


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
def peaks(same_page: Any) -> Any:
    """Up to 70 MiB at event 4, then 10 and 30 MiB in turns."""
    events = [event("segment_alloc", 0, 128 * MiB), alloc(0, 10 * MiB), alloc(10 * MiB, 40 * MiB)]
    events += [alloc(50 * MiB, 10 * MiB), alloc(60 * MiB, 10 * MiB), free(50 * MiB, 10 * MiB), free(60 * MiB, 10 * MiB)]
    events += [free(10 * MiB, 40 * MiB)]
    for _ in range(8):
        events += [alloc(10 * MiB, 20 * MiB), free(10 * MiB, 20 * MiB)]
    mount_timeline(same_page, trace_of(events))
    return same_page


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
