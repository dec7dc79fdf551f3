"""Take the README's screenshots: `python -m tests.pictures`.

They show a real page in its own process with the samples, and predicted runs; `switches` moves, one frame for each
switch. Needs Playwright and Debian's Chromium, like the browser tests.
"""

import argparse
import io
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from PIL import Image

from tests.server import ROOT, started

FOLDER = ROOT / ".github" / "pictures"
_SIZE = {"width": 1440, "height": 900}
_PATIENCE_MS = 900_000


def explore(page: Any) -> None:
    page.locator("[data-sample=training]").click()
    page.locator("#timeline .mvt[data-drawn]").wait_for()
    page.locator("#live-set table").wait_for()


def compare(page: Any) -> None:
    page.locator(".mv-sample[data-sample=checkpointing]").click()
    page.locator(".mv-linked .mvt[data-drawn]").first.wait_for()
    page.locator("#differences tbody tr").first.wait_for()


def what_if(page: Any) -> None:
    page.locator("[data-sample=out-of-memory]").click()
    page.locator("#what-if-plot [data-drawn]").wait_for()
    page.locator("#what-if-maps .mvs[data-drawn]").first.wait_for()


def run(page: Any) -> None:
    page.get_by_role("tab", name="Run").click()
    page.locator("#run-cards [data-story=checkpointing]").click()
    page.locator("#run-B .mvt[data-drawn]").wait_for()
    page.locator("#run-progress button").wait_for(state="detached")
    # Output checks and prices are made in the background, one after the other.
    page.locator(".mv-differences").wait_for()
    page.locator(".mv-shimmer").first.wait_for(state="detached")


def switches(page: Any) -> Iterator[None]:
    """Turn on one optimization after the other, and stop after each."""
    page.get_by_role("tab", name="Run").click()
    page.locator("#run-form [name='w:sequence']").fill("8192")
    page.locator("#run-A .mvt[data-drawn]").wait_for()
    for name in ("", "checkpointing", "chunked_cross_entropy", "eight_bit_states"):
        if name:
            page.locator(f"#run-form [name='o:{name}']").check()
            page.locator("#run-progress button").wait_for()
        page.locator("#run-progress button").wait_for(state="detached")
        page.wait_for_function(_ALL_PRICES)
        yield


_ALL_PRICES = """[...document.querySelectorAll("#run-form [data-part^='price:']")]
    .every((price) => !price.offsetParent || /B/.test(price.textContent))"""


PICTURES = {"explore": explore, "compare": compare, "what-if": what_if, "run": run}
MOVING = {"switches": switches}
_FRAME_MS = 2500


def shoot(names: list[str], folder: Path) -> None:
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium")
    if chromium is None:
        raise SystemExit("Chromium is not installed: apt-get install chromium fonts-dejavu-core")
    with started({}) as server, sync_playwright() as engine:
        browser = engine.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        for name in names:
            page = browser.new_page(viewport=_SIZE)
            page.set_default_timeout(_PATIENCE_MS)
            page.goto(server.address)
            page.get_by_role("heading", name="See what fills your GPU.").wait_for()
            if name in MOVING:
                frames = [Image.open(io.BytesIO(_resting(page))) for _ in MOVING[name](page)]
                how: dict[str, Any] = {"duration": _FRAME_MS, "loop": 0, "quality": 80}
                frames[0].save(folder / f"{name}.webp", save_all=True, append_images=frames[1:], **how)
            else:
                PICTURES[name](page)
                (folder / f"{name}.png").write_bytes(_resting(page))
            page.close()
        browser.close()


def _resting(page: Any) -> bytes:
    """Take a screenshot once the page rests, since it is drawn in the screen's own pixels only then."""
    page.mouse.move(0, 0)
    page.wait_for_timeout(1500)
    shot: bytes = page.screenshot()
    return shot


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*PICTURES, *MOVING, []], help="which; all without one")
    parser.add_argument("-o", "--folder", type=Path, default=FOLDER)
    said = parser.parse_args()
    shoot(said.names or [*PICTURES, *MOVING], said.folder)


if __name__ == "__main__":
    main()
