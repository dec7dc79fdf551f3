"""Orders of several people, carried out by processes that stand in for the runner's and start in no time."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from memviz.runner.jobs import scheduler as desks
from memviz.runner.jobs.order import Standing, Variant
from memviz.runner.jobs.scheduler import Closing, Crowded, Desk
from memviz.runner.jobs.worker_process import Worker
from memviz.runner.request import Request
from tests.runner.processes import PATIENCE_SECONDS, is_there, over, running, wait_until

DONE, ENDLESS = Request("done"), Request("endless")


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Worker, "module", "tests.runner.fake_worker")


@pytest.fixture
def desk() -> Iterator[Desk]:
    with contextlib.closing(Desk(timeout=PATIENCE_SECONDS)) as made:
        yield made


class Finished:
    """Notes the order in which runs are done."""

    def __init__(self) -> None:
        self.labels: list[str] = []

    def __call__(self, variant: Variant) -> str:
        self.labels.append(variant.label)
        return ""


def held(desk: Desk, tmp_path: Path) -> Callable[[], None]:
    """The device is in use until what is returned is called."""
    gate = tmp_path / "gate"
    running(desk, desk.order([Request(f"waits:{gate}")], ["held"], owner="first"))
    return gate.touch


def test_another_visitor_goes_before_the_second_of_fifty(desk: Desk, tmp_path: Path) -> None:
    let_go, finished = held(desk, tmp_path), Finished()
    many = [desk.order([DONE], [f"ann {number}"], finished, "ann", beside=True) for number in range(50)]
    one = desk.order([DONE], ["bob"], finished, "bob", beside=True)
    assert len(desk._orders) == 52
    let_go()
    assert over(desk, one).variants[0].state == "done"
    assert all(over(desk, each).variants[0].state == "done" for each in many)
    assert finished.labels[:3] == ["ann 0", "bob", "ann 1"]
    assert sorted(finished.labels) == sorted([f"ann {number}" for number in range(50)] + ["bob"])


def test_between_two_variants_of_one_order_others_have_their_turn(desk: Desk, tmp_path: Path) -> None:
    let_go, finished = held(desk, tmp_path), Finished()
    long = desk.order([DONE] * 4, ["a1", "a2", "a3", "a4"], finished, "ann")
    other = desk.order([DONE], ["bob"], finished, "bob")
    let_go()
    over(desk, long), over(desk, other)
    assert finished.labels == ["a1", "bob", "a2", "a3", "a4"]


def test_so_many_of_one_visitor_wait_and_no_more(desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desks, "MOST_OF_ONE", 3)
    held(desk, tmp_path)
    for _ in range(3):
        desk.order([DONE], ["mine"], owner="ann", beside=True)
    with pytest.raises(Crowded, match="3 runs of yours"):
        desk.order([DONE], ["mine"], owner="ann", beside=True)
    assert not desk.order([DONE], ["other"], owner="bob", beside=True).is_over


def test_two_visitors_who_ask_for_the_same_run_get_one_each(desk: Desk, tmp_path: Path) -> None:
    let_go = held(desk, tmp_path)
    orders = [desk.order([DONE], ["same"], owner=owner) for owner in ("ann", "bob")]
    let_go()
    found = [over(desk, each) for each in orders]
    assert [each.variants[0].state for each in found] == ["done", "done"]
    assert found[0].id != found[1].id


def test_what_nobody_asks_after_ends_and_the_next_goes_on(tmp_path: Path) -> None:
    with contextlib.closing(Desk(timeout=PATIENCE_SECONDS, patience=1.5)) as desk:
        gone = desk.order([ENDLESS, DONE], ["gone", "behind"], owner="ann")
        worker = running(desk, gone)
        never_seen = desk.order([DONE], ["never seen"], owner="eve")
        waits = desk.order([DONE], ["waits"], owner="bob")
        assert over(desk, waits).variants[0].state == "done"
        wait_until(lambda: not worker.is_alive)
        left = desk._orders[gone.id].standing
        assert [(each.state, each.what) for each in left.variants] == [("failed", "cancelled")] * 2
        assert all("Nobody waited" in each.phase for each in left.variants)
        assert desk._orders[never_seen.id].standing.is_over


def test_what_somebody_asks_after_goes_on(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with contextlib.closing(Desk(timeout=PATIENCE_SECONDS, patience=30)) as desk:
        order = desk.order([Request(f"waits:{gate}")], ["a"], owner="ann")
        running(desk, order)
        for later in (0, 20, 29):
            desk.tick(time.monotonic() + later)
        found = desk._orders[order.id]
        assert not found.stopped.is_set()
        unseen = desk.order([DONE], ["unseen"], owner="eve")
        desk.leave(unseen.id, stops=False)
        desk.tick(time.monotonic() + 60)
        assert (found.stopped.is_set(), desk._orders[unseen.id].stopped.is_set()) == (True, False)


def test_a_cancel_at_the_very_end_loses_nothing(desk: Desk) -> None:
    """Whichever comes first, the order is over and says one thing of its run."""
    for _ in range(20):
        finished = Finished()
        order = desk.order([DONE], ["a"], finished)
        threading.Thread(target=desk.cancel, args=(order.id,)).start()
        found = over(desk, order).variants[0]
        assert (found.state, found.what, found.run is not None) in (("done", "", True), ("failed", "cancelled", False))
        assert finished.labels == (["a"] if found.state == "done" else [])


def test_a_cancel_after_the_end_changes_nothing(desk: Desk) -> None:
    done = over(desk, desk.order([DONE], ["a"], owner="ann"))
    desk.cancel(done.id)
    desk.leave(done.id)
    now = desk.standing(done.id)
    assert now is not None and now.variants == done.variants


def test_a_process_that_the_system_killed_costs_its_own_run_alone(desk: Desk) -> None:
    found = over(desk, desk.order([DONE, Request("dies"), Request("done-then-dies"), DONE], list("abcd")))
    assert [each.what for each in found.variants] == ["", "killed", "", ""]


def test_a_spare_that_died_in_the_meantime_is_no_loss(desk: Desk) -> None:
    desk.warm_up()
    spare = desk._spare
    assert spare is not None
    spare.kill()
    assert over(desk, desk.order([DONE], ["a"])).variants[0].state == "done"


def test_a_process_that_dies_as_it_is_asked_again_is_no_loss_either(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system takes the idle one first when memory is short, between a look at it and the next request."""
    over(desk, desk.order([DONE], ["a"]))
    wait_until(lambda: desk._spare is not None)
    spare = desk._spare
    assert spare is not None
    ask = spare._ask

    def dies_first(requests: Any, numbers: list[int]) -> None:
        spare.kill()
        ask(requests, numbers)

    monkeypatch.setattr(spare, "_ask", dies_first)
    assert over(desk, desk.order([DONE], ["b"])).variants[0].state == "done"
    assert not spare.is_alive


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("fault", [OSError("The disk is gone."), KeyError("surprise")])
def test_no_order_gets_the_answer_to_another(desk: Desk, tmp_path: Path, fault: Exception) -> None:
    """Keeping the first run fails in a way that nobody thought of; its process must not serve the next one."""

    def fails(variant: Variant) -> str:
        raise fault

    failed = over(desk, desk.order([DONE, ENDLESS], ["a", "b"], fails))
    assert {each.state for each in failed.variants} == {"failed"}
    assert str(fault) in failed.variants[1].phase
    done = over(desk, desk.order([replace(DONE, settings={"mine": "yes"})], ["c"]))
    run = done.variants[0].run
    assert run is not None and run.request.settings == {"mine": "yes"}


