"""A range of events: everything answers for its peak, and its two ends are marked one after the other by keys."""

from __future__ import annotations

from typing import Any

import pytest

from tests.browser.mounting import TIMELINE, mount_timeline
from tests.traces import MiB, alloc, event, free, trace_of

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")

PEAK = 4


@pytest.fixture
def plot(same_page: Any) -> Any:
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


def test_legend_pill_and_what_is_told_are_of_the_peak_of_the_range(plot: Any) -> None:
    assert legend_bytes(plot) == 70 * MiB
    box = plot.locator(".mvt-plot").bounding_box()
    left, right = (box["x"] + x for x in plot.evaluate(f"[14, 20].map((at) => ({TIMELINE}).viewport.xOfInstant(at))"))
    plot.keyboard.down("Shift")
    plot.mouse.move(left, box["y"] + 9)
    plot.mouse.down()
    plot.mouse.move(right, box["y"] + 9, steps=3)
    plot.mouse.up()
    plot.keyboard.up("Shift")
    plot.wait_for_function("window.states.some(({ range }) => range)")
    said = plot.evaluate("window.states.at(-1)")
    first, last = said["range"]
    assert (first, last) == (13, 19)
    highest = plot.evaluate(f"({TIMELINE}).data.spans.largestIn({first + 1}, {last + 2})") - 1
    assert first <= said["at"] == highest <= last and highest > PEAK
    playwright.expect(plot.locator(".mvt-pilltext").first).to_have_text(f"range’s peak · event {highest}")
    assert legend_bytes(plot) == 30 * MiB
    plot.keyboard.press("Escape")
    playwright.expect(plot.locator(".mvt-pilltext").first).to_have_text(f"peak · event {PEAK}")


def test_keys_mark_one_end_and_then_the_other(plot: Any) -> None:
    plot.locator(".mvt-plot").focus()
    at = f"({TIMELINE}).choosing.setMoment"
    ends = f"({TIMELINE}).range"
    plot.evaluate(f"{at}(10)")
    plot.keyboard.press("[")
    plot.evaluate(f"{at}(15)")
    plot.keyboard.press("]")
    assert plot.evaluate(ends) == [10, 15]
    plot.evaluate(f"{at}(6)")
    plot.keyboard.press("]")
    assert plot.evaluate(ends) == [0, 6], "an end before the begin begins a range anew"
    plot.keyboard.press("Escape")
    plot.evaluate(f"{at}(12)")
    plot.keyboard.press("[")
    assert plot.evaluate(ends)[0] == 12 and plot.evaluate(ends)[1] > 20, "Escape has forgotten the other end"
