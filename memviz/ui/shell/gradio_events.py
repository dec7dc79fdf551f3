"""Gradio's events: options that every tab passes, a queue fair between visitors, and less work for each event.

Gradio's queue knows no visitors, and for an output that does not change it would make its component again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from copy import copy
from functools import wraps
from inspect import isgeneratorfunction
from typing import Any, ParamSpec
from weakref import WeakKeyDictionary

import gradio as gr

from memviz.errors import MemvizError
from memviz.fair_lock import FairLock
from memviz.ui.shell.programs import with_worded_errors
from memviz.ui.shell.visitors import current_session, presence

Params = ParamSpec("Params")

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


def while_seen(
    tabs: gr.Tabs,
    tab: gr.Tab,
    changed: gr.State,
    looked_at: gr.State,
    draw: Callable[..., list[Any]],
    *,
    inputs: list[Any],
    outputs: list[Any],
) -> None:
    """Draw a tab when it is turned to, and when what it shows has `changed` meanwhile.

    Gradio reports leaving it only through `tabs`. What writes `looked_at` reads it as well, to take turns with changes.
    """

    def follow(is_looked_at: bool, *values: Any) -> list[Any]:
        return draw(*values) if is_looked_at else [gr.skip()] * len(outputs)

    def arrive(_was_looked_at: bool, *values: Any) -> list[Any]:
        return [True, *draw(*values)]

    def leave(_was_looked_at: bool, event: gr.SelectData) -> Any:
        return gr.skip() if event.value == tab.label else False

    changed.change(follow, [looked_at, *inputs], outputs, **PRIVATE)
    tab.select(arrive, [looked_at, *inputs], [looked_at, *outputs], **PRIVATE)
    tabs.select(leave, [looked_at], [looked_at], **PRIVATE)


def ends_without_change(answer: Callable[Params, Iterator[list[Any]]]) -> Callable[Params, Iterator[list[Any]]]:
    """End an answer in parts with a part that changes nothing.

    When it ends, Gradio sends the last part once more: over what other answers have said since. It must have one part
    at least, since Gradio empties the outputs of an answer that has none.
    """

    @wraps(answer)
    def ended(*args: Params.args, **kwargs: Params.kwargs) -> Iterator[list[Any]]:
        part: list[Any] = []
        for part in answer(*args, **kwargs):
            yield part
        yield [gr.skip()] * len(part)

    return ended


_AT_ONCE = 2
"""More at once would make each of them slower."""
_MOST_OF_ONE = 8
_LOOK_SECONDS = 0.05

IN_TURN: dict[str, Any] = {"concurrency_limit": 48}
"""For Gradio's queue. A waiting event takes one of the places that `launch_options` makes, and no thread."""

_lock = FairLock(_AT_ONCE)


def in_turn(answer: Callable[..., Any], line: FairLock = _lock) -> Callable[..., Any]:
    """Run `answer` in a thread, fair between visitors; a visitor who left loses the turn."""

    @wraps(answer)
    async def wait_and_answer(*args: Any, **kwargs: Any) -> Any:
        is_there = presence()
        turn = line.of(current_session())
        with with_worded_errors():
            if line.waiting(turn.key) >= _MOST_OF_ONE:
                raise MemvizError(
                    f"{_MOST_OF_ONE} of your requests are already waiting. Try again when one is answered."
                )
        line.enqueue(turn)
        try:
            while not line.try_enter(turn):
                if not is_there():
                    return None
                await asyncio.sleep(_LOOK_SECONDS)
            return await asyncio.to_thread(answer, *args, **kwargs)
        finally:
            line.leave(turn)

    return wait_and_answer


class FairQueueBlocks(gr.Blocks):
    """A page whose queued events wait for each other where they read a `gr.State` and write it again.

    Gradio answers events side by side, each with the state as it was when the event came in. The last one to end would
    undo what the others changed: a trace that was chosen while another one was being opened, or the trace itself.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._changing: WeakKeyDictionary[Any, asyncio.Lock] = WeakKeyDictionary()
        """Locks by session."""

    async def process_api(self, block_fn: Any, inputs: list[Any], state: Any = None, *args: Any, **kwargs: Any) -> Any:
        event = self.fns[block_fn] if isinstance(block_fn, int) else block_fn
        # Answers in parts run for minutes, and cancel each other by means of their own.
        waits = state is not None and event.queue and not isgeneratorfunction(event.fn)
        if not waits or not any(block.stateful and block in event.inputs for block in event.outputs):
            return await super().process_api(block_fn, inputs, state, *args, **kwargs)
        async with self._changing.setdefault(state, asyncio.Lock()):
            return await super().process_api(block_fn, inputs, state, *args, **kwargs)


class QuickBlocks(gr.Blocks):
    """A page that keeps no records of events, and makes no component again whose value does not change.

    Without it an opening takes the server a third more processor time, and a click on a sample 40 % more.
    """

    def queue(self, *args: Any, **kwargs: Any) -> Any:
        blocks = super().queue(*args, **kwargs)
        self._queue.ANALYTICS_MAX_EVENTS = 0
        return blocks

    async def postprocess_data(self, block_fn: Any, predictions: Any, state: Any) -> list[Any]:
        outputs = list(block_fn.outputs)
        values = _values(predictions, len(outputs))
        stays = [_is_skip(value) for value in values]
        if len(values) != len(outputs) or block_fn.batch or not any(stays):
            return await super().postprocess_data(block_fn, predictions, state)
        others = copy(block_fn)
        others.outputs = [output for output, same in zip(outputs, stays, strict=True) if not same]
        changed = [value for value, same in zip(values, stays, strict=True) if not same]
        # Of one output alone Gradio takes the value itself.
        predicted = changed[0] if len(changed) == 1 else changed
        answers = iter(await super().postprocess_data(others, predicted, state) if changed else [])
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