def test_a_process_that_still_owes_an_answer_serves_nobody_else(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with contextlib.closing(Desk(timeout=PATIENCE_SECONDS)) as desk, Worker(tmp_path) as worker:
        heard = worker.run([Request(f"waits:{gate}")])
        next(heard)
        desk._give_back(worker, keep=True)
        assert (desk._spare, worker.is_alive) == (None, False)


def test_an_idle_process_and_what_is_old_are_given_back_by_the_clock(desk: Desk) -> None:
    order = over(desk, desk.order([DONE], ["a"]))
    wait_until(lambda: desk._spare is not None)
    spare, folder = desk._spare, desk._orders[order.id].folder
    assert spare is not None and spare.is_alive and folder.exists()
    desk.tick(time.monotonic() + 60)
    assert spare.is_alive and folder.exists()
    desk.tick(time.monotonic() + 7 * 3600)
    assert (spare.is_alive, folder.exists(), desk._spare, desk.standing(order.id)) == (False, False, None, None)


def test_a_process_that_grew_is_not_kept(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desks, "_LARGEST_SPARE", 1)
    over(desk, desk.order([DONE], ["a"]))
    desk.close()
    assert desk._spare is None


def test_the_limit_of_memory_reaches_every_process(monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.closing(Desk(timeout=PATIENCE_SECONDS, memory=300 << 20)) as desk:
        found = over(desk, desk.order([Request("grows"), DONE], ["a", "b"]))
        assert [each.what for each in found.variants] == ["host memory", ""]
        alone = over(desk, desk.order([replace(Request("grows"), on="cuda")], ["c"]))
        assert alone.variants[0].what == "host memory"


def test_while_it_closes_nothing_begins_and_nothing_stays(tmp_path: Path) -> None:
    desk = Desk(timeout=PATIENCE_SECONDS)
    orders = [desk.order([ENDLESS], ["a"], owner=owner, beside=True) for owner in ("ann", "ann", "bob")]
    worker = running(desk, orders[0])
    begun: list[Standing] = []
    stop = threading.Event()

    def goes_on_asking() -> None:
        with contextlib.suppress(Closing):
            while not stop.is_set():
                begun.append(desk.order([ENDLESS], ["late"], owner=f"eve {len(begun)}"))
                desk.warm_up()
                time.sleep(0.01)

    asking = threading.Thread(target=goes_on_asking)
    asking.start()
    wait_until(lambda: len(begun) > 2)
    desk.close()
    stop.set()
    asking.join(PATIENCE_SECONDS)
    assert not is_there(worker.pid)
    assert desk._spare is None
    for each in (*orders, *begun):
        order = desk._orders.get(each.id)
        assert order is None or (order.standing.is_over and order.worker is None)
    with pytest.raises(Closing):
        desk.order([DONE], ["too late"])
