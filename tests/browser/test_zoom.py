"""The height is zoomed as the width is: by wheel, drag, keys and fingers, down to one block; and back at one press."""

from typing import Any

import pytest

from memviz.trace.model import Trace
from tests.browser.conftest import rest
from tests.browser.mounting import TIMELINE, Mounted, mount_timeline, take_tool
from tests.traces import MiB, alloc, free, trace_of

SHARES_A_PAGE = True

GiB = 1 << 30
RESTS_MS = 400


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


def plot(page: Any) -> dict[str, float]:
    box: dict[str, float] = page.locator(".mvt-plot").bounding_box()
    return box


def under_pointer(page: Any, x: float, y: float) -> float:
    """Bytes at a point of the screen, by the viewport's own reckoning."""
    box = plot(page)
    there: float = page.evaluate(f"(y) => ({TIMELINE}).viewport.bytesAt(y)", y - box["y"])
    return there


@pytest.mark.parametrize("key", ["Shift", "Control"])
def test_the_wheel_with_a_key_zooms_the_height_about_the_pointer_and_leaves_the_width(page: Any, key: str) -> None:
    shown(page)
    before, box = sight(page), plot(page)
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
    before, box = sight(page), plot(page)
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
    before, box = sight(page), plot(page)
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
        before, box = sight(touched), plot(touched)
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
