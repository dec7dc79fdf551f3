"""Several windows of one browser: what one of them does is no loss to another.

Each window is a session of its own, and all of them write one list of what to open after a reload.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gradio.context import LocalContext

from memviz.ui.shell.session import Session


class Windows:
    def __init__(self, page: Any) -> None:
        self._page = page
        self._browsers: dict[str, str] = {}
        """Of each session the browser it is in, by a name that only this browser knows."""

    def begin(self, browser: str) -> None:
        self._browsers[_asking()] = browser

    def forget(self, name: str) -> None:
        self._browsers.pop(name, None)

    def sessions(self) -> Iterator[tuple[str, Session]]:
        holder = getattr(self._page, "state_holder", None)
        for name, state in dict(holder.session_data if holder is not None else {}).items():
            yield from ((name, value) for value in list(state.state_data.values()) if isinstance(value, Session))

    def remembered(self, current: Session) -> list[list[str]]:
        """With what is open in the browser's other windows."""
        asking = _asking()
        browser = self._browsers.get(asking)
        opened = {opened_trace.key: opened_trace for opened_trace in current.opened}
        for name, session in self._others(asking):
            if browser and self._browsers.get(name) == browser:
                opened |= {
                    opened_trace.key: opened_trace for opened_trace in session.opened if opened_trace.key not in opened
                }
        return [[trace.key, trace.sample] for trace in opened.values()]

    def is_open_elsewhere(self, key: str) -> bool:
        return any(session.of(key) is not None for _, session in self._others(_asking()))

    def _others(self, asking: str) -> Iterator[tuple[str, Session]]:
        """Windows that are there: what was left stays known for a while."""
        is_here = self._page.open_pages.is_here
        return ((name, session) for name, session in self.sessions() if name != asking and is_here(name))


def _asking() -> str:
    """The session of the event that is being answered."""
    request: Any = LocalContext.request.get(None)
    return getattr(request, "session_hash", None) or ""
