"""A pytest plugin: how much GPU memory a test may take, with or without a GPU.

    @pytest.mark.limit_gpu_memory("20 GiB", card="L4")
    def test_one_step():
        train(steps=1)

The test's torch code runs on a card that is pretended, or on the GPU where there is one, and fails with the five
largest call sites where it holds more than its limit. The fixture `gpu_memory` does the same without a limit, and has
`peak_bytes`. Until a test asks for either, nothing beyond this file is imported.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from memviz.errors import library_needed

if TYPE_CHECKING:
    from memviz.testing.gpu_memory import GpuMemory

MARK = "limit_gpu_memory"
_MEMORY = pytest.StashKey["GpuMemory"]()
_PROPERTY = "memviz"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("memviz", "GPU memory of tests")
    group.addoption(
        "--memviz-report",
        metavar="DIR",
        help="keep a page of each test that is marked limit_gpu_memory or uses gpu_memory, and an index of them",
    )
    group.addoption("--memviz-predict", action="store_true", help="pretend a GPU where there is one, too")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{MARK}(limit, card=None, settings=None, assume=None): the most GPU memory that the test may hold, as bytes "
        "or as in '20 GiB'; without a GPU it is predicted for this card",
    )
    folder = config.getoption("--memviz-report")
    if folder is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Pages(Path(folder)), "memviz-pages")


@pytest.fixture
def gpu_memory(request: pytest.FixtureRequest) -> Iterator[GpuMemory]:
    """The GPU memory of this test: `gpu_memory.peak_bytes` so far. Fixtures that use the GPU ask for it first."""
    try:
        from memviz.testing.gpu_memory import GpuMemory, limit_of
    except ModuleNotFoundError as error:
        raise (library_needed(error) or error) from None
    mark = request.node.get_closest_marker(MARK)
    limit = limit_of(*mark.args, **mark.kwargs) if mark else limit_of()
    memory = GpuMemory(request.node.nodeid, limit, predicts=request.config.getoption("--memviz-predict"))
    memory.start()
    request.node.stash[_MEMORY] = memory
    try:
        yield memory
    finally:
        memory.finish()


@pytest.fixture(autouse=True)
def _limited_gpu_memory(request: pytest.FixtureRequest) -> None:
    """Before the test's other fixtures of its own, so that what they make on the GPU is part of it."""
    if request.node.get_closest_marker(MARK):
        request.getfixturevalue("gpu_memory")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    memory = item.stash.get(_MEMORY, None)
    if memory is None:
        return (yield)
    try:
        result = yield
    except BaseException:
        memory.finish()
        _keep(item, memory)
        _report_peak(item, memory)
        raise
    memory.finish()
    _keep(item, memory)
    _check(item, memory)
    return result


def _report_peak(item: pytest.Item, memory: GpuMemory) -> None:
    """Below a test that failed by itself, which may be because memory ran out."""
    from memviz.testing.gpu_memory import largest_sites

    if memory.trace is not None and memory.device is not None and memory.took_something:
        item.add_report_section("call", "GPU memory at the peak", largest_sites(memory.trace, memory.device))


def _keep(item: pytest.Item, memory: GpuMemory) -> None:
    folder, used = item.config.getoption("--memviz-report"), memory.used
    if folder is None or used is None or not memory.took_something:
        return
    from memviz.testing.pages import save_page

    page = save_page(Path(folder), item.nodeid, memory)
    figures = {"peak_bytes": used.peak_bytes, "reserved_bytes": used.reserved_bytes}
    row = {"test": item.nodeid, "page": page, "limit_bytes": memory.limit.bytes, **figures}
    item.user_properties.append((_PROPERTY, row))


def _check(item: pytest.Item, memory: GpuMemory) -> None:
    from memviz.testing.gpu_memory import over_limit

    if not memory.took_something:
        words = "Nothing was allocated on a GPU in this test. Is its device chosen before it begins?"
        item.warn(pytest.PytestWarning(words))
    elif memory.trace is not None and memory.device is not None and memory.limit.bytes is not None:
        words = over_limit(memory.trace, memory.device, memory.limit.bytes)
        if words:
            pytest.fail(words, pytrace=False)


class _Pages:
    """Collects the pages of all tests, including xdist workers: each row arrives with its test's report."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._rows: list[dict[str, Any]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call":
            return
        kept = [row for name, row in report.user_properties if name == _PROPERTY]
        self._rows += [{**row, "outcome": report.outcome} for row in kept if isinstance(row, dict)]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._rows:
            return
        from memviz.testing.pages import write_index

        index = write_index(self._folder, self._rows)
        pages = "1 page" if len(self._rows) == 1 else f"{len(self._rows)} pages"
        terminalreporter.write_line(f"memviz: {pages} of GPU memory, listed in {index}")
