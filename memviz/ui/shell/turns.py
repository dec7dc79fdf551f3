"""Who waits for whom: Gradio's own queue knows no visitors.

Questions that read or write whole files are answered in turn between those who ask. Events of one visitor that change
the same state are answered one after the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import wraps
from inspect import isgeneratorfunction
from typing import Any
from weakref import WeakKeyDictionary

import gradio as gr
from gradio.context import LocalContext

from memviz.errors import MemvizError
from memviz.fair_lock import FairLock
from memviz.ui.shell.presence import presence
from memviz.ui.shell.programs import in_words

_AT_ONCE = 2
"""More would only make each of them wait longer."""
_MOST_OF_ONE = 8
_LOOK_SECONDS = 0.05

IN_TURN: dict[str, Any] = {"concurrency_limit": 48}
"""For Gradio's queue. Who waits takes one of the places that `launch_options` makes, and no thread."""

_line = FairLock(_AT_ONCE)


def in_turn(answer: Callable[..., Any], line: FairLock = _line) -> Callable[..., Any]:
    """`answer` in a thread, once it is its visitor's turn. Whoever is gone gives the turn up."""

    @wraps(answer)
    async def wait_and_answer(*values: Any, **named: Any) -> Any:
        is_there = presence()
        turn = line.of(_visitor())
        with in_words():
            if line.waiting(turn.key) >= _MOST_OF_ONE:
                raise MemvizError(
                    f"{_MOST_OF_ONE} questions of yours wait here already. Ask again when one is answered."
                )
        line.stand_in(turn)
        try:
            while not line.has_come(turn):
                if not is_there():
                    return None
                await asyncio.sleep(_LOOK_SECONDS)
            return await asyncio.to_thread(answer, *values, **named)
        finally:
            line.leave(turn)

    return wait_and_answer


def _visitor() -> str:
    """Gradio's name of the window or the program that asks."""
    return getattr(LocalContext.request.get(None), "session_hash", None) or ""


class OrderlyBlocks(gr.Blocks):
    """A page whose queued events wait for each other where they read a `gr.State` and write it again.

    Gradio answers events side by side, each with the state as it was when the event came in. The last one to end would
    undo what the others changed: a trace that was chosen while another one was being opened, or the trace itself.
    """

    def __init__(self, *settings: Any, **named: Any) -> None:
        super().__init__(*settings, **named)
        self._changing: WeakKeyDictionary[Any, asyncio.Lock] = WeakKeyDictionary()
        """By the session."""

    async def process_api(self, block_fn: Any, inputs: list[Any], state: Any = None, *more: Any, **named: Any) -> Any:
        event = self.fns[block_fn] if isinstance(block_fn, int) else block_fn
        if state is None or not _changes_state(event):
            return await super().process_api(block_fn, inputs, state, *more, **named)
        async with self._changing.setdefault(state, asyncio.Lock()):
            return await super().process_api(block_fn, inputs, state, *more, **named)


def _changes_state(event: Any) -> bool:
    # Answers in parts run for minutes, and cancel each other by means of their own.
    if not event.queue or isgeneratorfunction(event.fn):
        return False
    return any(block.stateful and block in event.inputs for block in event.outputs)
