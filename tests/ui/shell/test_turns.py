"""Questions about whole files, in turn between those who ask."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import gradio as gr
import pytest
from gradio.context import LocalContext
from gradio.state_holder import SessionState

from memviz.fair_lock import FairLock
from memviz.ui.shell.gradio_events import FairQueueBlocks, in_turn


class Visitor:
    def __init__(self, session_hash: str) -> None:
        self.session_hash = session_hash


async def ask(answer: Any, visitor: str, question: str) -> Any:
    LocalContext.request.set(Visitor(visitor))
    try:
        return await answer(question)
    except gr.Error as error:
        return error.message


def asked(line: FairLock, questions: list[tuple[str, str]]) -> tuple[list[str], list[Any]]:
    """The order in which they were answered, and the answers."""
    order: list[str] = []

    def answer(question: str) -> str:
        order.append(question)
        return question.upper()

    async def all_of_them() -> list[Any]:
        waits = in_turn(answer, line)
        return await asyncio.gather(*(asyncio.create_task(ask(waits, *each)) for each in questions))

    return order, asyncio.run(all_of_them())


def test_one_who_asks_often_waits_behind_others() -> None:
    order, answers = asked(FairLock(), [("a", "a1"), ("a", "a2"), ("a", "a3"), ("b", "b1"), ("c", "c1")])
    assert order.index("b1") < order.index("a3")
    assert order.index("c1") < order.index("a3")
    assert answers == ["A1", "A2", "A3", "B1", "C1"]


def test_who_asks_too_often_hears_so_and_nobody_else_does() -> None:
    _, answers = asked(FairLock(), [("a", "a")] * 12 + [("b", "b")])
    # One is being answered, and eight wait.
    assert answers.count("A") == 9
    refused = [answer for answer in answers if answer not in ("A", "B")]
    assert set(refused) == {"8 questions of yours wait here already. Ask again when one is answered."}
    assert answers[-1] == "B"


def test_a_fault_gives_the_turn_on() -> None:
    line = FairLock()

    def fails(question: str) -> str:
        raise ValueError(question)

    with pytest.raises(ValueError, match="no"):
        asyncio.run(in_turn(fails, line)("no"))
    assert asked(line, [("a", "after")])[1] == ["AFTER"]


@pytest.mark.parametrize("visitors", [1, 2])
def test_what_two_events_of_a_visitor_change_at_once_both_stays(visitors: int) -> None:
    """And another visitor waits for neither."""
    may_end = threading.Event()

    def slow(opened: tuple[str, ...]) -> tuple[str, ...]:
        assert may_end.wait(60)
        return (*opened, "slow")

    def quick(opened: tuple[str, ...]) -> tuple[str, ...]:
        return (*opened, "quick")

    async def ask() -> list[Any]:
        with FairQueueBlocks() as page:
            opened = gr.State(())
            for answer in (slow, quick):
                gr.Button().click(answer, opened, opened)
        states = [SessionState(page) for _ in range(visitors)]
        first = asyncio.create_task(page.process_api(0, [None], state=states[0]))
        second = asyncio.create_task(page.process_api(1, [None], state=states[-1]))
        # As far as it comes beside the first one: to its end only where it is another visitor's.
        await asyncio.wait([second], timeout=None if visitors == 2 else 0.2)
        may_end.set()
        await asyncio.gather(first, second)
        return [state[opened._id] for state in states]

    assert asyncio.run(ask()) == ([("slow", "quick")] if visitors == 1 else [("slow",), ("quick",)])
