"""Fixtures of all tests."""

import gc
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# Disable Gradio's analytics: no test may depend on a network.
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"

# Every tensor here is small, and two processes share the cores: threads that wait for each other cost whole seconds.
# Before PyTorch is imported, and for every process that a test starts.
os.environ["OMP_NUM_THREADS"] = "1"

# Some hundred processes would compile the same modules.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# And pytest rewrites the assertions of all files: twelve seconds, unless it finds them written.
sys.dont_write_bytecode = False

# Python looks for cycles whenever 700 objects more are there, among millions that stay: a tenth of the tests' time.
gc.set_threshold(10_000)

# Times on a shared machine are noisy: slow examples are no failures. Examples are the same in every run, so that a
# fault shows in the change that caused it.
settings.register_profile(
    "house",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
    max_examples=20,
)
# `pytest --hypothesis-profile thorough` runs more examples, for changes to the code under test.
settings.register_profile("thorough", settings.get_profile("house"), derandomize=False, max_examples=1000)
settings.load_profile("house")

# A shell that starts this in the background has its children ignore Ctrl-C, which some tests are about.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


_TOGETHER = {
    "browser stories": "tests/browser/",
    "recordings against predictions": "tests/truth/",
    "house": "tests/house/",
}
"""Tests that one process runs, longest first: they share a page, predictions or parsed files, and two browsers at once
would make each other wait."""


def _shared_scope(nodeid: str) -> str | None:
    return next((name for name, folder in _TOGETHER.items() if nodeid.startswith(folder)), None)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the scopes that take longest: last, one process would wait for the other."""
    turns = {name: turn for turn, name in enumerate(_TOGETHER)}
    items.sort(key=lambda item: turns.get(_shared_scope(item.nodeid) or "", len(turns)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each scope to one process.

    xdist's own groups are marks that it writes into the names of tests; from pytest 9.2 on it finds none there.
    """
    from xdist.scheduler import LoadScopeScheduling

    class SharedScopes(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _shared_scope(nodeid) or nodeid.partition("::")[0]

        def remove_node(self, node: Any) -> str | None:
            """Fail the test in which the worker died, and do not reschedule it: it would end that worker too."""
            units = self.assigned_work[node].values()
            left = [(unit, test) for unit in units for test, is_done in unit.items() if not is_done]
            for unit, test in left[:1]:
                unit[test] = True
            super().remove_node(node)
            return left[0][1] if left else None

    return SharedScopes(config, log)


@pytest.fixture(scope="session", autouse=True)
def quick_workers() -> Iterator[Any]:
    """Processes of runs are forked from one that has PyTorch."""
    from memviz.runner.jobs import worker_process
    from tests import forked

    started_by_people = worker_process.start_python
    with pytest.MonkeyPatch.context() as patch:
        if forked.CAN_FORK_RUNS:
            patch.setattr(worker_process, "start_python", forked.start_python)
        yield started_by_people


@pytest.fixture(scope="session", autouse=True)
def count_of_frozen_objects() -> Iterator[None]:
    """`without_collection` asks only whether there are any, and counting a million takes longer than a prediction."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gc, "get_freeze_count", lambda: 1)
        yield


@pytest.fixture(autouse=True)
def collection_of_new_objects_alone(count_of_frozen_objects: None) -> None:
    """Exclude from garbage collection what is there before a test.

    A prediction collects at the end of each of its phases; among all that other tests have imported and kept, each time
    would take half a second.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture
def real_workers(quick_workers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start real workers, as in production."""
    monkeypatch.setattr("memviz.runner.jobs.worker_process.start_python", quick_workers)


@pytest.fixture
def no_search_for_holders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Out of memory, what keeps tensors is looked for; beside all that other tests keep, that takes all of its time."""
    from memviz.predictor import holders

    monkeypatch.setattr(holders, "MOST_SECONDS", 0)


@pytest.fixture(autouse=True)
def every_attention_kernel() -> Iterator[None]:
    """PyTorch's switch holds for the process: code that people copy turns it, and the next test wants it as it was."""
    yield
    if "torch" in sys.modules:
        cuda = sys.modules["torch"].backends.cuda
        for turn in (cuda.enable_flash_sdp, cuda.enable_mem_efficient_sdp, cuda.enable_math_sdp, cuda.enable_cudnn_sdp):
            turn(True)


@pytest.fixture(scope="session")
def chromium() -> str:
    """Path of a Chromium that is installed already; the tests download none."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    found = next((path for path in map(shutil.which, names) if path), None)
    if found is None:
        pytest.skip("no Chromium on the path")
    return found
