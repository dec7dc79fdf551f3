"""Tests of background jobs: ended by a newer one, with progress and errors."""

import threading
from typing import Any

import pytest

from memviz.errors import UsageError
from memviz.ui.shell.background_jobs import BackgroundJob, BackgroundJobs, BackgroundStopped


def test_a_new_question_ends_the_one_before() -> None:
    shop, begun, go_on = BackgroundJobs(), threading.Event(), threading.Event()

    def slow(progress: Any) -> str:
        begun.set()
        assert go_on.wait(600)
        progress(1, 2)
        return "late"

    first = shop.begin("ada", slow)
    assert begun.wait(600)
    second = shop.begin("ada", lambda progress: "soon")
    go_on.set()
    assert second.result() == "soon"
    with pytest.raises(BackgroundStopped):
        first.result()


def test_work_says_how_far_it_is_and_hands_on_what_it_raises() -> None:
    gate = threading.Semaphore(1)

    def half(progress: Any) -> None:
        progress(1, 2)
        raise UsageError("no")

    work = BackgroundJob(half, gate)
    with pytest.raises(UsageError, match="no"):
        work.result()
    assert (work.share, work.is_done(0)) == (0.5, True)


def test_others_are_not_stopped() -> None:
    shop = BackgroundJobs()
    work = shop.begin("ada", lambda progress: "hers")
    shop.stop("bob")
    assert work.result() == "hers"


def test_one_with_many_windows_waits_behind_another_visitor() -> None:
    shop, order, go_on = BackgroundJobs(at_once=1), [], threading.Event()

    def work(name: str) -> Any:
        def task(progress: Any) -> None:
            order.append(name)
            assert go_on.wait(600)

        return task

    first = shop.begin("window 0", work("many"), "ada")
    while not order:
        first.is_done(0.01)
    begun = [first]
    for number in range(1, 4):
        begun.append(shop.begin(f"window {number}", work("many"), "ada"))
        while sum(map(len, shop._turns._ring.values())) < number:
            first.is_done(0.01)
    begun.append(shop.begin("another", work("one"), "bob"))
    while sum(map(len, shop._turns._ring.values())) < 4:
        first.is_done(0.01)
    go_on.set()
    for each in begun:
        each.result()
    assert order == ["many", "one", "many", "many", "many"]
