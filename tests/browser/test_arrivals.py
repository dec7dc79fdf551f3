"""A dropped file: drawn before it is understood, cancelled, refused, over a slow line, where our way fails."""

import gzip
import pickle
import re
import threading
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

from memviz.analysis.timeline import timeline
from memviz.trace.load import load_trace
from memviz.ui.upload.routes import PATH
from memviz.units import bytes_text
from tests.browser.conftest import SAMPLES, at_home
from tests.server import started as started_page
from tests.traces import alloc, frame, free, snapshot

HELD_BACK = """
addEventListener("memviz:piece", (event) => {
  if (event.isLate) return;
  event.stopImmediatePropagation();
  const late = Object.assign(new CustomEvent("memviz:piece", { detail: event.detail }), { isLate: true });
  const give = () => (window.mayDraw ? dispatchEvent(late) : setTimeout(give, 50));
  give();
});
"""
"""A small file's colours come with its total; this delays them so that both can be seen. It is registered before
the page loads, because the listeners of a window are called in order."""
TOPS = """
() => {
  const canvas = document.querySelector("#timeline .mvt-plot canvas");
  const { width, height } = canvas;
  const alpha = canvas.getContext("2d").getImageData(0, 0, width, height).data;
  const y = [];
  for (let x = 0; x < width; x++) {
    let top = 0;
    while (top < height && !alpha[4 * (top * width + x) + 3]) top++;
    y.push(top);
  }
  return { y, height, isDrawn: "drawn" in document.querySelector("#timeline .mvt").dataset };
}
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Large enough to come in several parts."""
    path = tmp_path_factory.mktemp("files") / "large.pickle"
    frames = [frame(f"function_{i}", "model.py", i) for i in range(40)]
    events = []
    for i in range(40_000):
        size = 4096 * (1 + i % 97)
        stack = frames[i % 13 :]
        events += [alloc((i % 500) << 20, size, frames=stack, time_us=4 * i)]
        events += free((i % 500) << 20, size, frames=stack, time_us=4 * i + 1) if i % 500 else []
        events += [alloc(i << 30, 512, frames=list(reversed(stack)), time_us=4 * i + 3)]
    path.write_bytes(pickle.dumps(snapshot(events)))
    return path


@pytest.fixture
def home(same_page: Any, server: str) -> Iterator[Any]:
    """The start page with nothing open, after which no address is intercepted."""
    at_home(same_page, server)
    yield same_page
    same_page.unroute_all()


def test_first_the_total_in_grey_where_the_colours_will_stand_then_they_and_the_words(
    page: Any, server: str, large: Path
) -> None:
    """In every column the total's top is that of the run's bytes, on the scale of the picture to come."""
    page.add_init_script(HELD_BACK)
    at_home(page, server)
    page.set_input_files("#first-files input[type=file]", large)
    page.locator("#timeline .mvt[data-total=whole]").wait_for()
    tops = page.evaluate(TOPS)
    peak = page.locator("#timeline .mvt svg").first.text_content()
    assert not tops["isDrawn"]
    line = timeline(load_trace(large).devices[0])
    top = max(int(line.reserved.max()), line.peak_bytes) * 1.06
    columns = np.array_split(line.live, len(tops["y"]))
    expected = [tops["height"] * (1 - int(column.max()) / top) for column in columns]
    # A column of the screen is one of those sent or two, so a neighbour's may show.
    low = np.minimum.reduce([np.roll(expected, shift) for shift in (-2, -1, 0, 1, 2)])
    high = np.maximum.reduce([np.roll(expected, shift) for shift in (-2, -1, 0, 1, 2)])
    inner = slice(3, -3)
    found = np.array(tops["y"])[inner]
    assert np.all(found >= low[inner] - 2)
    assert np.all(found <= high[inner] + 2)
    assert found.max() - found.min() > 20
    assert bytes_text(line.peak_bytes) in peak
    page.evaluate("window.mayDraw = true")
    page.locator("#timeline .mvt[data-drawn]").wait_for()
    page.locator("#verdict .mv-verdict").wait_for()
    assert bytes_text(line.peak_bytes) in page.locator("#verdict .mv-verdict").inner_text()
    page.get_by_role("button", name=re.compile("^large")).first.wait_for()
    assert page.locator(".mv-arrival").count() == 0
    assert not page.locator("#home").is_visible()


def test_what_is_clicked_before_the_page_knows_its_visitor_is_not_lost(page: Any, server: str) -> None:
    held: list[Any] = []
    page.route("**/queue/join*", lambda route: route.continue_() if held else held.append(route))
    at_home(page, server)
    page.locator("[data-sample=training]").click()
    # An immediate request would be answered too early, and the page's first answer would close it again.
    while not held:
        page.wait_for_timeout(50)
    page.wait_for_timeout(500)
    held[0].continue_()
    page.locator("#timeline .mvt[data-drawn]").wait_for()
    assert page.locator(".mv-trace").count() == 1


