"""Orders: a baseline and its variants, one order at a time, each variant ending done or failed whatever happens."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from memviz.runner.desk import Desk, Standing, Variant
from memviz.runner.request import Request

TINY = {"sequence": "64", "dim": "64", "layers": "2"}


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk(timeout=120)
    yield desk
    desk.close()


def request(**changes: str) -> Request:
    return Request("feed_forward", {**TINY, **changes}, numerics=False)


def over(desk: Desk, standing: Standing) -> Standing:
    until = time.monotonic() + 120
    while not standing.is_over:
        assert time.monotonic() < until
        found = desk.standing(standing.id, newer_than=standing.version, wait=1)
        assert found is not None
        standing = found
    return standing


def test_variants_share_one_process_and_what_is_done_is_told(desk: Desk, tmp_path: Path) -> None:
    finished: list[Variant] = []
    wide = over(desk, desk.order([request(), request(dim="128")], ["a", "b"], finished.append))
    assert [each.state for each in wide.variants] == ["done", "done"]
    assert [each.label for each in finished] == ["a", "b"]
    first, second = (each.run for each in wide.variants)
    assert first is not None and second is not None
    assert first.weights_bytes < second.weights_bytes
    for each in wide.variants:
        assert each.file is not None and each.file.is_file()


def test_a_process_that_dies_takes_nobody_along(desk: Desk, tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text("import os\n\ndef killed():\n    os.kill(os.getpid(), 9)\n")
    requests = [request(), Request(f"{own}:killed"), request(dim="128")]
    found = over(desk, desk.order(requests, ["a", "b", "c"]))
    assert [(each.state, each.what) for each in found.variants] == [("done", ""), ("failed", "killed"), ("done", "")]
    assert "SIGKILL" in found.variants[1].phase


def test_orders_wait_for_each_other_and_can_be_cancelled(desk: Desk, tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text("import time\n\ndef endless():\n    while True:\n        time.sleep(0.1)\n")
    first = desk.order([Request(f"{own}:endless")], ["endless"])
    waiting = desk.order([request()], ["waits"])
    until = time.monotonic() + 20
    while (now := desk.standing(waiting.id)) is not None and not now.before:
        assert time.monotonic() < until
        time.sleep(0.05)
    assert now is not None and now.variants[0].state == "waiting"
    desk.cancel(first.id)
    assert over(desk, first).variants[0].what == "cancelled"
    assert over(desk, waiting).variants[0].state == "done"


def test_one_that_waits_can_be_cancelled_too(desk: Desk, tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text("import time\n\ndef endless():\n    time.sleep(600)\n")
    first = desk.order([Request(f"{own}:endless")], ["endless"])
    waiting = desk.order([request()], ["waits"])
    desk.cancel(waiting.id)
    assert over(desk, waiting).variants[0].what == "cancelled"
    desk.cancel(first.id)
    over(desk, first)


def test_an_unknown_order_is_nobodys(desk: Desk) -> None:
    assert desk.standing("guess") is None
    desk.cancel("guess")
