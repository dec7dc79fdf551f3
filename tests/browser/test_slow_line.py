"""The bytes of a file sent over a slow line, and the choice of compression."""

from __future__ import annotations

import base64
import gzip
import pickle
import random
import threading
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from memviz.ui.upload.arriving import Arriving
from tests.browser.mounting import load

SAMPLE = Path(__file__).parents[2] / "sample_traces" / "training.pickle.gz"
BYTES_A_SECOND = 250_000
JUDGED = """(parts) => {
  const line = new memviz.line.Line(40);
  return parts.map(([bytes, ms]) => {
    line.sent(bytes, ms);
    return line.isKnown ? (line.isFast ? "as it is" : "packed") : "unknown";
  });
}"""
SENT = """async ({ text, kinds, rate }) => {
  const raw = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  let turn = 0;
  const isFast = () => kinds[turn % kinds.length] === "plain";
  const line = { isKnown: true, rate, sent: () => turn++, get isFast() { return isFast(); } };
  const sending = new memviz.sending.Sending(new File([raw], "run.pickle"), true, line, () => false);
  const parts = [];
  await sending.run(async ({ body, isPlain }) => {
    const bytes = new Uint8Array(await body.arrayBuffer());
    parts.push([btoa(Array.from(bytes, (c) => String.fromCharCode(c)).join("")), isPlain]);
  });
  return parts;
}"""


def scripts(page: Any) -> None:
    page.goto("about:blank")
    load(page, "arrivals/sending.js", "arrivals/line.js")


def test_the_line_is_judged_by_what_was_sent(page: Any) -> None:
    scripts(page)
    kilo = 1024
    # A slow first part is measured again; on a fast line one part is enough.
    assert page.evaluate(JUDGED, [[48 * kilo, 240], [48 * kilo, 235]]) == ["unknown", "packed"]
    assert page.evaluate(JUDGED, [[512 * kilo, 80], [4000 * kilo, 300]]) == ["as it is", "as it is"]
    # Of two the better counts: it is the machine that was slow.
    assert page.evaluate(JUDGED, [[48 * kilo, 60], [48 * kilo, 8]]) == ["unknown", "as it is"]
    # However slow the answer to nothing was, half a second for a little is a slow line.
    assert page.evaluate(JUDGED.replace("Line(40)", "Line(900)"), [[48 * kilo, 240], [48 * kilo, 241]])[-1] == "packed"
    # A busy machine is slow for once, and a small part slips through.
    assert page.evaluate(JUDGED, [[512 * kilo, 60], [16_000 * kilo, 900], [400 * kilo, 300]])[-1] == "as it is"
    assert page.evaluate(JUDGED, [[512 * kilo, 290], [512 * kilo, 300], [2000 * kilo, 1000], [400 * kilo, 45]])[1:] == (
        ["packed"] * 3
    )
    # It may change for good.
    slower = page.evaluate(JUDGED, [[512 * kilo, 50], *[[8000 * kilo, 9000]] * 3])
    assert slower[0] == "as it is" and slower[-1] == "packed"


def test_a_measure_is_a_small_part_of_any_file(page: Any) -> None:
    scripts(page)
    sizes = [0, 3_000_000, 160_000_000, 8 << 30]
    assert page.evaluate("(sizes) => sizes.map(memviz.line.probeOf)", sizes) == [49_152, 49_152, 524_288, 524_288]


@pytest.mark.parametrize("kinds", [["plain"], ["plain", "plain", "packed"], ["packed", "plain", "plain", "plain"]])
@pytest.mark.parametrize("size", [0, 1, 65_536, 2_000_001])
def test_packed_and_as_they_are_parts_are_one_file(page: Any, kinds: list[str], size: int) -> None:
    """Random bytes do not compress, so that compressed and plain parts alternate."""
    scripts(page)
    raw = random.Random(size).randbytes(size)
    given = {"text": base64.b64encode(raw).decode(), "kinds": kinds, "rate": 300_000}
    parts = page.evaluate(SENT, given)
    arriving = Arriving(size, packed=True, gate=threading.Semaphore(0))
    for text, is_plain in parts:
        arriving.add(base64.b64decode(text), plain=is_plain)
    arriving.end()
    assert arriving.read() == raw
    assert parts[0][1] == (kinds[0] == "plain")


def test_over_a_slow_line_far_fewer_bytes_go(page: Any, server: str, tmp_path: Path) -> None:
    """The browser's developer tools throttle the line."""
    file = tmp_path / "training.pickle"
    # Several steps of a sample, as long as a real file of 3 MB.
    root = pickle.loads(gzip.decompress(SAMPLE.read_bytes()))
    root = {"segments": [], "device_traces": [[e for _ in range(10) for e in deepcopy(root["device_traces"][0])]]}
    file.write_bytes(pickle.dumps(root, protocol=4))
    assert file.stat().st_size > 2_500_000
    parts: list[Any] = []
    page.on("request", lambda request: parts.append(request) if "/memviz/readings/" in request.url else None)
    page.goto(server)
    page.get_by_role("heading", name="See what fills your GPU.").wait_for()
    tools = page.context.new_cdp_session(page)
    tools.send("Network.enable")
    line = {"offline": False, "latency": 40, "downloadThroughput": -1, "uploadThroughput": BYTES_A_SECOND}
    tools.send("Network.emulateNetworkConditions", line)
    page.set_input_files("#first-files input[type=file]", file)
    page.locator("#verdict .mv-verdict").wait_for()
    sent = sum(int(part.all_headers()["content-length"]) for part in parts if part.method == "POST")
    assert 0 < sent < file.stat().st_size / 4
