"""One run at a time on a device, in the order asked."""

from __future__ import annotations

import threading
import time

from memviz.runner.line import Line


def test_turns_come_in_order_and_never_together() -> None:
    line, seen, inside = Line(), [], []
    first_in, let_go = threading.Event(), threading.Event()

    def use(name: str) -> None:
        with line.turn() as mine:
            assert mine
            inside.append(name)
            assert inside == [name]
            first_in.set()
            let_go.wait(5)
            seen.append(name)
            inside.remove(name)

    threads = []
    for name in "abc":
        threads.append(threading.Thread(target=use, args=(name,)))
        threads[-1].start()
        first_in.wait(5)
        time.sleep(0.05)
    let_go.set()
    for each in threads:
        each.join(5)
    assert seen == ["a", "b", "c"]


def test_those_who_wait_hear_how_many_are_before_them_and_can_give_up() -> None:
    line, told, stop = Line(), [], threading.Event()
    with line.turn() as mine:
        assert mine

        def wait() -> None:
            with line.turn(told.append, stop.is_set) as got:
                told.append(got)

        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.05)
        stop.set()
        thread.join(5)
    assert told == [1, False]
    with line.turn() as mine:
        assert mine


def test_a_turn_ends_with_an_exception_too() -> None:
    line = Line()
    try:
        with line.turn():
            raise RuntimeError
    except RuntimeError:
        pass
    with line.turn() as mine:
        assert mine
