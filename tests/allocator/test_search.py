"""The settings tried, in this process or with helpers, their ranking, and the advice."""

import subprocess
from collections.abc import Iterator

import pytest

import memviz.allocator.search as searching
from memviz.allocator.context import OVERHEAD_BYTES
from memviz.allocator.replayer import CardMemory, Replayer
from memviz.allocator.search import SettingsTrial, search, settings_to_try, try_in_processes
from memviz.allocator.settings import parse_settings
from memviz.ui.what_if.verdict import ranked_rows
from tests.allocator.driver import GiB, MiB
from tests.allocator.recording import Recorder, cached
from tests.traces import alloc, block, event, frame, free, read, segment, snapshot


def texts(run: Recorder, **more: tuple[int, int]) -> list[str]:
    return [each.to_text() for each in settings_to_try(Replayer(run.trace()), **more)]


def test_a_limit_to_splitting_that_no_block_reaches_is_not_tried():
    assert [text for text in texts(cached(40)) if "split" in text] == ["max_split_size_mb:21"]
    splits = [text for text in texts(cached(200)) if "split" in text]
    assert splits == ["max_split_size_mb:21", "max_split_size_mb:64", "max_split_size_mb:128"]


def test_nor_is_what_the_release_does_not_know():
    run = cached(40)
    assert not any("large_segment_size_mb" in text for text in texts(run, release=(2, 10)))
    assert texts(run, release=(2, 0)) == [
        "",
        "max_split_size_mb:21",
        "roundup_power2_divisions:4",
        "roundup_power2_divisions:8",
    ]


def test_the_recorded_settings_are_always_tried_and_so_are_the_ways_back():
    found = texts(cached(40, settings="expandable_segments:True,max_split_size_mb:512"), release=(2, 0))
    assert "expandable_segments:True,max_split_size_mb:512" in found
    found = texts(cached(40, settings="expandable_segments:True,max_split_size_mb:512"))
    assert {"expandable_segments:True", "max_split_size_mb:512"} <= set(found)


def test_settings_that_somebody_asked_for_are_ranked_with_them():
    mine = parse_settings("roundup_power2_divisions:16")
    assert mine in [each.settings for each in search(Replayer(cached(40).trace()), also=mine).tried]


def test_the_simplest_of_nearly_the_best_is_advised():
    run = cached(4500, 4582)
    found = search(Replayer(run.trace()))
    assert (found.best.text, found.best.peak_reserved_bytes) == (
        "expandable_segments:True,large_segment_size_mb:12",
        4584 * MiB,
    )
    assert (found.advised.text, found.advised.peak_reserved_bytes) == ("expandable_segments:True", 4600 * MiB)


def test_progress_covers_all_of_it_and_may_end_it():
    seen: list[float] = []
    source = Replayer(cached(100, 130).trace())
    search(source, CardMemory(200 * MiB, 0), progress=lambda done, total: seen.append(done / total))
    assert seen == sorted(seen)
    assert 0 <= seen[0] <= seen[-1] < 1

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search(source, progress=stop)


def test_what_gave_memory_back_as_no_settings_would_is_not_called_as_recorded():
    """A segment goes back while a free waits for another stream: emptying the cache would have ended that first."""
    kept, waiting = 2 * MiB, 9 * MiB + 512 * 1024
    (first, second, third, fourth), step = (n << 30 for n in range(1, 5)), [frame("step")]
    root = snapshot(
        [
            *(event("segment_alloc", first, 20 * MiB), alloc(first, waiting), alloc(first + waiting, kept)),
            event("free_requested", first, waiting),
            *(event("segment_alloc", second, 40 * MiB), alloc(second, 40 * MiB), *free(second, 40 * MiB)),
            event("segment_free", second, 40 * MiB, frames=[frame("empty")]),
            *(event("segment_alloc", third, 60 * MiB, frames=step), alloc(third, 60 * MiB, frames=step)),
            *(event("segment_alloc", fourth, 20 * MiB), alloc(fourth, 9 * MiB)),
            event("free_completed", first, waiting),
        ],
        [
            segment(first, 20 * MiB, [block(first + waiting, kept)]),
            segment(third, 60 * MiB, [block(third, 60 * MiB)]),
            segment(fourth, 20 * MiB, [block(fourth, 9 * MiB)]),
        ],
    )
    source = Replayer(read(root))
    found = search(source)
    assert source.as_recorded().exact
    assert (found.recorded.peak_reserved_bytes, found.recorded.is_as_recorded) == (80 * MiB, False)
    listed = next(iter(ranked_rows(Replayer(source.trace).what_if(), found)))
    assert (listed.called, listed.reserved) == ("PyTorch's default settings, the recording", "100 MiB")


