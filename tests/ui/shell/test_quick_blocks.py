"""Outputs that stay are answered as Gradio answers them, and their components not made again. Nothing is recorded."""

from __future__ import annotations

import asyncio
from copy import deepcopy
from itertools import product
from typing import Any

import gradio as gr
import pytest
from gradio.data_classes import PredictBodyInternal
from gradio.state_holder import SessionState

from memviz.ui.shell.gradio_events import QuickBlocks

pytestmark = pytest.mark.slow

SAID: list[Any] = [["words"], gr.skip(), gr.update(visible=False), None, {"a": 1}]


def answered(kind: type[gr.Blocks], values: Any, count: int) -> tuple[list[Any], list[Any]]:
    """With what the session's components are then: their values and whether they are seen."""

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


@pytest.mark.parametrize("values", [*product(SAID, ["state", gr.skip()], ["words", gr.skip(), gr.update(value="new")])])
def test_every_mixture_is_answered_as_gradio_does(values: tuple[Any, ...]) -> None:
    assert answered(QuickBlocks, list(values), 3) == answered(gr.Blocks, list(values), 3)


@pytest.mark.parametrize("value", SAID)
def test_so_is_one_output_alone(value: Any) -> None:
    assert answered(QuickBlocks, value, 1) == answered(gr.Blocks, value, 1)


def test_one_skip_stands_for_all() -> None:
    assert answered(QuickBlocks, gr.skip(), 3) == answered(gr.Blocks, gr.skip(), 3)
    assert answered(QuickBlocks, gr.skip(), 3)[0] == [gr.skip(), None, gr.skip()]


def test_what_stays_is_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    make = gr.JSON.__init__
    monkeypatch.setattr(gr.JSON, "__init__", lambda self, *a, **k: made.append("made") or make(self, *a, **k))
    answered(QuickBlocks, [gr.skip(), "state", gr.skip()], 3)
    assert made == ["made"]
    answered(gr.Blocks, [gr.skip(), "state", gr.skip()], 3)
    assert made == ["made"] * 3


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


def test_too_few_answers_are_gradios_to_refuse() -> None:
    with pytest.raises(ValueError, match="output"):
        answered(QuickBlocks, [gr.skip()], 3)
