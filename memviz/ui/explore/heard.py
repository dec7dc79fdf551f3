"""What was heard last of one visitor's choices in Explore.

Gradio answers several of a page's events side by side, each with what it knew when the event came in. An answer that
was overtaken while it was computed would speak of a moment or a trace that is not shown any more, and might come
last: so it is computed again, of what was heard meanwhile. Answers can also overtake each other on their way to the
browser: each has a number, and after an older one that arrives last the page asks for everything again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

from memviz.ui.explore.state import ExploreState
from memviz.ui.html.markup import tag
from memviz.ui.shell.session import Session

_NUMBERS = count()
"""Of all visitors: drawing the next one is atomic, and Gradio copies each visitor's `Heard`."""
_Now = tuple[Session, ExploreState, Mapping[str, Any]]


class Heard:
    """One a visitor. Each attribute is set by itself, as soon as an event comes in."""

    def __init__(self) -> None:
        self.session = Session()
        self.state = ExploreState()
        self.chosen: Mapping[str, Any] = {}
        """On the timeline."""

    def answered(self, answer: Callable[[Session, ExploreState, Mapping[str, Any]], list[Any]]) -> list[Any]:
        """The answer about what was heard last, and its number as HTML."""
        while True:
            now = self._now()
            # Before the last look at what was heard: a higher number never stands for an older answer.
            made = [*answer(*now), tag("i", data_mv_answer=next(_NUMBERS))]
            if all(old is new for old, new in zip(now, self._now(), strict=True)):
                return made

    def _now(self) -> _Now:
        return self.session, self.state, self.chosen
