"""A real browser, Debian's Chromium driven by Playwright, and the real page in a second process.

Without Chromium or Playwright these tests are skipped. Every page is watched: an error in its console or a request to
another host fails the test that opened it. All are slow but those of `test_smoke.py`. A failed test is repeated once,
because a browser on a busy machine may miss a press; the summary lists it as RERUN.
"""

import re
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

import pytest

from tests.server import ROOT, started

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
expect = playwright.expect

_ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
_SIZE = {"width": 1440, "height": 1000}
PATIENCE_SECONDS = 240
"""A first run imports PyTorch, and the prices of a large model take minutes on a busy machine."""
# Gradio's messages about its open connections when their page closes.
_CUT_BY_LEAVING = (
    "AbortError: signal is aborted",
    "AbortError: BodyStreamBuffer was aborted",
    "Unexpected error Connection errored out",
)
_KEPT = "cookies,local_storage,indexeddb,cache_storage,service_workers,file_systems"
_OURS = ("http://127.0.0.1", "data:", "blob:", "about:", "file:")
_FOLDER = Path(__file__).parent
SAMPLES = ROOT / "sample_traces"
_QUICK = "test_smoke.py"
_has_failed = pytest.StashKey[bool]()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark items before pytest deselects by marks; items of other folders are skipped."""
    can_repeat = config.pluginmanager.hasplugin("rerunfailures")
    for item in items:
        if _FOLDER in item.path.parents:
            if can_repeat:
                item.add_marker(pytest.mark.flaky(reruns=1))
            if item.path.name != _QUICK:
                item.add_marker(pytest.mark.slow)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Tell clean-up fixtures whether their test failed; a failure that is rerun does not count."""
    report = yield
    item.stash[_has_failed] = report.failed or (report.when != "setup" and item.stash[_has_failed])
    return report


@pytest.fixture(autouse=True)
def patience() -> None:
    """Set the timeout of `expect`, which is global, for each test."""
    expect.set_options(timeout=PATIENCE_SECONDS * 1000)


@pytest.fixture(scope="package")
def browser(chromium: str) -> Iterator[Any]:
    """Closed after the last story: Playwright keeps a loop running in this thread, and other tests start their own."""
    with playwright.sync_playwright() as engine:
        opened = engine.chromium.launch(executable_path=chromium, args=_ARGUMENTS)
        yield opened
        opened.close()


class Visits:
    """Visitors one after the other, each of whom finds nothing of those before: no page, cookie or memory.

    What the browser has fetched and compiled stays, which for a new one takes longer than most stories. So does a page
    that shows nothing: behind the last page of all its own would go too.
    """

    def __init__(self, browser: Any) -> None:
        self.context = new_visitor(browser)
        self._blank = self.context.new_page()
        self._tools = self.context.new_cdp_session(self._blank)
        self._seen: set[str] = set()
        self.context.on("page", lambda page: page.on("framenavigated", lambda frame: self._seen.add(frame.url)))

    def end(self) -> None:
        for page in self.context.pages:
            if page != self._blank:
                page.close()
        self.context.clear_cookies()
        for scheme, place in {urlsplit(each)[:2] for each in self._seen}:
            if scheme in ("http", "file"):
                self._tools.send("Storage.clearDataForOrigin", {"origin": f"{scheme}://{place}", "storageTypes": _KEPT})
        self._seen.clear()


@pytest.fixture(scope="package")
def visits(browser: Any) -> Iterator[Visits]:
    kept = Visits(browser)
    yield kept
    kept.context.close()


@pytest.fixture(scope="package")
def stays(browser: Any) -> Iterator[Visits]:
    """Visitors that stay for all tests of a file, next to those of a single test."""
    kept = Visits(browser)
    yield kept
    kept.context.close()


@pytest.fixture
def context(visits: Visits) -> Iterator[Any]:
    yield visits.context
    visits.end()


def new_visitor(browser: Any) -> Any:
    """Cookies, storage and all."""
    opened = browser.new_context(viewport=_SIZE)
    # A machine that runs tests for others may be slow; who waits for what never comes learns of it later.
    opened.set_default_timeout(PATIENCE_SECONDS * 1000)
    opened.grant_permissions(["clipboard-read", "clipboard-write"])
    return opened


