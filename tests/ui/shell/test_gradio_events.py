"""Gradio: turns between visitors, answers in parts, outputs that stay, background jobs, and no written stubs."""

import asyncio
import inspect
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from copy import deepcopy
from itertools import product
from pathlib import Path
from typing import Any

import gradio as gr
import pytest
from gradio import component_meta
from gradio.context import LocalContext
from gradio.data_classes import PredictBodyInternal
from gradio.state_holder import SessionState

import memviz.ui  # noqa: F401 - it replaces the function
from memviz.errors import UsageError
from memviz.fair_lock import FairLock
from memviz.ui.shell.background_jobs import BackgroundJob, BackgroundJobs, BackgroundStopped
from memviz.ui.shell.gradio_events import FairQueueBlocks, QuickBlocks, ends_without_change, in_turn
from tests import forked
from tests.facts import missing


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


def test_one_who_asks_often_waits_behind_others_and_who_asks_too_often_hears_so() -> None:
    order, answers = asked(FairLock(), [("a", "a1"), ("a", "a2"), ("a", "a3"), ("b", "b1"), ("c", "c1")])
    assert order.index("b1") < order.index("a3")
    assert order.index("c1") < order.index("a3")
    assert answers == ["A1", "A2", "A3", "B1", "C1"]
    _, answers = asked(FairLock(), [("a", "a")] * 12 + [("b", "b")])
    # One is being answered, and eight wait.
    assert answers.count("A") == 9
    refused = [answer for answer in answers if answer not in ("A", "B")]
    assert refused and not any(missing(answer, "8 of your requests", "waiting") for answer in refused)
    assert answers[-1] == "B"
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
        # Run the second as far as it gets during the first: to its end only if it is another visitor's.
        await asyncio.wait([second], timeout=None if visitors == 2 else 0.2)
        may_end.set()
        await asyncio.gather(first, second)
        return [state[opened._id] for state in states]

    assert asyncio.run(ask()) == ([("slow", "quick")] if visitors == 1 else [("slow",), ("quick",)])


def test_an_answer_in_parts_ends_with_an_empty_one() -> None:
    @ends_without_change
    def answer(first: str, second: str) -> Iterator[list[Any]]:
        yield [first, ""]
        yield ["", second]

    assert list(answer("a", second="b")) == [["a", ""], ["", "b"], [gr.skip(), gr.skip()]]


_REPEATING = """
import inspect, json
from memviz.ui.app import build_app
from memviz.ui.shell.gradio_events import ends_without_change
from tests import forked

ended = ends_without_change(lambda: iter(())).__code__
answers = [each.fn for each in build_app().fns.values() if inspect.isgeneratorfunction(each.fn)]
print(json.dumps([len(answers), [each.__qualname__ for each in answers if each.__code__ is not ended]]))
"""


@pytest.mark.slow
def test_no_answer_of_the_page_says_its_last_part_again() -> None:
    count, repeating = json.loads(forked.run(["-c", _REPEATING], of=forked.with_page).stdout)
    assert count > 5
    assert repeating == []


SAID: list[Any] = [["words"], gr.skip(), gr.update(visible=False), None, {"a": 1}]


def postprocessed(kind: type[gr.Blocks], values: Any, count: int) -> tuple[list[Any], list[Any]]:
    """Return the outputs, and value and visibility of the session's components afterwards."""

    async def answer() -> tuple[list[Any], list[Any]]:
        # A page that is made where no loop runs makes some, and closes none.
        with kind() as page:
            outputs = [gr.JSON(), gr.State("first"), gr.Textbox("before")][:count]
            gr.Button().click(lambda: values, None, outputs)
        state = SessionState(page)
        # Gradio takes out of an update what it has read.
        done = await page.postprocess_data(page.fns[0], deepcopy(values), state)
        blocks = [state[output._id] for output in outputs]
        return done, [getattr(block, "visible", block) for block in blocks]

    return asyncio.run(answer())


MIXTURES = [list(each) for each in product(SAID, ["state", gr.skip()], ["words", gr.skip(), gr.update(value="new")])]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "count"), [*((each, 3) for each in MIXTURES), *((each, 1) for each in SAID), (gr.skip(), 3)]
)
def test_every_mixture_is_answered_as_gradio_does(values: Any, count: int) -> None:
    assert postprocessed(QuickBlocks, values, count) == postprocessed(gr.Blocks, values, count)


@pytest.mark.slow
def test_what_stays_is_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    make = gr.JSON.__init__
    monkeypatch.setattr(gr.JSON, "__init__", lambda self, *a, **k: made.append("made") or make(self, *a, **k))
    postprocessed(QuickBlocks, [gr.skip(), "state", gr.skip()], 3)
    assert made == ["made"]
    postprocessed(gr.Blocks, [gr.skip(), "state", gr.skip()], 3)
    assert made == ["made"] * 3


@pytest.mark.slow
def test_no_records_are_kept_of_events() -> None:
    async def ask() -> tuple[int, int]:
        with QuickBlocks() as page:
            gr.Button().click(lambda: None, None, None)
        queue = page._queue
        body = PredictBodyInternal(data=[], fn_index=0, session_hash="a", request=None)
        for _ in range(3):
            await queue.push(body, None, "")
        return len(queue), len(queue.event_analytics)

    assert asyncio.run(ask()) == (3, 0)


@pytest.mark.slow
def test_too_few_answers_are_gradios_to_refuse() -> None:
    with pytest.raises(ValueError, match="output"):
        postprocessed(QuickBlocks, [gr.skip()], 3)


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


ROOT = Path(__file__).parents[3]


def test_none_is_written_from_the_first_class_on(tmp_path: Path):
    package = tmp_path / "gradio"
    package.mkdir()
    (package / "component_meta.py").write_text("def create_or_modify_pyi(*_):\n    print('written')\n")
    (package / "__init__.py").write_text(
        "from gradio import component_meta\ncomponent_meta.create_or_modify_pyi(object, 'object', [])\nprint('here')\n"
    )
    for imports, said in (("gradio", "written\nhere\n"), ("memviz.ui, gradio", "here\n")):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT)))}
        code = [sys.executable, "-c", f"import {imports}"]
        done = subprocess.run(code, env=environment, capture_output=True, text=True, check=True)
        assert done.stdout == said


def test_the_installed_gradio_writes_by_the_function_that_is_replaced():
    assert component_meta.create_or_modify_pyi.__module__ == "memviz.ui"
    assert "create_or_modify_pyi(component_class, name, events)" in inspect.getsource(component_meta.ComponentMeta)
