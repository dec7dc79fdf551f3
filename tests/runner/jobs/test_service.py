"""Orders of several visitors and searches, taken in turn; most are run by fake workers that start instantly."""

import contextlib
import math
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from memviz.fair_lock import FairLock
from memviz.runner.fit.fit import find_fit, fit_json
from memviz.runner.fit.predictions import KeptPredictions, Predictor
from memviz.runner.jobs import service as scheduling
from memviz.runner.jobs.service import (
    UNPOLLED,
    Closing,
    Crowded,
    NoRoom,
    Order,
    OrderStatus,
    Pace,
    Scheduler,
    Scratch,
    Searches,
    SearchOrder,
    SearchStatus,
    Variant,
)
from memviz.runner.jobs.worker_process import Worker
from memviz.runner.request import Request
from tests.runner.processes import PATIENCE_SECONDS, is_there, over, running, wait_until

DONE, ENDLESS = Request("done"), Request("endless")
REAL = Worker.module


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Worker, "module", "tests.runner.fake_worker")


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch, fake: None) -> None:
    monkeypatch.setattr(Worker, "module", REAL)


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    with contextlib.closing(Scheduler(timeout=PATIENCE_SECONDS)) as made:
        yield made


class Finished:
    """Notes the order in which runs are done."""

    def __init__(self) -> None:
        self.labels: list[str] = []

    def __call__(self, variant: Variant) -> str:
        self.labels.append(variant.label)
        return ""


def held(scheduler: Scheduler, tmp_path: Path) -> Callable[[], None]:
    """Occupy the device until the returned function is called."""
    gate = tmp_path / "gate"
    running(scheduler, scheduler.submit([Request(f"waits:{gate}")], ["held"], owner="first"))
    return gate.touch


@pytest.mark.slow
def test_another_visitor_goes_before_the_second_of_fifty(scheduler: Scheduler, tmp_path: Path) -> None:
    let_go, finished = held(scheduler, tmp_path), Finished()
    many = [scheduler.submit([DONE], [f"ann {number}"], finished, "ann", replaces=False) for number in range(50)]
    one = scheduler.submit([DONE], ["bob"], finished, "bob", replaces=False)
    assert len(scheduler._jobs) == 52
    let_go()
    assert over(scheduler, one).variants[0].state == "done"
    assert all(over(scheduler, each).variants[0].state == "done" for each in many)
    assert finished.labels[:3] == ["ann 0", "bob", "ann 1"]
    assert sorted(finished.labels) == sorted([f"ann {number}" for number in range(50)] + ["bob"])


def test_between_two_variants_of_one_order_others_have_their_turn(scheduler: Scheduler, tmp_path: Path) -> None:
    let_go, finished = held(scheduler, tmp_path), Finished()
    long = scheduler.submit([DONE] * 4, ["a1", "a2", "a3", "a4"], finished, "ann")
    other = scheduler.submit([DONE], ["bob"], finished, "bob")
    let_go()
    over(scheduler, long), over(scheduler, other)
    assert finished.labels == ["a1", "bob", "a2", "a3", "a4"]


def test_so_many_of_one_visitor_wait_and_no_more(
    scheduler: Scheduler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduling, "MOST_OF_ONE", 3)
    held(scheduler, tmp_path)
    for _ in range(3):
        scheduler.submit([DONE], ["mine"], owner="ann", replaces=False)
    with pytest.raises(Crowded, match="3 of your runs"):
        scheduler.submit([DONE], ["mine"], owner="ann", replaces=False)
    assert not scheduler.submit([DONE], ["other"], owner="bob", replaces=False).is_over


def test_an_order_that_is_not_polled_ends_and_the_next_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.closing(Scheduler(timeout=PATIENCE_SECONDS, patience=300)) as scheduler:
        gone = scheduler.submit([ENDLESS, DONE], ["gone", "behind"], owner="ann")
        worker = running(scheduler, gone)
        never_seen = scheduler.submit([DONE], ["never seen"], owner="eve")
        waits = scheduler.submit([DONE], ["waits"], owner="bob")
        monkeypatch.setattr(scheduler._jobs[waits.id], "unpolled_seconds", lambda now: 0.0)
        for later in (0, 200, 250):
            scheduler.tick(time.monotonic() + later)
        assert not scheduler._jobs[gone.id].stopped.is_set()
        scheduler.tick(time.monotonic() + 600)
        assert over(scheduler, waits).variants[0].state == "done"
        wait_until(lambda: not worker.is_alive)
        left = scheduler._jobs[gone.id].status
        assert [(variant.state, variant.what) for variant in left.variants] == [("failed", "cancelled")] * 2
        assert all("closed" in variant.phase for variant in left.variants)
        assert scheduler._jobs[never_seen.id].status.is_over


