"""The page in a real browser, compared to MemoryViz.js (the page behind PyTorch's memory_viz) in the same one.

    python -m tests.benchmarks.browser --files A.pickle [--alone LARGE.pickle] [--memoryviz BUNDLE.js] [--write]

memviz is timed from the choice of a file, with upload, reading and packing on the server: *total* is the first exact
picture of the whole file (live bytes in grey, and the reserved line); *coloured* shows every allocation. *So far* is
the first partial picture while the file is read. A second time is from the load of a page with the file already open
to *coloured*. Each ends two frames after the page reports that it has drawn; a mark in the page takes the time, because
polling the page would take half of the CPU.
Then allocations are clicked, until the outline and until the stack is shown (MemoryViz.js shows the stack alone), and
tabs are turned to, until two frames after their panel is seen; each from the event to the frame that shows it.
How long the page takes to open is told as the processor time of its own thread too, which other load disturbs little.
MemoryViz.js is timed from the load of its page, which fetches the file from this machine, to two frames after its
polygons are drawn. Then both get the same wheel events, one per frame: a step is the time between two frames that draw,
with style, layout and paint. No frame may be empty, because after an empty frame Chromium waits for the next tick of a
60 Hz screen: an idle page then had steps of 20 ms, and one that worked for 14 ms had steps of 33.
BUNDLE.js is MemoryViz.js with d3 of version 5, made one module by any bundler (with version 7 its zoom does nothing);
it is not part of this project.
"""

import argparse
import functools
import http.server
import json
import os
import platform
import shutil
import statistics
import tempfile
import threading
import time
from datetime import date
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

from memviz.trace.load import load_trace
from tests.benchmarks.readme import write_table
from tests.server import started

