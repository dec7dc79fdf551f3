"""BackgroundWork beside the page's own threads: it can be ended, says how far it is, and hands on what it raises."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from memviz.errors import UsageError
from memviz.ui.shell.background import BackgroundWork, Stopped, Workshop


def test_a_new_question_ends_the_one_before() -> None:
    shop, begun, go_on = Workshop(), threading.Event(), threading.Event()

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
    with pytest.raises(Stopped):
        first.result()


def test_work_says_how_far_it_is_and_hands_on_what_it_raises() -> None:
    gate = threading.Semaphore(1)

    def half(progress: Any) -> None:
        progress(1, 2)
        raise UsageError("no")

    work = BackgroundWork(half, gate)
    with pytest.raises(UsageError, match="no"):
        work.result()
    assert (work.share, work.is_done(0)) == (0.5, True)


def test_others_are_not_stopped() -> None:
    shop = Workshop()
    work = shop.begin("ada", lambda progress: "hers")
    shop.stop("bob")
    assert work.result() == "hers"
