"""Questions that read or write whole files, in turn between those who ask: Gradio's own queue knows no visitors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import wraps
from typing import Any

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
