"""A real browser, Debian's Chromium driven by Playwright, and the real page in a second process.

Without Chromium or Playwright these tests skip, and say so. Every page is watched: an error in its console or a
request to another host fails the test that opened it.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
_ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
_PATIENCE_SECONDS = 120
_OURS = ("http://127.0.0.1", "data:", "blob:", "about:", "file:")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All in one process: two browsers at once would only make each other wait."""
    for each in items:
        if HERE in each.path.parents:
            each.add_marker(pytest.mark.xdist_group("browser"))


@pytest.fixture(autouse=True)
def patience(request: pytest.FixtureRequest) -> None:
    """How long `expect` waits is one setting for all modules, so each test sets it anew."""
    with suppress(ImportError):
        from playwright.sync_api import expect

        expect.set_options(timeout=getattr(request.module, "PATIENCE_MS", 20_000))


@pytest.fixture(scope="package")
def browser(chromium: str) -> Iterator[Any]:
    """Closed after the last story: Playwright keeps a loop running in this thread, and other tests start their own."""
    with playwright.sync_playwright() as engine:
        opened = engine.chromium.launch(executable_path=chromium, args=_ARGUMENTS)
        yield opened
        opened.close()


@pytest.fixture
def context(browser: Any) -> Iterator[Any]:
    """One visitor: cookies, storage and all."""
    opened = browser.new_context(viewport={"width": 1440, "height": 1000})
    # A machine that runs tests for others may be slow; who waits for what never comes learns of it later.
    opened.set_default_timeout(_PATIENCE_SECONDS * 1000)
    opened.grant_permissions(["clipboard-read", "clipboard-write"])
    yield opened
    opened.close()


@pytest.fixture
def page(context: Any) -> Iterator[Any]:
    opened = context.new_page()
    faults = watch(opened)
    yield opened
    assert not faults, "\n".join(faults)


def watch(page: Any) -> list[str]:
    """What must not happen on any page, as it happens."""
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(f"error on the page: {error}"))
    page.on("console", lambda message: faults.append(f"console: {message.text}") if message.type == "error" else None)
    page.on("request", lambda asked: faults.append(f"asked {asked.url}") if not asked.url.startswith(_OURS) else None)
    return faults


@dataclass(frozen=True)
class Server:
    address: str
    port: int
    pid: int


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the page, started as people start it."""
    with started({"MEMVIZ_RUNS": str(tmp_path_factory.mktemp("runs"))}) as found:
        yield found.address


@contextmanager
def started(more: Mapping[str, str], port: int = 0, program: Sequence[str] = ("app.py",)) -> Iterator[Server]:
    """A page of its own, with `more` in its environment."""
    port = port or _free_port()
    environment = {**os.environ, "GRADIO_SERVER_PORT": str(port), "GRADIO_ANALYTICS_ENABLED": "False", **more}
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "output.txt"
        environment["GRADIO_TEMP_DIR"] = str(Path(folder) / "uploads")
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, *program], cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT
            )
        try:
            address = f"http://127.0.0.1:{port}/"
            _wait_for(address, process, log)
            yield Server(address, port, process.pid)
        finally:
            process.terminate()
            process.wait(timeout=30)


@pytest.fixture
def watched() -> Iterator[Callable[[Any], Any]]:
    """Makes pages of any visitor, watched as `page` is."""
    faults: list[list[str]] = []

    def make(context: Any) -> Any:
        opened = context.new_page()
        faults.append(watch(opened))
        return opened

    yield make
    assert not any(faults), "\n".join(sum(faults, []))


def _wait_for(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(address, timeout=5) as answer:
                answer.read(1)
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    pytest.fail(f"The page did not start. Its output:\n{log.read_text(errors='replace')}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
