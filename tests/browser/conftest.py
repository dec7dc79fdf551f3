"""A real browser: Debian's Chromium, driven by Playwright. Without one these tests skip, and say so."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")

_ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session")
def browser(chromium: str) -> Iterator[object]:
    with playwright.sync_playwright() as engine:
        opened = engine.chromium.launch(executable_path=chromium, args=_ARGUMENTS)
        yield opened
        opened.close()


@pytest.fixture
def context(browser: object) -> Iterator[object]:
    opened = browser.new_context(viewport={"width": 1440, "height": 1000})  # type: ignore[attr-defined]
    yield opened
    opened.close()


@pytest.fixture
def page(context: object) -> object:
    return context.new_page()  # type: ignore[attr-defined]
