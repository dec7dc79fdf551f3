"""How an event of the page reaches Gradio: what every tab says when it wires one up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, ParamSpec

import gradio as gr

Asked = ParamSpec("Asked")

NO_PROGRESS: dict[str, Any] = {"show_progress": "hidden", "show_progress_on": []}
"""On no component: at every word on progress Gradio copies all that each of them holds, and all inside it."""
PRIVATE: dict[str, Any] = {
    **NO_PROGRESS,
    "api_visibility": "private",
    "concurrency_limit": None,
    "trigger_mode": "always_last",
}
"""Through the queue: only then does Gradio tell the tabs of a `gr.State` that has changed. What is clicked while the
answer before is on its way is answered after it (Gradio's `once` would drop it); `inTurn` in base.js sees to that."""
IN_PARTS: dict[str, Any] = {**PRIVATE, "trigger_mode": "multiple"}
"""For answers that come in parts, and for what must not be dropped: one is sent while the one before still runs."""


def in_parts(answer: Callable[Asked, Iterator[list[Any]]]) -> Callable[Asked, Iterator[list[Any]]]:
    """An answer in parts that ends with an empty one.

    When it ends, Gradio sends the last part once more: over what other answers have said since. It must have one part
    at least, since Gradio empties the outputs of an answer that has none.
    """

    @wraps(answer)
    def ended(*args: Asked.args, **named: Asked.kwargs) -> Iterator[list[Any]]:
        part: list[Any] = []
        for part in answer(*args, **named):
            yield part
        yield [gr.skip()] * len(part)

    return ended