def test_what_is_known_is_not_run_again_and_an_order_of_it_is_over_at_once(scheduler: Scheduler) -> None:
    done = over(scheduler, scheduler.submit([DONE], ["a"])).variants[0]
    begun = scheduler.submit([DONE, DONE], ["again", "new"], known=[done, None])
    assert (begun.variants[0].label, begun.variants[0].run, begun.variants[0].state) == ("again", done.run, "done")
    assert over(scheduler, begun).variants[1].run is not None
    assert scheduler.submit([DONE], ["again"], known=[done]).is_over


def test_what_runs_when_its_order_is_left_may_end_or_is_stopped_and_what_waits_is_not_begun(
    scheduler: Scheduler, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    order = scheduler.submit([Request(f"waits:{gate}"), DONE], ["runs", "waits"])
    running(scheduler, order)
    waits = scheduler.submit([DONE], ["a"], owner="eve")
    for each in (order, waits):
        scheduler.leave(each.id, stops=False)
    gate.touch()
    assert [variant.what for variant in over(scheduler, order).variants] == ["", "cancelled"]
    assert over(scheduler, waits).variants[0].what == "cancelled"
    endless = scheduler.submit([ENDLESS], ["endless"])
    running(scheduler, endless)
    scheduler.leave(endless.id, stops=False)
    assert over(scheduler, endless).variants[0].what == "cancelled"


def test_who_waits_for_news_looks_all_the_while(tmp_path: Path) -> None:
    """On a busy machine they may wake late, with an old last poll."""
    with contextlib.closing(Scheduler(timeout=PATIENCE_SECONDS, patience=300)) as scheduler:
        order = scheduler._jobs[scheduler.submit([Request(f"waits:{tmp_path / 'gate'}")], ["a"], owner="ann").id]
        running(scheduler, order.status)
        newest = order.status.version
        news = threading.Thread(
            target=scheduler.status, args=(order.status.id,), kwargs={"newer_than": newest, "wait": 60}
        )
        news.start()
        wait_until(lambda: order.unpolled_seconds(time.monotonic() + 600) == 0)
        scheduler.tick(time.monotonic() + 600)
        assert not order.stopped.is_set()
        scheduler.cancel(order.status.id)
        news.join(PATIENCE_SECONDS)
        assert order.unpolled_seconds(time.monotonic() + 600) > 500


def test_who_asked_first_is_first_however_late_their_thread_begins(
    scheduler: Scheduler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_go, finished, other_waits = held(scheduler, tmp_path), Finished(), threading.Event()
    carry_out = scheduler._carry_out

    def late(order: Order) -> None:
        assert order.owner != "ann" or other_waits.wait(PATIENCE_SECONDS)
        carry_out(order)

    monkeypatch.setattr(scheduler, "_carry_out", late)
    orders = [scheduler.submit([DONE], [owner], finished, owner) for owner in ("ann", "bob")]
    wait_until(lambda: scheduler._jobs[orders[1].id].status.before > 0)
    other_waits.set()
    let_go()
    for order in orders:
        over(scheduler, order)
    assert finished.labels == ["ann", "bob"]


def test_a_cancel_at_the_very_end_loses_nothing_and_one_after_it_changes_nothing(scheduler: Scheduler) -> None:
    """In either order of the two, the order is over and its run has one result."""
    for _ in range(20):
        finished = Finished()
        order = scheduler.submit([DONE], ["a"], finished)
        threading.Thread(target=scheduler.cancel, args=(order.id,)).start()
        found = over(scheduler, order).variants[0]
        assert (found.state, found.what, found.run is not None) in (("done", "", True), ("failed", "cancelled", False))
        assert finished.labels == (["a"] if found.state == "done" else [])
    scheduler.cancel(order.id)
    scheduler.leave(order.id)
    now = scheduler.status(order.id)
    assert now is not None and now.variants[0] == found


def test_a_process_that_the_system_killed_costs_its_own_run_alone(scheduler: Scheduler) -> None:
    found = over(scheduler, scheduler.submit([DONE, Request("dies"), Request("done-then-dies"), DONE], list("abcd")))
    assert [variant.what for variant in found.variants] == ["", "killed", "", ""]


def test_a_spare_that_died_in_the_meantime_or_dies_as_it_is_asked_again_is_no_loss(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system takes the idle one first when memory is short, also between a look at it and the next request."""
    scheduler.warm_up()
    assert scheduler._spare is not None
    scheduler._spare.kill()
    assert over(scheduler, scheduler.submit([DONE], ["a"])).variants[0].state == "done"
    wait_until(lambda: scheduler._spare is not None)
    spare = scheduler._spare
    assert spare is not None
    ask = spare._send

    def dies_first(requests: Any, numbers: list[int], **more: Any) -> None:
        spare.kill()
        ask(requests, numbers, **more)

    monkeypatch.setattr(spare, "_send", dies_first)
    assert over(scheduler, scheduler.submit([DONE], ["b"])).variants[0].state == "done"
    assert not spare.is_alive


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("fault", [OSError("The disk is gone."), KeyError("surprise")])
def test_no_order_gets_the_answer_to_another(scheduler: Scheduler, tmp_path: Path, fault: Exception) -> None:
    """Saving the first run fails unexpectedly; its process must not serve the next one."""

    def fails(variant: Variant) -> str:
        raise fault

    failed = over(scheduler, scheduler.submit([DONE, ENDLESS], ["a", "b"], fails))
    assert {each.state for each in failed.variants} == {"failed"}
    assert str(fault) in failed.variants[1].phase
    done = over(scheduler, scheduler.submit([replace(DONE, settings={"mine": "yes"})], ["c"]))
    run = done.variants[0].run
    assert run is not None and run.request.settings == {"mine": "yes"}


def test_a_process_that_still_owes_an_answer_serves_nobody_else(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with contextlib.closing(Scheduler(timeout=PATIENCE_SECONDS)) as scheduler, Worker(tmp_path) as worker:
        heard = worker.run([Request(f"waits:{gate}")])
        next(heard)
        scheduler._give_back(worker, keep=True)
        assert (scheduler._spare, worker.is_alive) == (None, False)


def test_an_idle_process_and_what_is_old_are_given_back_by_the_clock(scheduler: Scheduler) -> None:
    order = over(scheduler, scheduler.submit([DONE], ["a"]))
    wait_until(lambda: scheduler._spare is not None)
    spare, folder = scheduler._spare, scheduler._jobs[order.id].folder
    assert spare is not None and spare.is_alive and folder.exists()
    scheduler.tick(time.monotonic() + 60)
    assert spare.is_alive and folder.exists()
    scheduler.tick(time.monotonic() + 7 * 3600)
    assert (spare.is_alive, folder.exists(), scheduler._spare, scheduler.status(order.id)) == (False, False, None, None)


def test_a_process_that_grew_is_not_kept(scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduling, "_LARGEST_SPARE", 1)
    over(scheduler, scheduler.submit([DONE], ["a"]))
    scheduler.close()
    assert scheduler._spare is None


@pytest.mark.slow
def test_the_limit_of_memory_reaches_every_process(monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.closing(Scheduler(timeout=PATIENCE_SECONDS, memory=300 << 20)) as scheduler:
        found = over(scheduler, scheduler.submit([Request("grows"), DONE], ["a", "b"]))
        assert [variant.what for variant in found.variants] == ["host memory", ""]
        alone = over(scheduler, scheduler.submit([replace(Request("grows"), on="cuda")], ["c"]))
        assert alone.variants[0].what == "host memory"


def test_while_it_closes_nothing_begins_and_nothing_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    scheduler = Scheduler(timeout=PATIENCE_SECONDS)
    orders = [scheduler.submit([ENDLESS], ["a"], owner=owner, replaces=False) for owner in ("ann", "ann", "bob")]
    worker = running(scheduler, orders[0])
    begun: list[OrderStatus] = []
    stop = threading.Event()

    def goes_on_asking() -> None:
        with contextlib.suppress(Closing):
            while not stop.is_set():
                begun.append(scheduler.submit([ENDLESS], ["late"], owner=f"eve {len(begun)}"))
                scheduler.warm_up()
                time.sleep(0.01)

    asking = threading.Thread(target=goes_on_asking)
    asking.start()
    wait_until(lambda: len(begun) > 2)
    scheduler.close()
    stop.set()
    asking.join(PATIENCE_SECONDS)
    assert not is_there(worker.pid)
    assert scheduler._spare is None and not list(tmp_path.glob("memviz-runs-*"))
    for each in (*orders, *begun):
        order = scheduler._jobs.get(each.id)
        assert order is None or (order.status.is_over and order.worker is None)
    with pytest.raises(Closing):
        scheduler.submit([DONE], ["too late"])


def test_variants_share_one_process_and_what_is_done_is_told(scheduler: Scheduler, real: None) -> None:
    tiny, finished = {"sequence": "64", "dim": "64", "layers": "2"}, list[Variant]()
    requests = [Request("feed_forward", {**tiny, "dim": dim}, numerics=False) for dim in ("64", "128")]

    def keep(each: Variant) -> str:
        finished.append(each)
        return "" if each.label == "a" else "The disk is full."

    wide = over(scheduler, scheduler.submit(requests, ["a", "b"], keep))
    assert [variant.state for variant in wide.variants] == ["done", "done"]
    assert [each.label for each in finished] == ["a", "b"]
    assert [variant.amiss for variant in wide.variants] == ["", "The disk is full."]
    first, second = (variant.run for variant in wide.variants)
    assert first is not None and second is not None
    assert first.weights_bytes < second.weights_bytes
    for each in wide.variants:
        assert each.file is not None and each.file.is_file()


def test_who_asks_again_replaces_what_they_had_waiting(scheduler: Scheduler) -> None:
    first = scheduler.submit([ENDLESS], ["endless"], owner="ann")
    running(scheduler, first, 0)
    mine = [scheduler.submit([DONE], ["mine"], owner="ann") for _ in range(5)]
    other = scheduler.submit([DONE], ["other"], owner="bob")
    left = [scheduler.status(each.id) for each in mine[:-1]]
    assert all(each is not None and each.is_left for each in left)
    assert scheduler.newest_of("ann").id == mine[-1].id  # type: ignore[union-attr]
    assert (scheduler.newest_of(""), scheduler.newest_of("eve")) == (None, None)
    scheduler.cancel(first.id)
    assert [over(scheduler, each).variants[0].what for each in (*mine, other)] == ["cancelled"] * 4 + ["", ""]


def test_only_so_many_wait() -> None:
    with contextlib.closing(Scheduler(timeout=PATIENCE_SECONDS, most_waiting=2)) as scheduler:
        running(scheduler, scheduler.submit([ENDLESS], ["endless"], owner="a"), 0)
        for name in "bc":
            scheduler.submit([DONE], [name], owner=name)
        with pytest.raises(Crowded, match="2 other runs already wait"):
            scheduler.submit([DONE], ["d"], owner="d")
        again = scheduler.submit([DONE], ["b again"], owner="b")
        assert not again.is_over


def test_a_full_disk_is_said(scheduler: Scheduler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(NoRoom, match="cannot be written to .*missing"):
        scheduler.submit([DONE], ["a"], owner="ann")
    assert scheduler.newest_of("ann") is None


def test_orders_wait_for_each_other_and_can_be_cancelled(scheduler: Scheduler) -> None:
    first = scheduler.submit([ENDLESS], ["endless"])
    waiting = [scheduler.submit([DONE], [name]) for name in ("waits", "gives up")]
    wait_until(lambda: scheduler._jobs[waiting[1].id].status.before == 2)
    assert scheduler._jobs[waiting[1].id].status.variants[0].state == "waiting"
    scheduler.cancel(waiting[1].id)
    assert over(scheduler, waiting[1]).variants[0].what == "cancelled"
    scheduler.cancel(first.id)
    assert over(scheduler, first).variants[0].what == "cancelled"
    assert over(scheduler, waiting[0]).variants[0].state == "done"
    assert scheduler.status("guess") is None
    scheduler.cancel("guess")


_PAGE = """
import sys
from pathlib import Path
from memviz.runner.jobs.service import Scratch

scratch = Scratch(Path(sys.argv[1]))
(scratch.new() / "run.pickle").write_bytes(b"x")
print("ready", flush=True)
sys.stdin.read()
"""


def test_folders_are_apart_and_go_together(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path)
    assert not list(tmp_path.iterdir())
    first, second = scratch.new(), scratch.new()
    assert first != second and first.parent == second.parent
    (first / "run.pickle").write_bytes(b"x")
    scratch.close()
    assert not list(tmp_path.iterdir())


def test_what_a_killed_page_left_is_swept_and_what_a_living_one_has_is_not(tmp_path: Path) -> None:
    page = subprocess.Popen(
        [sys.executable, "-c", _PAGE, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert page.stdin is not None and page.stdout is not None
    assert page.stdout.readline() == "ready\n"
    (theirs,) = tmp_path.iterdir()
    mine = Scratch(tmp_path)
    folder = mine.new()
    assert list(theirs.glob("*/run.pickle"))
    page.kill()
    page.wait()
    page.stdin.close()
    page.stdout.close()
    other = Scratch(tmp_path)
    other.new()
    assert not theirs.exists()
    assert folder.exists()
    mine.close()
    other.close()


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


def searched(searches: Searches, id: str) -> SearchStatus:
    wait_until(lambda: status_of(searches, id).is_over)
    return status_of(searches, id)


@pytest.mark.slow
def test_it_says_what_the_command_says(searches: Searches, cache: Path, real: None) -> None:
    done = searched(searches, searches.submit(SearchOrder(SMALL, largest="batch"), "ann").id)
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
    assert not searched(searches, id).failed


@pytest.mark.slow
def test_a_search_that_is_cancelled_leaves_no_process_and_no_turn(searches: Searches, line: FairLock) -> None:
    id = searches.submit(SearchOrder(LONG), "ann").id
    wait_until(lambda: bool(status_of(searches, id).ways))
    process = searches._jobs[id]._process
    assert process is not None
    searches.cancel(id)
    done = searched(searches, id)
    assert done.failed == "Cancelled." and done.ways
    wait_until(lambda: not is_there(process.pid))
    came = threading.Event()
    with line.turn(give_up=came.is_set) as mine:
        assert mine


@pytest.mark.slow
def test_the_time_limit_ends_a_search_with_what_was_found(searches: Searches, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduling, "TIME_LIMIT", 6.0)
    done = searched(searches, searches.submit(SearchOrder(LONG), "ann").id)
    assert not done.failed and done.answer is not None and done.answer["stopped"] == "time limit"
    assert done.answer["tried"] == done.done < done.answer["planned"]


@pytest.mark.slow
@pytest.mark.parametrize("closes_page", [False, True])
def test_one_that_nobody_looks_at_ends(line: FairLock, monkeypatch: pytest.MonkeyPatch, closes_page: bool) -> None:
    monkeypatch.setattr(scheduling, "RELOAD_SECONDS", 0.0)
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
    assert searched(searches, first).failed == "Replaced by another search."
    assert not searched(searches, second).failed
    newest = searches.newest_of("ann")
    assert newest is not None and newest.id == second


def test_what_cannot_be_searched_is_said_in_words(searches: Searches) -> None:
    id = searches.submit(SearchOrder(Request("nonesuch")), "").id
    assert "There is no workload nonesuch." in searched(searches, id).failed


def test_the_time_left_follows_the_newest_predictions() -> None:
    now = iter([0.0, 0.1, 0.2, 0.3, *(10.0 * number for number in range(1, 40))])
    pace = Pace(lambda: next(now))
    assert [pace.seconds_left(done, 100) for done in (1, 2, 3)] == [None, None, None]
    assert pace.seconds_left(4, 100) is None
    left = [pace.seconds_left(done, 100) for done in range(5, 40)]
    assert left[-1] == pytest.approx(10.0 * 61)
