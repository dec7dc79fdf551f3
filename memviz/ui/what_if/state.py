"""What a visitor asks on the What if tab, of the open trace and of those before."""

from __future__ import annotations

from dataclasses import dataclass

from memviz.ui.shell.session import MOST_OPEN
from memviz.ui.what_if.question import Question


@dataclass(frozen=True)
class WhatIfState:
    """What a visitor sees on this tab. Plain and frozen: every change is a new one."""

    key: str = ""
    question: Question = Question()
    turn: int = 0
    """Grows where the page itself fills the form in."""
    with_blocks: bool = False
    left: tuple[tuple[str, Question], ...] = ()
    """What was asked of other traces, by key, for whoever comes back to them."""

    def turned_to(self, key: str) -> tuple[WhatIfState, bool]:
        """And whether nothing was asked of that trace yet."""
        left = dict(self.left)
        if self.key:
            left[self.key] = self.question
        question = left.pop(key, None)
        kept = tuple(left.items())[-MOST_OPEN:]
        return WhatIfState(key, question or Question(), self.turn + 1, self.with_blocks, kept), question is None
