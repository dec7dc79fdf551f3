"""A smaller GPU: if the rows leave it open, the requests are replayed, and the result is marked as a replay."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from memviz.allocator.replayer import CardMemory
from memviz.ranks.card import OnCard, fit_on_card, replay_close_ranks, step_of
from memviz.ranks.numbers import Rank
from memviz.ranks.row import StepPart
from memviz.results.ranks import card_sentence as words
from tests.facts import missing
from tests.ranks.files import read
from tests.traces import MiB, alloc, block, event, free, segment, snapshot

FIRST, SECOND = 1 << 36, 2 << 36
CARD = CardMemory(28 * MiB, 0, "a card")


def reserving(then: int, more: int = 0) -> Any:
    """20 MiB that go back to the cache; then so much, which takes a part of them where it is not more."""
    fits = then <= 20 * MiB
    place, size = (FIRST, 20 * MiB) if fits else (SECOND, then)
    made: list[Any] = [event("segment_alloc", FIRST, 20 * MiB), alloc(FIRST, 20 * MiB), *free(FIRST, 20 * MiB)]
    made += [] if fits else [event("segment_alloc", SECOND, size)]
    made += [alloc(place, then)]
    segments = [] if fits else [segment(FIRST, 20 * MiB, [])]
    if more:
        made += [event("segment_alloc", SECOND, more), alloc(SECOND, more)]
        segments.append(segment(SECOND, more, [block(SECOND, more)]))
    segments.append(segment(place, size, [block(place, then)]))
    return snapshot([{**one, "time_us": number} for number, one in enumerate(made)], segments)


@pytest.fixture
def ranks(tmp_path: Path) -> tuple[Rank, ...]:
    """Ranks whose live bytes fit, but whose reserved bytes do not."""
    files = {0: reserving(24 * MiB), 1: reserving(12 * MiB, 12 * MiB), 2: reserving(24 * MiB)}
    for number, value in files.items():
        (tmp_path / f"run.rank{number}.pickle").write_bytes(pickle.dumps(value))
    return read(tmp_path).ranks


def test_a_replay_decides_what_rows_leave_open(ranks: tuple[Rank, ...]) -> None:
    found = fit_on_card(ranks, CARD)
    assert found.close == (0, 1, 2) and "ranks 0, 1 and 2 may not fit" in words(found)
    told = replay_close_ranks(ranks, found)
    # What is cached goes back on ranks 0 and 2; on rank 1 a part of it is in use.
    assert (told.fits, told.close, told.runs_out, told.replayed) == ((0, 2), (), (1,), (0, 1, 2))
    assert (told.first, told.lacks_bytes) == (1, 4 * MiB)
    assert missing(words(told), "rank 1", "runs out of memory") == []


def test_a_file_that_is_gone_or_another_by_now_leaves_it_open(ranks: tuple[Rank, ...]) -> None:
    moved = tuple(replace(rank, row=replace(rank.row, file_bytes=1)) for rank in ranks)
    Path(ranks[1].row.place).unlink()
    found: OnCard = fit_on_card(moved, CARD)
    assert replay_close_ranks(moved, found) == found
    assert replay_close_ranks(ranks, found).close == (1,)


def test_of_files_that_do_not_tell_what_is_reserved_it_is_close_until_their_requests_are_replayed(
    tmp_path: Path,
) -> None:
    for number in range(2):
        (tmp_path / f"run.rank{number}.pickle").write_bytes(pickle.dumps(snapshot([alloc(FIRST, 20 * MiB)], [])))
    found = fit_on_card(read(tmp_path).ranks, CARD)
    assert (found.close, found.lacks_bytes) == ((0, 1), 0)
    assert words(found).endswith("ranks 0 and 1 may not fit: their files do not say how much they reserve.")


def ran_out(folder: Path, asked: int, count: int = 2) -> tuple[Rank, ...]:
    """Write ranks that hold 20 MiB and then fail to allocate `asked` bytes."""
    made = [event("segment_alloc", FIRST, 20 * MiB), alloc(FIRST, 20 * MiB), event("oom", 0, asked)]
    rows = [{**one, "time_us": number} for number, one in enumerate(made)]
    value = snapshot(rows, [segment(FIRST, 20 * MiB, [block(FIRST, 20 * MiB)])])
    for number in range(count):
        (folder / f"run.rank{number}.pickle").write_bytes(pickle.dumps(value))
    return read(folder).ranks


def test_a_peak_that_running_out_cut_short_fits_nowhere_without_a_replay(tmp_path: Path) -> None:
    short = ran_out(tmp_path, 12 * MiB)
    found = fit_on_card(short, CardMemory(32 * MiB, 0, "a card"))
    assert (found.fits, found.close, found.cut_short) == ((), (0, 1), (0, 1))
    assert words(found).endswith(
        "ranks 0 and 1 may not fit: ranks 0 and 1 ran out of memory in the recording, so later needs are unknown."
    )
    told = replay_close_ranks(short, found)
    assert (told.fits, told.replayed, told.cut_short) == ((0, 1), (0, 1), ())
    found = fit_on_card(ran_out(tmp_path, 12 * MiB), CARD)
    assert (found.fits, found.close, found.runs_out, found.lacks_bytes) == ((), (), (0, 1), 4 * MiB)
    found = fit_on_card(ran_out(tmp_path, 12 * MiB), CardMemory(16 * MiB, 0, "a card"))
    assert (
        found.first_step is None
        and missing(words(found), "rank 0", "16.0 MiB", "2 ranks", "would run out", "runs out of memory") == []
    )
    row = read(tmp_path).ranks[0].row
    parts = (StepPart(2, "", -1, 9), StepPart(3, "step 3", 10, 19), StepPart(4, "", 20, 29))
    row = replace(row, curve=replace(row.curve, parts=parts))
    said = [step_of(row, number) for number in (2, 3, 4)]
    assert [one.words for one in said if one is not None] == ["before step 3", "in step 3", "after step 3"]