@pytest.mark.parametrize(
    ("sizes", "memory", "best", "advice", "saved_by"),
    [
        (
            [100, 101, 102, 103],
            None,
            "roundup_power2_divisions:8",
            "Set roundup_power2_divisions:8: at its peak it reserves 66 % less than with the recorded settings.",
            None,
        ),
        (
            [30, 31, 32, 33, (4, 33, 60)],
            120,
            "expandable_segments:True",
            "Set expandable_segments:True: with it this run fits, "
            "and with the recorded settings it runs out of memory.",
            "expandable_segments:True",
        ),
        (
            [(200,)],
            100,
            "",
            "No settings can make it fit: the program has more live at its peak than the 100 MiB available.",
            None,
        ),
        ([(200,)], None, "", "Keep the settings: none of those tried reserves noticeably less at its peak.", None),
    ],
)
def test_what_fits_comes_first_then_the_lowest_peak(sizes, memory, best, advice, saved_by):
    run, held = Recorder(), []
    for size in sizes:
        if isinstance(size, tuple):
            held += [run.malloc(each * MiB) for each in size]
        else:
            run.cached(size * MiB)
    found = search(Replayer(run.trace()), None if memory is None else CardMemory(memory * MiB, 0))
    assert (found.best.text, found.advice) == (best, advice)
    assert (found.saved_by.text if found.saved_by else None) == saved_by
    ranks = [(not each.fits, each.peak_reserved_bytes) for each in found.tried]
    assert ranks == sorted(ranks) and len(held) == run.stat("allocation.all.current")


def test_settings_are_compared_from_the_same_start():
    """Half of what was cached before the first event is not laid at the recorded settings' door."""
    first = 0x7F1200000000
    ends = [segment(first, 20 * MiB, [block(first, 5 * MiB)]), segment(first + GiB, 60 * MiB, [])]
    root = snapshot([alloc(first + GiB, 30 * MiB), *free(first + GiB, 30 * MiB)], ends)
    found = search(Replayer(read(root)))
    assert (found.best.is_recorded, found.best.peak_reserved_bytes) == (False, 36 * MiB)
    assert found.recorded.peak_reserved_bytes == 50 * MiB


def recording() -> Replayer:
    """With a pool of its own, two streams, and a cache that was emptied."""
    run = Recorder()
    kept = [run.malloc(size * MiB, stream=size % 2) for size in range(1, 40, 3)]
    for given in kept[::2]:
        run.free(given)
    run.allocator.empty_cache()
    run.malloc(5 * MiB, pool=(0, 7))
    run.malloc(30 * MiB)
    return Replayer(run.trace())


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """Every helper that a test starts."""
    helpers: list[subprocess.Popen[bytes]] = []
    start = searching.start_helpers

    def noted(count: int, code: str) -> Iterator[subprocess.Popen[bytes]]:
        new = list(start(count, code))
        helpers.extend(new)
        return iter(new)

    monkeypatch.setattr(searching, "start_helpers", noted)
    return helpers


def tried_by(source: Replayer, helpers: int, card: CardMemory | None = None) -> list[SettingsTrial]:
    return try_in_processes(source, settings_to_try(source), card, OVERHEAD_BYTES, helpers=helpers)


def test_a_helper_finds_what_is_found_here(monkeypatch: pytest.MonkeyPatch, started: list[object]) -> None:
    small = CardMemory(OVERHEAD_BYTES + 262 * MiB)
    alone = tried_by(recording(), 0, small)
    assert {each.fits for each in alone} == {True, False}
    # Nothing is computed in this process, so every result comes from the workers.
    monkeypatch.setattr(searching._Work, "do_rest", lambda work, progress: None)
    assert tried_by(recording(), 1, small) == alone and len(started) == 1


def test_what_a_helper_leaves_when_it_ends_is_done_here(
    monkeypatch: pytest.MonkeyPatch, started: list[subprocess.Popen[bytes]]
) -> None:
    monkeypatch.setattr(searching, "_HELPER", "import sys; sys.stdin.buffer.read(1)")
    assert tried_by(recording(), 2) == tried_by(recording(), 0)
    assert all(helper.returncode is not None for helper in started) and len(started) == 2


def test_who_gives_up_leaves_no_process_behind(started: list[subprocess.Popen[bytes]]) -> None:
    def give_up(done: int, total: int) -> None:
        raise InterruptedError

    source = recording()
    with pytest.raises(InterruptedError):
        try_in_processes(source, settings_to_try(source), None, OVERHEAD_BYTES, give_up, helpers=1)
    assert started[0].returncode is not None
    assert tried_by(source, 1) == tried_by(recording(), 0), "the next one may have helpers again"


def test_short_recordings_get_no_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching.os, "sched_getaffinity", lambda process: {0, 1}, raising=False)
    source = recording()
    assert searching._helpers_that_pay(source, 10) == 0
    monkeypatch.setattr(searching, "WORTH_HELP", 1)
    assert (searching._helpers_that_pay(source, 10), searching._helpers_that_pay(source, 1)) == (1, 0)
