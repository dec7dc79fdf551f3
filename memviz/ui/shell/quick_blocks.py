"""What Gradio does at every event though nobody needs it, left out: all visitors' events are answered in one process.

An output that is to stay as it is costs nothing. Gradio makes its component anew, with the same arguments, and
describes it twice; of what a page shows, most stays at most events. And no records are kept of who asked what, of which
Gradio makes a table with sums after each event: of ten thousand events, once a page has been up for long.
"""

from __future__ import annotations

from copy import copy
from typing import Any

import gradio as gr


class QuickBlocks(gr.Blocks):
    def queue(self, *settings: Any, **named: Any) -> Any:
        made = super().queue(*settings, **named)
        self._queue.ANALYTICS_MAX_EVENTS = 0
        return made

    async def postprocess_data(self, block_fn: Any, predictions: Any, state: Any) -> list[Any]:
        outputs = list(block_fn.outputs)
        values = _values(predictions, len(outputs))
        stays = [_is_skip(value) for value in values]
        if len(values) != len(outputs) or block_fn.batch or not any(stays):
            return await super().postprocess_data(block_fn, predictions, state)
        others = copy(block_fn)
        others.outputs = [output for output, same in zip(outputs, stays, strict=True) if not same]
        said = [value for value, same in zip(values, stays, strict=True) if not same]
        # Of one output alone Gradio takes the value itself.
        given = said[0] if len(said) == 1 else said
        answers = iter(await super().postprocess_data(others, given, state) if said else [])
        return [
            (None if output.stateful else gr.skip()) if same else next(answers)
            for output, same in zip(outputs, stays, strict=True)
        ]


def _values(predictions: Any, count: int) -> list[Any]:
    """One for each output, where they come so."""
    if _is_skip(predictions):
        return [predictions] * count
    if count == 1:
        return [predictions]
    return list(predictions) if isinstance(predictions, list | tuple) else []


def _is_skip(value: Any) -> bool:
    return type(value) is dict and value == gr.skip()
