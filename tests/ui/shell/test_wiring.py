"""How an event of the page reaches Gradio."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import gradio as gr

from memviz.ui.shell.gradio_events import in_parts
from tests import forked


def test_an_answer_in_parts_ends_with_an_empty_one() -> None:
    @in_parts
    def answer(first: str, second: str) -> Iterator[list[Any]]:
        yield [first, ""]
        yield ["", second]

    assert list(answer("a", second="b")) == [["a", ""], ["", "b"], [gr.skip(), gr.skip()]]


_REPEATING = """
import inspect, json
from memviz.ui.app import build_app
from memviz.ui.shell.gradio_events import in_parts
from tests import forked

ended = in_parts(lambda: iter(())).__code__
answers = [each.fn for each in build_app().fns.values() if inspect.isgeneratorfunction(each.fn)]
print(json.dumps([len(answers), [each.__qualname__ for each in answers if each.__code__ is not ended]]))
"""


def test_no_answer_of_the_page_says_its_last_part_again() -> None:
    count, repeating = json.loads(forked.run(["-c", _REPEATING], of=forked.with_page).stdout)
    assert count > 5
    assert repeating == []
