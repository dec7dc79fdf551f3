"""The page in a real browser, beside MemoryViz.js (the page behind PyTorch's memory_viz) in the same browser.

    python -m tests.benchmarks.browser --files A.pickle B.pickle [--memoryviz BUNDLE.js] [--write]

Ours, from the choice of a file, upload, reading and packing on the server included: *total* is the first picture of
the whole file, its live bytes over all its events in grey, exact, beside the reserved line; *coloured* is every
allocation in its place. What is drawn while the file is still being read counts as neither. Then from the start of a
page that has the file open to *coloured*. Each until two frames after the page itself says that it has drawn; a mark
in the page takes the time, because whoever asks the page again and again takes half of the machine from it.
MemoryViz.js: from the start of its page, which fetches the file from this machine, to two frames after its polygons
stand, which is its first picture. Then the same wheel steps over both, each from the turn to the picture on the screen.
BUNDLE.js is MemoryViz.js with its d3 in one module, made by any bundler; it is not part of this project.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import json
import os
import platform
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

from memviz.trace.load import load_trace

README = Path(__file__).parent / "README.md"
BEGIN, END = "<!-- browser: begin -->", "<!-- browser: end -->"
STEPS = 15
_ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    # Frames as fast as they can be made: otherwise every step lasts at least until the screen's next one.
    "--disable-frame-rate-limit",
    "--disable-gpu-vsync",
]
_MARKS = """
({ marks, since }) => {
  window.marked = {};
  let begun = since === "page" ? 0 : NaN;
  const note = () => {
    for (const [name, selector] of Object.entries(marks)) {
      if (name in window.marked || !document.querySelector(selector)) continue;
      window.marked[name] = null;
      requestAnimationFrame(() => requestAnimationFrame(() => (window.marked[name] = performance.now() - begun)));
    }
  };
  if (since === "choice") {
    window.addEventListener("change", () => (begun = performance.now()), { capture: true, once: true });
  }
  const what = { subtree: true, childList: true, attributes: true, attributeFilter: ["data-total", "data-drawn"] };
  new MutationObserver(note).observe(document, what);
}
"""
_OURS = {"total": ".mvt[data-total=whole]", "coloured": ".mvt[data-drawn]:not([data-total])"}
_THEIRS = {"coloured": "svg polygon"}
_LARGEST = """
(selector) => {
  const box = (each) => each.getBoundingClientRect();
  const all = [...document.querySelectorAll(selector)].map(box).sort((a, b) => b.width * b.height - a.width * a.height);
  return { x: all[0].x, y: all[0].y, width: all[0].width, height: Math.min(all[0].height, 900 - all[0].y) };
}
"""


def main() -> None:
    args = _arguments()
    rows = []
    with sync_playwright() as engine:
        path = shutil.which("chromium") or shutil.which("google-chrome")
        for file in args.files:
            events = load_trace(file).event_count
            browser = engine.chromium.launch(executable_path=path, args=_ARGUMENTS)
            rows.append([f"memviz, {events:,} events", *_ours(browser, file)])
            browser.close()
            if args.memoryviz:
                browser = engine.chromium.launch(executable_path=path, args=_ARGUMENTS)
                rows.append([f"MemoryViz.js, {events:,} events", *_theirs(browser, file, args.memoryviz)])
                browser.close()
    table = _table(rows)
    print(table)
    if args.write:
        text = README.read_text(encoding="utf-8")
        before, after = text[: text.index(BEGIN) + len(BEGIN)], text[text.index(END) :]
        README.write_text(f"{before}\n{table}\n{after}", encoding="utf-8")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.browser")
    parser.add_argument("--files", nargs="+", type=Path, required=True)
    parser.add_argument("--memoryviz", type=Path)
    parser.add_argument("--write", action="store_true")
    return parser.parse_args()


def _ours(browser: Any, file: Path) -> list[str]:
    with _serving([sys.executable, "app.py"]) as address:
        page = browser.new_page(viewport={"width": 1440, "height": 1000})
        sent = _count_bytes(page)
        page.add_init_script(f"({_MARKS})({json.dumps({'marks': _OURS, 'since': 'choice'})})")
        started = time.perf_counter()
        page.goto(address)
        page.wait_for_selector(".mv-sample", timeout=60_000)
        opens = time.perf_counter() - started
        # Whoever chooses a file has looked at the page for a moment.
        page.wait_for_timeout(2000)
        before = sum(sent)
        page.set_input_files("#first-files input[type=file]", file)
        uploaded = _marked(page)
        page.wait_for_timeout(3000)
        received = sum(sent) - before
        steps = _zoom(page, ".mvt-plot")
        draws = page.evaluate("() => Number(document.querySelector('.mvt').dataset.drawMs)")
        page.close()
    with _serving([sys.executable, "-m", "memviz", "open", str(file)]) as address:
        page = browser.new_page(viewport={"width": 1440, "height": 1000})
        page.add_init_script(f"({_MARKS})({json.dumps({'marks': _OURS, 'since': 'page'})})")
        page.goto(address)
        given = _marked(page)
        page.close()
    total = uploaded.get("total") or uploaded["coloured"]
    shown = [f"{total / 1000:.2f} s", f"{uploaded['coloured'] / 1000:.2f} s", f"{given['coloured'] / 1000:.2f} s"]
    return [*shown, *_steps(steps), f"{draws:.1f} ms", f"{received / 1e6:.2f} MB", f"{opens:.2f} s"]


def _marked(page: Page) -> dict[str, float]:
    """Milliseconds of each mark. Asked for only now and then, so that asking costs nothing."""
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        marks: dict[str, float] = page.evaluate("() => window.marked")
        if marks.get("coloured"):
            return marks
        page.wait_for_timeout(500)
    raise SystemExit("Nothing was drawn in ten minutes.")


@contextmanager
def _serving(command: list[str]) -> Iterator[str]:
    port = _free_port()
    settings = {"GRADIO_SERVER_PORT": str(port), "GRADIO_ANALYTICS_ENABLED": "False"}
    server = subprocess.Popen(command, env={**os.environ, **settings}, stdout=subprocess.DEVNULL)
    try:
        _wait(f"http://127.0.0.1:{port}/")
        yield f"http://127.0.0.1:{port}/"
    finally:
        server.terminate()
        server.wait()


def _count_bytes(page: Page) -> list[int]:
    """Of every answer's body as it came over the wire, those that the page's workers ask for included."""
    sizes: list[int] = []

    def count(request: Any) -> None:
        sizes.append(request.sizes()["responseBodySize"])

    page.on("requestfinished", count)
    return sizes


def _theirs(browser: Any, file: Path, bundle: Path) -> list[str]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "viz.js").write_bytes(bundle.read_bytes())
        (folder / "data.pickle").symlink_to(file.resolve())
        (folder / "index.html").write_text(
            "<body><script type=module>import { add_remote_files } from './viz.js';"
            "add_remote_files([{ name: 'data.pickle', url: 'data.pickle' }]);</script></body>"
        )
        handler = functools.partial(_Quiet, directory=name)
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            page = browser.new_page(viewport={"width": 1440, "height": 1000})
            page.add_init_script(f"({_MARKS})({json.dumps({'marks': _THEIRS, 'since': 'page'})})")
            page.goto(f"http://127.0.0.1:{server.server_port}/index.html")
            first = _marked(page)["coloured"] / 1000
            page.wait_for_timeout(1500)
            return [
                "",
                "",
                f"{first:.2f} s",
                *_steps(_zoom(page, "svg")),
                "",
                f"{file.stat().st_size / 1e6:.2f} MB",
                "",
            ]
        finally:
            server.shutdown()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def _zoom(page: Page, selector: str) -> list[float]:
    """Milliseconds from a turn of the wheel to the picture of it, less what such a picture takes by itself.

    A picture of the page waits until all is drawn, also by threads that a script in the page does not see.
    """
    box = page.evaluate(_LARGEST, selector)
    page.mouse.move(box["x"] + 0.4 * box["width"], box["y"] + 0.5 * box["height"])
    page.wait_for_timeout(500)

    def picture() -> float:
        started = time.perf_counter()
        page.screenshot(clip=box, type="jpeg", quality=30)
        return 1000 * (time.perf_counter() - started)

    idle = statistics.median([picture() for _ in range(STEPS)])
    taken = []
    for step in range(STEPS):
        started = time.perf_counter()
        page.mouse.wheel(0, 100 if step % 3 == 2 else -100)
        page.screenshot(clip=box, type="jpeg", quality=30)
        taken.append(max(1000 * (time.perf_counter() - started) - idle, 0.0))
        page.wait_for_timeout(400)
    return taken


def _steps(taken: list[float]) -> list[str]:
    return [f"{statistics.median(taken):.1f} ms", f"{max(taken):.1f} ms"]


def _wait(address: str) -> None:
    for _ in range(240):
        try:
            urllib.request.urlopen(address, timeout=2).read(1)
            return
        except OSError:
            time.sleep(0.25)
    raise SystemExit(f"{address} does not answer")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _table(rows: list[list[str]]) -> str:
    head = [
        "",
        "uploaded, to the total",
        "uploaded, to the coloured picture",
        "from the start of the page to the coloured picture",
        "zoom step, median",
        "zoom step, longest",
        "of it drawing",
        "bytes to the browser",
        "page opens",
    ]
    machine = f"{os.cpu_count()} cores, {platform.system()}, headless Chromium without a GPU, 1440 x 1000"
    where = f"{date.today():%-d %B %Y}, {machine}"
    lines = [f"Measured on {where}.", "", f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


if __name__ == "__main__":
    main()
