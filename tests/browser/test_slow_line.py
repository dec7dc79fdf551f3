"""How many bytes of a file go over a slow line, and what is packed at all."""

from __future__ import annotations

import base64
import gzip
import pickle
import zlib
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from tests.browser.mounting import load
from tests.traces import alloc, frame, snapshot

SAMPLE = Path(__file__).parents[2] / "sample_traces" / "training.pickle.gz"
BYTES_A_SECOND = 250_000
JUDGED = """(parts) => {
  const line = new memviz.line.Line(40);
  return parts.map(([bytes, ms]) => {
    line.sent(bytes, ms);
    return line.isKnown ? (line.isFast ? "as it is" : "packed") : "unknown";
  });
}"""
MIXED = """async ({ text, kinds, step }) => {
  const raw = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const parts = [];
  for (let at = 0, turn = 0; at === 0 || at < raw.length; at += step, turn++) {
    const piece = raw.slice(at, at + step);
    const isLast = at + step >= raw.length;
    if (kinds[turn % kinds.length] === "packed") parts.push(memviz.deflate.deflate(piece, isLast));
    else parts.push(memviz.deflate.stored(piece, isLast));
  }
  const whole = new Uint8Array(await new Blob(parts).arrayBuffer());
  return btoa(Array.from(whole, (c) => String.fromCharCode(c)).join(""));
}"""


def scripts(page: Any) -> None:
    page.goto("about:blank")
    load(page, "arrivals/deflate.js", "arrivals/line.js")


def test_the_line_is_judged_by_what_was_sent(page: Any) -> None:
    scripts(page)
    kilo = 1024
    # A first part that is slow is asked about again; on a quick line one is enough.
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


@pytest.mark.parametrize("kinds", [["stored"], ["stored", "stored", "packed"], ["packed", "stored"]])
@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 200_001])
def test_packed_and_as_they_are_parts_are_one_stream(page: Any, kinds: list[str], size: int) -> None:
    scripts(page)
    raw = pickle.dumps(snapshot([alloc(i, 512, frames=[frame("f", "m.py", i % 7)]) for i in range(3000)]))[:size]
    given = {"text": base64.b64encode(raw).decode(), "kinds": kinds, "step": 70_000}
    sent = base64.b64decode(page.evaluate(MIXED, given))
    unpacker = zlib.decompressobj(-zlib.MAX_WBITS)
    assert unpacker.decompress(sent) == raw and unpacker.eof and not unpacker.unused_data


def test_over_a_slow_line_far_fewer_bytes_go(page: Any, server: str, tmp_path: Path) -> None:
    """Made slow by the browser's own tools."""
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
