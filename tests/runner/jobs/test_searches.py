"""Searches for a configuration that fits: queued with all runs, and dropped when no client polls them."""

import math
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from memviz.fair_lock import FairLock
from memviz.runner.fit.fit import find_fit, fit_json
from memviz.runner.fit.predictions import KeptPredictions, Predictor
from memviz.runner.jobs import service
from memviz.runner.jobs.service import UNPOLLED, Crowded, Pace, Searches, SearchOrder, SearchStatus
from memviz.runner.request import Request
from tests.runner.processes import is_there, wait_until

SMALL = Request("feed_forward", {"layers": "1", "sequence": "256", "dim": "64"}, card="T4", numerics=False)
LONG = Request("gpt2", {"layers": "2", "sequence": "256"}, card="RTX 4090", numerics=False)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def line() -> FairLock:
    return FairLock()


@pytest.fixture
def searches(line: FairLock) -> Iterator[Searches]:
    made = Searches(line, seconds=240, patience=240, most=1)
    yield made
    made.close()


def status_of(searches: Searches, id: str) -> SearchStatus:
    status = searches.status(id)
    assert status is not None
    return status


def over(searches: Searches, id: str) -> SearchStatus:
    wait_until(lambda: status_of(searches, id).is_over)
    return status_of(searches, id)


def pid_of(searches: Searches, id: str) -> int:
    process = searches._jobs[id]._process
    assert process is not None
    return process.pid


@pytest.mark.slow
def test_it_says_what_the_command_says(searches: Searches, cache: Path) -> None:
    done = over(searches, searches.submit(SearchOrder(SMALL, largest="batch"), "ann").id)
    assert not done.failed and done.answer is not None
    with Predictor(processes=1, kept=KeptPredictions(cache / "another")) as predictor:
        there = fit_json(find_fit(SMALL, predictor, largest="batch"))
    assert done.answer == there
    # Some are refused alone: kernels of attention, since this model has none.
    assert done.done == there["tried"] > len(done.ways) > 0
    assert there["chosen"] in done.ways


@pytest.mark.slow
def test_it_waits_for_its_turn_and_gives_it_back_between_predictions(searches: Searches, line: FairLock) -> None:
    with line.turn(owner="bob"):
        id = searches.submit(SearchOrder(SMALL), "ann").id
        wait_until(lambda: status_of(searches, id).before == 1)
        assert not status_of(searches, id).ways
    wait_until(lambda: bool(status_of(searches, id).ways))
    with line.turn(owner="bob"):
        known = len(status_of(searches, id).ways)
        assert len(status_of(searches, id).ways) <= known + 1
    assert not over(searches, id).failed


@pytest.mark.slow
def test_a_search_that_is_cancelled_leaves_no_process_and_no_turn(searches: Searches, line: FairLock) -> None:
    id = searches.submit(SearchOrder(LONG), "ann").id
    wait_until(lambda: bool(status_of(searches, id).ways))
    pid = pid_of(searches, id)
    searches.cancel(id)
    done = over(searches, id)
    assert done.failed == "Cancelled." and done.ways
    wait_until(lambda: not is_there(pid))
    came = threading.Event()
    with line.turn(give_up=came.is_set) as mine:
        assert mine


@pytest.mark.slow
def test_the_time_limit_ends_a_search_with_what_was_found(searches: Searches, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "TIME_LIMIT", 6.0)
    done = over(searches, searches.submit(SearchOrder(LONG), "ann").id)
    assert not done.failed and done.answer is not None and done.answer["stopped"] == "time limit"
    assert done.answer["tried"] == done.done < done.answer["planned"]


@pytest.mark.slow
@pytest.mark.parametrize("closes_page", [False, True])
def test_one_that_nobody_looks_at_ends(line: FairLock, monkeypatch: pytest.MonkeyPatch, closes_page: bool) -> None:
    monkeypatch.setattr(service, "RELOAD_SECONDS", 0.0)
    searches = Searches(line, seconds=240, patience=3600 if closes_page else 0.0)
    try:
        id = searches.submit(SearchOrder(LONG), "ann").id
        search = searches._jobs[id]
        if closes_page:
            searches.release(id)
            # As a page that is reloaded does.
            searches.status(id)
            assert search.patience == math.inf
            searches.release(id)
        wait_until(lambda: search.status.is_over)
        assert search.status.failed == UNPOLLED
    finally:
        searches.close()


@pytest.mark.slow
def test_a_new_one_takes_the_place_of_its_owners_and_others_hear_that_it_is_crowded(searches: Searches) -> None:
    first = searches.submit(SearchOrder(LONG), "ann").id
    with pytest.raises(Crowded, match="1 other searches"):
        searches.submit(SearchOrder(SMALL), "bob")
    second = searches.submit(SearchOrder(SMALL), "ann").id
    assert over(searches, first).failed == "Replaced by another search."
    assert not over(searches, second).failed
    newest = searches.newest_of("ann")
    assert newest is not None and newest.id == second


def test_what_cannot_be_searched_is_said_in_words(searches: Searches) -> None:
    assert (
        "There is no workload nonesuch."
        in over(searches, searches.submit(SearchOrder(Request("nonesuch")), "").id).failed
    )


def test_the_time_left_follows_the_newest_predictions() -> None:
    now = iter([0.0, 0.1, 0.2, 0.3, *(10.0 * number for number in range(1, 40))])
    pace = Pace(lambda: next(now))
    assert [pace.seconds_left(done, 100) for done in (1, 2, 3)] == [None, None, None]
    assert pace.seconds_left(4, 100) is None
    left = [pace.seconds_left(done, 100) for done in range(5, 40)]
    assert left[-1] == pytest.approx(10.0 * 61)