STEPS = 30
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    # Frames as fast as they can be made: otherwise every step lasts at least until the screen's next one.
    "--disable-frame-rate-limit",
    "--disable-gpu-vsync",
]
MARKS = """
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
_OURS = {
    "begun": ".mvt[data-total=part]",
    "total": ".mvt[data-total=whole]",
    "coloured": ".mvt[data-drawn]:not([data-total])",
}
_THEIRS = {"coloured": "svg polygon"}
_TURNS = """
async ([selector, steps]) => {
  const area = ({ width, height }) => width * height;
  const boxes = [...document.querySelectorAll(selector)].map((each) => each.getBoundingClientRect());
  const box = boxes.sort((a, b) => area(b) - area(a))[0];
  const where = { clientX: box.x + 0.4 * box.width, clientY: box.y + 0.5 * Math.min(box.height, 900 - box.y) };
  const target = document.elementFromPoint(where.clientX, where.clientY);
  const frame = () => new Promise((done) => requestAnimationFrame(done));
  const turns = [];
  for (let step = 0; step < steps; step++) {
    const begun = performance.now();
    const deltaY = step % 3 === 2 ? 100 : -100;
    target.dispatchEvent(new WheelEvent("wheel", { ...where, deltaY, bubbles: true, cancelable: true }));
    await frame();
    turns.push([performance.now() - begun, Number(document.querySelector(".mvt")?.dataset.drawMs || 0)]);
  }
  return turns;
}
"""
_CLICKS = """
async ({ count, selector, outlined, told }) => {
  const wordsOf = (node) => node.getAttribute("d") || node.textContent;
  const shown = (query) => [...document.querySelectorAll(query)].map(wordsOf).join("|");
  const until = (test) => new Promise((done) => {
    const end = performance.now() + 5000;
    const look = () => (test() || performance.now() > end ? done(performance.now()) : requestAnimationFrame(look));
    look();
  });
  const taken = [];
  for (let k = 0; k < count; k++) {
    const targets = [...document.querySelectorAll(selector)].filter((node) => node.getBoundingClientRect().height > 3);
    const target = targets[Math.floor((targets.length * k) / count)];
    const box = target.getBoundingClientRect();
    const share = targets.length > 1 ? 0.5 : 0.15 + (0.7 * ((k * 7) % count)) / count;
    const place = { clientX: box.x + share * box.width, clientY: box.bottom - 0.1 * box.height };
    const at = { ...place, pointerId: 1, bubbles: true, cancelable: true };
    target.setPointerCapture = () => {};
    const before = [outlined, told].map((query) => query && shown(query));
    const begun = performance.now();
    for (const name of ["mouseover", "mousedown"]) target.dispatchEvent(new MouseEvent(name, at));
    for (const name of ["pointerdown", "pointerup"]) target.dispatchEvent(new PointerEvent(name, at));
    const outline = outlined ? (await until(() => shown(outlined) !== before[0])) - begun : 0;
    taken.push([outline, (await until(() => shown(told) !== before[1])) - begun]);
    await new Promise((rest) => setTimeout(rest, 400));
  }
  return taken;
}
"""
_TABS = """
async (rounds) => {
  const seen = () => [...document.querySelectorAll("#tabs [role=tabpanel]")].find((panel) => panel.offsetHeight > 0);
  const frame = () => new Promise((done) => requestAnimationFrame(done));
  const taken = [];
  for (let round = 0; round < 4 * rounds; round++) {
    const name = ["Compare", "Run", "What if", "Explore"][round % 4];
    const before = seen();
    const begun = performance.now();
    [...document.querySelectorAll("#tabs [role=tab]")].find((tab) => tab.textContent.trim().startsWith(name)).click();
    while ((!seen() || seen() === before) && performance.now() - begun < 5000) await frame();
    await frame();
    await frame();
    taken.push(performance.now() - begun);
    await new Promise((rest) => setTimeout(rest, 1200));
  }
  return taken;
}
"""
_CLICKED = 12


def main() -> None:
    args = _arguments()
    rows = []
    with sync_playwright() as engine:
        path = shutil.which("chromium") or shutil.which("google-chrome")
        for file in (*args.files, *args.alone):
            events = load_trace(file).event_count
            browser = engine.chromium.launch(executable_path=path, args=ARGUMENTS)
            rows.append([f"memviz, {events:,} events", *_ours(browser, file)])
            browser.close()
            if args.memoryviz and file in args.files:
                browser = engine.chromium.launch(executable_path=path, args=ARGUMENTS)
                rows.append([f"MemoryViz.js, {events:,} events", *_theirs(browser, file, args.memoryviz)])
                browser.close()
    table = _table(rows)
    print(table)
    if args.write:
        write_table("browser", table)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.browser")
    parser.add_argument("--files", nargs="+", type=Path, required=True)
    parser.add_argument("--alone", nargs="+", type=Path, default=[], help="too large for MemoryViz.js")
    parser.add_argument("--memoryviz", type=Path)
    parser.add_argument("--write", action="store_true")
    return parser.parse_args()


def _ours(browser: Any, file: Path) -> list[str]:
    with started({}) as server:
        page = browser.new_page(viewport={"width": 1440, "height": 1000})
        sent = _count_bytes(page)
        page.add_init_script(f"({MARKS})({json.dumps({'marks': _OURS, 'since': 'choice'})})")
        tools = page.context.new_cdp_session(page)
        tools.send("Performance.enable", {"timeDomain": "threadTicks"})
        asked = time.perf_counter()
        page.goto(server.address)
        page.wait_for_selector(".mv-sample", timeout=60_000)
        opens = time.perf_counter() - asked
        metrics = {each["name"]: each["value"] for each in tools.send("Performance.getMetrics")["metrics"]}
        # A person looks at the page for a moment before choosing a file.
        page.wait_for_timeout(2000)
        before = sum(sent)
        page.set_input_files("#first-files input[type=file]", file)
        uploaded = marked(page)
        for _ in range(20):
            page.wait_for_timeout(1000)
            if sum(sent) > before:
                break
        page.wait_for_timeout(3000)
        received = sum(sent) - before
        steps = _zoom(page, ".mvt-plot")
        page.locator("#inspector section").first.wait_for()
        outlined, told = "#timeline .mvt-outline", "#inspector .mv-pinned .mv-figure, #inspector .mv-pinned .mv-stack"
        clicks = _clicked(page, "#timeline .mvt-plot", told, outlined)
        tabs = page.evaluate(_TABS, 3)
        page.close()
    with started({}, program=["-m", "memviz", "open", str(file.resolve())]) as server:
        page = browser.new_page(viewport={"width": 1440, "height": 1000})
        page.add_init_script(f"({MARKS})({json.dumps({'marks': _OURS, 'since': 'page'})})")
        page.goto(server.address)
        given = marked(page)
        page.close()
    total = uploaded.get("total") or uploaded["coloured"]
    # The browser does not always report the size of a chunked response.
    received_text = f"{received / 1e6:.2f} MB" if received else ""
    begun = uploaded.get("begun")
    shown = [
        "" if begun is None else f"{begun / 1000:.2f} s",
        f"{total / 1000:.2f} s",
        f"{uploaded['coloured'] / 1000:.2f} s",
        f"{given['coloured'] / 1000:.2f} s",
    ]
    turned = f"{statistics.median(tabs):.0f} / {max(tabs):.0f} ms"
    thread = f"{opens:.2f} s, {metrics['TaskDuration']:.2f} s of its thread"
    return [*shown, *_steps(steps), received_text, *clicks, turned, thread]


def _clicked(page: Page, selector: str, told: str, outlined: str = "") -> list[str]:
    """Return median and longest milliseconds to the outline, which MemoryViz.js has none of, and to the stack."""
    asked = {"count": _CLICKED, "selector": selector, "outlined": outlined, "told": told}
    taken: list[list[float]] = page.evaluate(_CLICKS, asked)
    parts = [[outline for outline, _ in taken], [stack for _, stack in taken]]
    return [f"{statistics.median(part):.0f} / {max(part):.0f} ms" if any(part) else "" for part in parts]


def marked(page: Page, last: str = "coloured") -> dict[str, float]:
    """Return the milliseconds of each mark, polled rarely to keep the overhead low."""
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        marks: dict[str, float] = page.evaluate("() => window.marked")
        if marks.get(last):
            return marks
        page.wait_for_timeout(500)
    raise SystemExit("Nothing was drawn in ten minutes.")


def _count_bytes(page: Page) -> list[int]:
    """Collect the size of every response body as transferred, those requested by web workers included."""
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
            page.add_init_script(f"({MARKS})({json.dumps({'marks': _THEIRS, 'since': 'page'})})")
            page.goto(f"http://127.0.0.1:{server.server_port}/index.html")
            first = marked(page)["coloured"] / 1000
            page.wait_for_timeout(1500)
            return [
                "",
                "",
                "",
                f"{first:.2f} s",
                *_steps(_zoom(page, "svg"))[:2],
                "",
                f"{file.stat().st_size / 1e6:.2f} MB",
                *_clicked(page, "svg polygon", "pre"),
                "",
                "",
            ]
        finally:
            server.shutdown()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def _zoom(page: Page, selector: str) -> list[list[float]]:
    """Milliseconds of each step, and of what the page's script drew in it; one after the other, without a rest.

    A browser paints a frame while the page goes on, one frame at most: a step waits for what was painted before it.
    """
    page.evaluate(_TURNS, [selector, 3])
    turns: list[list[float]] = page.evaluate(_TURNS, [selector, STEPS])
    return turns


def _steps(turns: list[list[float]]) -> list[str]:
    whole, drawn = [turn[0] for turn in turns], [turn[1] for turn in turns]
    return [f"{statistics.median(whole):.0f} ms", f"{max(whole):.0f} ms", f"{statistics.median(drawn):.1f} ms"]


def _table(rows: list[list[str]]) -> str:
    head = [
        "",
        "uploaded, to the total so far",
        "uploaded, to the total",
        "uploaded, to the coloured picture",
        "from the start of the page to the coloured picture",
        "zoom step, median",
        "zoom step, longest",
        "of it our script",
        "bytes to the browser",
        "click, to the outline",
        "click, to the stack",
        "tab, median / longest",
        "page opens",
    ]
    machine = f"{os.cpu_count()} cores, {platform.system()}, headless Chromium without a GPU, 1440 x 1000"
    where = f"{date.today():%-d %B %Y}, {machine}"
    lines = [f"Measured on {where}.", "", f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


if __name__ == "__main__":
    main()
