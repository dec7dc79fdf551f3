"""Orders: a baseline and its variants, one order at a time; each variant ends as done or failed."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from memviz.runner.jobs.service import Crowded, NoRoom, Scheduler, Variant
from memviz.runner.jobs.worker_process import Worker
from memviz.runner.request import Request
from tests.runner.processes import PATIENCE_SECONDS, over, running, wait_until

DONE = Request("done")
TINY = {"sequence": "64", "dim": "64", "layers": "2"}


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    with contextlib.closing(Scheduler(timeout=PATIENCE_SECONDS)) as made:
        yield made


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> Request:
    """A request to a fake worker, so that tests wait for nothing else."""
    monkeypatch.setattr(Worker, "module", "tests.runner.fake_worker")
    return Request("endless")


def request(**changes: str) -> Request:
    return Request("feed_forward", {**TINY, **changes}, numerics=False)


def test_variants_share_one_process_and_what_is_done_is_told(scheduler: Scheduler, tmp_path: Path) -> None:
    finished: list[Variant] = []

    def keep(each: Variant) -> str:
        finished.append(each)
        return "" if each.label == "a" else "The disk is full."

    wide = over(scheduler, scheduler.submit([request(), request(dim="128")], ["a", "b"], keep))
    assert [variant.state for variant in wide.variants] == ["done", "done"]
    assert [each.label for each in finished] == ["a", "b"]
    assert [variant.amiss for variant in wide.variants] == ["", "The disk is full."]
    first, second = (variant.run for variant in wide.variants)
    assert first is not None and second is not None
    assert first.weights_bytes < second.weights_bytes
    for each in wide.variants:
        assert each.file is not None and each.file.is_file()


def test_who_asks_again_replaces_what_they_had_waiting(scheduler: Scheduler, endless: Request) -> None:
    first = scheduler.submit([endless], ["endless"], owner="ann")
    running(scheduler, first, 0)
    mine = [scheduler.submit([DONE], ["mine"], owner="ann") for _ in range(5)]
    other = scheduler.submit([DONE], ["other"], owner="bob")
    left = [scheduler.status(each.id) for each in mine[:-1]]
    assert all(each is not None and each.is_left for each in left)
    assert scheduler.newest_of("ann").id == mine[-1].id  # type: ignore[union-attr]
    assert (scheduler.newest_of(""), scheduler.newest_of("eve")) == (None, None)
    scheduler.cancel(first.id)
    assert [over(scheduler, each).variants[0].what for each in (*mine, other)] == ["cancelled"] * 4 + ["", ""]


def test_only_so_many_wait(endless: Request) -> None:
    with contextlib.closing(Scheduler(timeout=PATIENCE_SECONDS, most_waiting=2)) as scheduler:
        running(scheduler, scheduler.submit([endless], ["endless"], owner="a"), 0)
        for name in "bc":
            scheduler.submit([DONE], [name], owner=name)
        with pytest.raises(Crowded, match="2 other runs already wait"):
            scheduler.submit([DONE], ["d"], owner="d")
        again = scheduler.submit([DONE], ["b again"], owner="b")
        assert not again.is_over


def test_what_does_not_end_by_itself_is_stopped(scheduler: Scheduler, endless: Request) -> None:
    order = scheduler.submit([endless], ["endless"])
    running(scheduler, order, 0)
    scheduler.leave(order.id, stops=False)
    assert over(scheduler, order).variants[0].what == "cancelled"


def test_a_page_that_ends_leaves_nothing(endless: Request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    scheduler = Scheduler()
    worker = running(scheduler, scheduler.submit([endless], ["endless"]), 0)
    scheduler.warm_up()
    spare = scheduler._spare
    assert spare is not None
    assert (worker.is_alive, spare.is_alive) == (True, True)
    scheduler.close()
    assert (worker.is_alive, spare.is_alive) == (False, False)
    assert not list(tmp_path.glob("memviz-runs-*"))


def test_a_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.closing(Scheduler()) as scheduler:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
        with pytest.raises(NoRoom, match="cannot be written to .*missing"):
            scheduler.submit([DONE], ["a"], owner="ann")
        assert (scheduler.is_busy, scheduler.newest_of("ann")) == (False, None)


def test_orders_wait_for_each_other_and_can_be_cancelled(scheduler: Scheduler, endless: Request) -> None:
    first = scheduler.submit([endless], ["endless"])
    waiting = [scheduler.submit([DONE], [name]) for name in ("waits", "gives up")]
    wait_until(lambda: scheduler._jobs[waiting[1].id].status.before == 2)
    assert scheduler._jobs[waiting[1].id].status.variants[0].state == "waiting"
    scheduler.cancel(waiting[1].id)
    assert over(scheduler, waiting[1]).variants[0].what == "cancelled"
    scheduler.cancel(first.id)
    assert over(scheduler, first).variants[0].what == "cancelled"
    assert over(scheduler, waiting[0]).variants[0].state == "done"


def test_an_unknown_order_is_nobodys(scheduler: Scheduler) -> None:
    assert scheduler.status("guess") is None
    scheduler.cancel("guess")