@pytest.fixture
def page(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A page of its own; in a file with `SHARES_A_PAGE` that of the story before."""
    if hasattr(request.module, "SHARES_A_PAGE"):
        yield request.getfixturevalue("same_page")
        return
    opened = request.getfixturevalue("context").new_page()
    # A browser draws nothing of a page behind another one.
    opened.bring_to_front()
    faults = watch(opened)
    yield opened
    assert not faults, "\n".join(faults)


@pytest.fixture(scope="module")
def visitor(stays: Visits) -> Iterator[dict[str, Any]]:
    """One visitor for all tests of a file, with its open page."""
    yield {}
    stays.end()


@pytest.fixture
def same_page(stays: Visits, visitor: dict[str, Any], request: pytest.FixtureRequest) -> Iterator[Any]:
    """`page` as the story before it left it: starting the page takes longer than most stories. `at_home` clears it."""
    if not visitor:
        watch(visitor.setdefault("page", stays.context.new_page()))
    page = visitor["page"]
    faults = _faults[page]
    yield page
    page.set_viewport_size(_SIZE)
    # A story may have left the page of the one before while that was being answered.
    seen = without_cut_connections(faults)
    faults.clear()
    if seen or request.node.stash[_has_failed]:
        # The state of the page is unknown after a failure.
        visitor.clear()
        stays.end()
    assert not seen, "\n".join(seen)


def at_home(page: Any, address: str) -> None:
    """Return to the start page with nothing open; load it only if another page is shown."""
    if page.url.startswith(address):
        page.get_by_role("tab", name="Explore").click()
        traces = page.locator("#traces .mv-trace")
        if count := traces.count():
            name = "Close all" if count > 1 else re.compile("^Close ")
            page.locator("#traces").get_by_role("button", name=name).click()
            expect(traces).to_have_count(0)
        # Or else the next story might take what is left for its own.
        expect(page.locator("#what-if-verdict h1, #live-set table")).to_have_count(0)
        # Components stay, and count what they have drawn; a story waits for what is drawn for it. The map of ranks is
        # not drawn anew for the same ranks.
        counted = "document.querySelectorAll('[data-drawn]:not(.mvn)')"
        page.evaluate(f"{counted}.forEach((each) => delete each.dataset.drawn)")
    else:
        page.goto(address)
    page.get_by_role("heading", name="See what fills your GPU.").wait_for()


_faults: WeakKeyDictionary[Any, list[str]] = WeakKeyDictionary()


def watch(page: Any) -> list[str]:
    """Collect faults that no page may have, as they happen."""
    faults = _faults[page] = []
    page.on("pageerror", lambda error: faults.append(f"error on the page: {error}"))
    page.on("console", lambda message: faults.append(f"console: {message.text}") if message.type == "error" else None)
    page.on("request", lambda asked: faults.append(f"asked {asked.url}") if not asked.url.startswith(_OURS) else None)
    return faults


def rest(page: Any, ms: int) -> None:
    """Waits by the page's own clock, and for two of its frames: its shorter timers have run out then, however busy the
    machine is."""
    page.evaluate(
        """(ms) => new Promise((over) => {
          setTimeout(() => requestAnimationFrame(() => requestAnimationFrame(over)), ms);
        })""",
        ms,
    )


def program(address: str) -> Any:
    """Return a Gradio client without its default timeout of five seconds."""
    return pytest.importorskip("gradio_client").Client(address, verbose=False, httpx_kwargs={"timeout": None})


def reload(page: Any) -> None:
    """Reload during requests; errors of the old page's cut connections are ignored."""
    faults = _faults[page]
    before = len(faults)
    page.reload()
    faults[before:] = without_cut_connections(faults[before:])


def without_cut_connections(faults: list[str]) -> list[str]:
    return [fault for fault in faults if not any(words in fault for words in _CUT_BY_LEAVING)]


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the page, started as people start it; for agents too where that can be."""
    agents = {"GRADIO_MCP_SERVER": "True"} if find_spec("mcp") else {}
    with started({"MEMVIZ_RUNS": str(tmp_path_factory.mktemp("runs")), **agents}) as found:
        yield found.address


PAGE = """
from memviz.ui.app import build_app, launch_options

build_app().launch(**launch_options())
"""
"""Its runs have PyTorch as they start. Other stories run a model in the page as people start it."""


@contextmanager
def page_of(folder: Path, port: int = 0, page: str = PAGE, **more: str) -> Iterator[Any]:
    """Start a page that saves its runs in a folder of the tests."""
    known = {"MEMVIZ_RUNS": str(folder), "PYTHONPATH": str(ROOT), **more}
    with started(known, port, ("-c", page), quickly=True) as server:
        yield server


@pytest.fixture(scope="package")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One page for the stories of the Run tab and of the quick suite; each visitor has runs of their own."""
    folder = tmp_path_factory.mktemp("runs")
    with page_of(folder, XDG_CACHE_HOME=str(folder / "cache")) as server:
        yield server


@pytest.fixture
def tab(page: Any, runs: Any) -> Any:
    """The Run tab of `runs`, which a file may replace by a page of its own."""
    return opened(page, runs.address)


def opened(page: Any, address: str) -> Any:
    page.goto(address)
    page.get_by_role("tab", name="Run").click()
    expect(page.locator("#run-form .mv-price-head")).to_be_visible()
    return page


@pytest.fixture
def open_saved(page: Any, tmp_path: Path) -> Callable[[str], Any]:
    """Opens a page from a file. `watch` fails on any error; the page asks for nothing but the file."""
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))

    def open_page(text: str) -> Any:
        path = tmp_path / "saved.html"
        path.write_text(text, encoding="utf-8", errors="replace")
        page.goto(path.as_uri())
        page.wait_for_function("document.body.dataset.saved === 'ready'")
        assert asked == [path.as_uri()]
        return page

    return open_page


@pytest.fixture
def watched() -> Iterator[Callable[[Any], Any]]:
    """Return a function that opens a page of any visitor, watched like `page`."""
    faults: list[list[str]] = []

    def make(context: Any) -> Any:
        opened = context.new_page()
        faults.append(watch(opened))
        return opened

    yield make
    assert not any(faults), "\n".join(sum(faults, []))
