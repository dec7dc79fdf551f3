"""Settings tried in worker processes give the same results as in this one, even if the workers die."""

import subprocess
from collections.abc import Iterator

import pytest

from memviz.allocator import search
from memviz.allocator.context import OVERHEAD_BYTES
from memviz.allocator.replayer import CardMemory, Replayer
from memviz.allocator.search import SettingsTrial, settings_to_try, try_in_processes
from tests.allocator.driver import MiB
from tests.allocator.recording import Recorder


def recording() -> Replayer:
    """With a pool of its own, two streams, and a cache that was emptied."""
    run = Recorder()
    kept = [run.malloc(size * MiB, stream=size % 2) for size in range(1, 40, 3)]
    for block in kept[::2]:
        run.free(block)
    run.allocator.empty_cache()
    run.malloc(5 * MiB, pool=(0, 7))
    run.malloc(30 * MiB)
    return Replayer(run.trace())


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """Every helper that a test starts."""
    helpers: list[subprocess.Popen[bytes]] = []
    start = search.start_helpers

    def noted(count: int, code: str) -> Iterator[subprocess.Popen[bytes]]:
        new = list(start(count, code))
        helpers.extend(new)
        return iter(new)

    monkeypatch.setattr(search, "start_helpers", noted)
    return helpers


def tried(source: Replayer, helpers: int, card: CardMemory | None = None) -> list[SettingsTrial]:
    return try_in_processes(source, settings_to_try(source), card, OVERHEAD_BYTES, helpers=helpers)


def test_a_helper_finds_what_is_found_here(monkeypatch: pytest.MonkeyPatch, started: list[object]) -> None:
    small = CardMemory(OVERHEAD_BYTES + 262 * MiB)
    alone = tried(recording(), 0, small)
    assert {each.fits for each in alone} == {True, False}
    # Nothing is computed in this process, so every result comes from the workers.
    monkeypatch.setattr(search._Work, "do_rest", lambda work, progress: None)
    assert tried(recording(), 1, small) == alone and len(started) == 1


def test_what_a_helper_leaves_when_it_ends_is_done_here(
    monkeypatch: pytest.MonkeyPatch, started: list[subprocess.Popen[bytes]]
) -> None:
    monkeypatch.setattr(search, "_HELPER", "import sys; sys.stdin.buffer.read(1)")
    assert tried(recording(), 2) == tried(recording(), 0)
    assert all(helper.returncode is not None for helper in started) and len(started) == 2


def test_who_gives_up_leaves_no_process_behind(started: list[subprocess.Popen[bytes]]) -> None:
    def give_up(done: int, total: int) -> None:
        raise InterruptedError

    source = recording()
    with pytest.raises(InterruptedError):
        try_in_processes(source, settings_to_try(source), None, OVERHEAD_BYTES, give_up, helpers=1)
    assert started[0].returncode is not None
    assert tried(source, 1) == tried(recording(), 0), "the next one may have helpers again"


def test_short_recordings_get_no_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search.os, "sched_getaffinity", lambda process: {0, 1}, raising=False)
    source = recording()
    assert search._helpers_that_pay(source, 10) == 0
    monkeypatch.setattr(search, "WORTH_HELP", 1)
    assert (search._helpers_that_pay(source, 10), search._helpers_that_pay(source, 1)) == (1, 0)
