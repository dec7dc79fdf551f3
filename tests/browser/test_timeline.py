"""The timeline's labels are at the positions of the elements that they name."""

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memviz.trace.load import load_trace
from memviz.trace.model import Annotations, HostBytes, Stage
from tests.browser.conftest import at_home, expect
from tests.browser.mounting import TIMELINE, mount_timeline
from tests.traces import MiB, alloc, event, segment, snapshot

SAMPLES = Path(__file__).parents[2] / "sample_traces"


@pytest.fixture
def drawn(same_page: Any, server: str, tmp_path: Path) -> Any:
    """Six events; the last one ran out of memory."""
    steps = [each for i in range(2) for each in (event("segment_alloc", i << 30, 20 * MiB), alloc(i << 30, 19 * MiB))]
    last = [alloc(20 * MiB + (1 << 30), MiB), event("oom", 0, 64 * MiB, device_free=MiB)]
    file = tmp_path / "failed.pickle"
    file.write_bytes(pickle.dumps(snapshot([*steps, *last], [segment(i << 30, 20 * MiB, []) for i in range(2)])))
    page = same_page
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
def test_host_memory_is_a_lane_below_the_plot(same_page: Any, width: int) -> None:
    trace = load_trace(SAMPLES / "training.pickle.gz")
    device, zeros = trace.devices[0], [0, 0, 0]
    count = len(device.events)
    page = same_page
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


def test_a_mark_of_the_program_chooses_its_moment(same_page: Any) -> None:
    trace = load_trace(SAMPLES / "training.pickle.gz")
    device = trace.devices[0]
    at, name = len(device.events) // 2, len(trace.strings)
    # Between two events.
    times = 2 * np.arange(len(device.events))
    annotations = Annotations.typed([name, name], [Stage.START, Stage.END], [2 * at + 1, 2 * at + 1])
    marked = replace(device, events=replace(device.events, time_us=times), annotations=annotations)
    mount_timeline(same_page, replace(trace, strings=(*trace.strings, "after <eval>"), devices=(marked,)))
    same_page.locator(".mvt-marktext", has_text="after <eval>").wait_for()
    same_page.locator(".mvt-mark-of-program text").click()
    same_page.locator(".mvt-pilltext", has_text=f"event {at:,}").wait_for()
