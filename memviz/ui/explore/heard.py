"""What was heard last of one visitor's choices in Explore.

Gradio answers several of a page's events side by side, each with what it knew when the event came in. An answer that
was overtaken while it was computed would speak of a moment or a trace that is not shown any more, and might come
last: so it is computed again, of what was heard meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from memviz.ui.explore.state import ExploreState
from memviz.ui.shell.session import Session

_Now = tuple[Session, ExploreState, Mapping[str, Any]]


class Heard:
    """One a visitor. Each attribute is set by itself, as soon as an event comes in."""

    def __init__(self) -> None:
        self.session = Session()
        self.state = ExploreState()
        self.chosen: Mapping[str, Any] = {}
        """On the timeline."""

    def answered(self, answer: Callable[[Session, ExploreState, Mapping[str, Any]], list[Any]]) -> list[Any]:
        while True:
            now = self._now()
            made = answer(*now)
            if all(old is new for old, new in zip(now, self._now(), strict=True)):
                return made

    def _now(self) -> _Now:
        return self.session, self.state, self.chosen
