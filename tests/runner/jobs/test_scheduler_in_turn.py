"""Orders of several visitors, run by fake workers that start instantly."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from memviz.runner.jobs import service as scheduling
from memviz.runner.jobs.service import Closing, Crowded, Order, OrderStatus, Scheduler, Variant
from memviz.runner.jobs.worker_process import Worker
from memviz.runner.request import Request
from tests.runner.processes import PATIENCE_SECONDS, is_there, over, running, wait_until

DONE, ENDLESS = Request("done"), Request("endless")


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Worker, "module", "tests.runner.fake_worker")


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


def test_what_runs_when_its_order_is_left_may_end_and_what_waits_is_not_begun(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with contextlib.closing(Scheduler(timeout=PATIENCE_SECONDS)) as scheduler:
        order = scheduler.submit([Request(f"waits:{gate}"), DONE], ["runs", "waits"])
        running(scheduler, order)
        waits = scheduler.submit([DONE], ["a"], owner="eve")
        for each in (order, waits):
            scheduler.leave(each.id, stops=False)
        gate.touch()
        assert [variant.what for variant in over(scheduler, order).variants] == ["", "cancelled"]
        assert over(scheduler, waits).variants[0].what == "cancelled"


def test_what_somebody_asks_after_goes_on(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with contextlib.closing(Scheduler(timeout=PATIENCE_SECONDS, patience=300)) as scheduler:
        order = scheduler.submit([Request(f"waits:{gate}")], ["a"], owner="ann")
        running(scheduler, order)
        for later in (0, 200, 250):
            scheduler.tick(time.monotonic() + later)
        found = scheduler._jobs[order.id]
        assert not found.stopped.is_set()
        scheduler.tick(time.monotonic() + 600)
        assert found.stopped.is_set()


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


def test_a_cancel_at_the_very_end_loses_nothing(scheduler: Scheduler) -> None:
    """In either order of the two, the order is over and its run has one result."""
    for _ in range(20):
        finished = Finished()
        order = scheduler.submit([DONE], ["a"], finished)
        threading.Thread(target=scheduler.cancel, args=(order.id,)).start()
        found = over(scheduler, order).variants[0]
        assert (found.state, found.what, found.run is not None) in (("done", "", True), ("failed", "cancelled", False))
        assert finished.labels == (["a"] if found.state == "done" else [])


def test_a_cancel_after_the_end_changes_nothing(scheduler: Scheduler) -> None:
    done = over(scheduler, scheduler.submit([DONE], ["a"], owner="ann"))
    scheduler.cancel(done.id)
    scheduler.leave(done.id)
    now = scheduler.status(done.id)
    assert now is not None and now.variants == done.variants


def test_a_process_that_the_system_killed_costs_its_own_run_alone(scheduler: Scheduler) -> None:
    found = over(scheduler, scheduler.submit([DONE, Request("dies"), Request("done-then-dies"), DONE], list("abcd")))
    assert [variant.what for variant in found.variants] == ["", "killed", "", ""]


def test_a_spare_that_died_in_the_meantime_is_no_loss(scheduler: Scheduler) -> None:
    scheduler.warm_up()
    spare = scheduler._spare
    assert spare is not None
    spare.kill()
    assert over(scheduler, scheduler.submit([DONE], ["a"])).variants[0].state == "done"


def test_a_process_that_dies_as_it_is_asked_again_is_no_loss_either(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system takes the idle one first when memory is short, between a look at it and the next request."""
    over(scheduler, scheduler.submit([DONE], ["a"]))
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


def test_while_it_closes_nothing_begins_and_nothing_stays(tmp_path: Path) -> None:
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
    assert scheduler._spare is None
    for each in (*orders, *begun):
        order = scheduler._jobs.get(each.id)
        assert order is None or (order.status.is_over and order.worker is None)
    with pytest.raises(Closing):
        scheduler.submit([DONE], ["too late"])