def test_a_second_file_leaves_the_open_one_usable_until_it_is_there(home: Any, large: Path) -> None:
    page = home
    page.locator("[data-sample=training]").click()
    page.locator("#timeline .mvt[data-drawn]").wait_for()
    page.route("**/memviz/readings/*", lambda route: None if route.request.method == "POST" else route.continue_())
    page.set_input_files("#files input[type=file]", large)
    row = page.locator(".mv-arrival")
    row.get_by_text("reading").wait_for()
    page.locator("#timeline .mvt-plot").focus()
    page.keyboard.press("Shift+ArrowLeft")
    page.wait_for_url(re.compile("trace=sample"))
    row.get_by_role("button", name="Cancel large.pickle").click()
    row.wait_for(state="detached")
    assert page.locator(".mv-trace").count() == 1
    page.unroute("**/memviz/readings/*")
    page.set_input_files("#files input[type=file]", large)
    page.get_by_role("button", name=re.compile("^large")).first.wait_for()
    assert page.locator(".mv-trace").count() == 2


def test_where_something_else_answers_the_file_is_refused(home: Any, large: Path) -> None:
    page = home
    page.route("**/memviz/readings", lambda route: route.fulfill(status=200, body="<html>a proxy's page</html>"))
    page.set_input_files("#first-files input[type=file]", large)
    page.locator("[data-refused]").wait_for()
    page.locator("#home").wait_for()


def test_where_too_many_are_read_a_file_waits_for_its_place(page: Any, server: str, large: Path) -> None:
    at_home(page, server)
    may_go = threading.Event()
    full = {"reason": "Too many files are being read. Try again in a moment."}
    page.route(
        "**/memviz/readings",
        lambda route: route.continue_() if may_go.is_set() else route.fulfill(status=429, json=full),
    )
    page.set_input_files("#first-files input[type=file]", large)
    page.locator(".mv-arrival").get_by_text("waiting").wait_for()
    assert page.get_by_text("Try again in a moment").count() == 0
    may_go.set()
    page.locator("#timeline .mvt[data-drawn]").wait_for()
    assert page.locator("[data-refused]").count() == 0


LOGIN = """
from memviz.ui.app import build_app, launch_options

build_app().launch(auth=("ann", "a secret"), **launch_options())
"""


def test_behind_a_login_files_arrive_all_the_same(page: Any, large: Path) -> None:
    with started_page({}, program=("-c", LOGIN), quickly=True) as own:
        page.goto(own.address)
        page.get_by_label("username").fill("ann")
        page.get_by_label("password").fill("a secret")
        page.get_by_role("button", name="Login").click()
        page.get_by_role("heading", name="See what fills your GPU.").wait_for()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(urlsplit(request.url).path))
        page.set_input_files("#first-files input[type=file]", large)
        page.locator("#verdict .mv-verdict").wait_for()
        page.locator("#timeline .mvt[data-drawn]").wait_for()
        assert PATH in asked
        assert not [each for each in asked if each.endswith("/upload")]


BYTES_A_SECOND = 250_000


def test_over_a_slow_line_far_fewer_bytes_go(page: Any, server: str, tmp_path: Path) -> None:
    """The browser's developer tools throttle the line, which this page has not measured yet."""
    at_home(page, server)
    file = tmp_path / "training.pickle"
    # Several steps of a sample, as long as a real file of 3 MB.
    root = pickle.loads(gzip.decompress((SAMPLES / "training.pickle.gz").read_bytes()))
    root = {"segments": [], "device_traces": [[e for _ in range(10) for e in deepcopy(root["device_traces"][0])]]}
    file.write_bytes(pickle.dumps(root, protocol=4))
    assert file.stat().st_size > 2_500_000
    parts: list[Any] = []
    page.on("request", lambda request: parts.append(request) if "/memviz/readings/" in request.url else None)
    tools = page.context.new_cdp_session(page)
    tools.send("Network.enable")
    line = {"offline": False, "latency": 40, "downloadThroughput": -1, "uploadThroughput": BYTES_A_SECOND}
    tools.send("Network.emulateNetworkConditions", line)
    page.set_input_files("#first-files input[type=file]", file)
    page.locator("#verdict .mv-verdict").wait_for()
    sent = sum(int(part.all_headers()["content-length"]) for part in parts if part.method == "POST")
    assert 0 < sent < file.stat().st_size / 4
