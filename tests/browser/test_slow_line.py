"""A file over a slow line: far fewer bytes are sent."""

from __future__ import annotations

import gzip
import pickle
from copy import deepcopy
from pathlib import Path
from typing import Any

SAMPLE = Path(__file__).parents[2] / "sample_traces" / "training.pickle.gz"
BYTES_A_SECOND = 250_000


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
