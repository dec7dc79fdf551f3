"""Visitors: by which address they come, whether they still wait, and which pages and windows of theirs are open.

Each window is a session of its own, and all windows of a browser write one list of traces to open after a reload.
"""

from __future__ import annotations

import ipaddress
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from gradio.context import LocalContext
from starlette.types import Scope

from memviz.ui.shell.session import Session

_UNKNOWN = "unknown"


def visitor_of(scope: Scope) -> str:
    """Return the client's address. On a Space, that is the last public one in X-Forwarded-For: proxies are private."""
    client = scope.get("client")
    direct = str(client[0]) if client else _UNKNOWN
    if not os.environ.get("SPACE_ID"):
        return direct
    forwarded = [value.decode("latin-1") for name, value in scope.get("headers", ()) if name == b"x-forwarded-for"]
    for address in reversed(",".join(forwarded).split(",")):
        with suppress(ValueError):
            if ipaddress.ip_address(address.strip()).is_global:
                return address.strip()
    return direct


def presence() -> Callable[[], bool]:
    """Return a function that tells, from any thread, if the visitor is still connected. Call this at the event's start.

    Gradio drops an event when the stream of its visitor ends. It stops a generator only at its next part, and a
    function never.
    """
    blocks, event_id = LocalContext.blocks.get(None), LocalContext.event_id.get(None)
    queue = getattr(blocks, "_queue", None)
    event = getattr(queue, "event_ids_to_events", {}).get(event_id)
    return lambda: bool(getattr(event, "alive", True))


_MOST_REMEMBERED = 10_000


class OpenPages:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: Counter[str] = Counter()
        self._left: dict[str, float] = {}

    @contextmanager
    def of(self, page: str) -> Iterator[None]:
        with self._lock:
            self._open[page] += 1
        try:
            yield
        finally:
            with self._lock:
                self._open[page] -= 1
                if self._open[page] <= 0:
                    del self._open[page]
                    # As the newest, since the oldest go.
                    self._left.pop(page, None)
                    self._left[page] = time.monotonic()
                    while len(self._left) > _MOST_REMEMBERED:
                        self._left.pop(next(iter(self._left)))

    def is_open(self, page: str) -> bool:
        with self._lock:
            return page in self._open

    def was_open(self, page: str) -> bool:
        with self._lock:
            return page in self._open or page in self._left

    def is_gone(self, page: str, seconds: float) -> bool:
        """Return True if the page was open and closed so long ago. Programs that hold no connection are never gone."""
        with self._lock:
            left = self._left.get(page)
            return page not in self._open and left is not None and time.monotonic() - left >= seconds

    def forget(self, page: str) -> None:
        with self._lock:
            self._left.pop(page, None)


class Windows:
    def __init__(self, page: Any) -> None:
        self._page = page
        self._browsers: dict[str, str] = {}
        """The browser of each session, by a name that only this browser knows."""

    def begin(self, browser: str) -> None:
        self._browsers[current_session()] = browser

    def forget(self, name: str) -> None:
        self._browsers.pop(name, None)

    def sessions(self) -> Iterator[tuple[str, Session]]:
        holder = getattr(self._page, "state_holder", None)
        for name, state in dict(holder.session_data if holder is not None else {}).items():
            yield from ((name, value) for value in list(state.state_data.values()) if isinstance(value, Session))

    def opened_in_browser(self, current: Session) -> list[list[str]]:
        """Return what is open in this window and in the browser's other windows: key, sample, and a new name."""
        asking = current_session()
        browser = self._browsers.get(asking)
        opened = {trace.key: trace for trace in current.opened}
        tables = {current.table}
        for name, session in self._others(asking):
            if browser and self._browsers.get(name) == browser:
                for trace in session.opened:
                    opened.setdefault(trace.key, trace)
                tables.add(session.table)
        names = {trace.key: [trace.name] if trace.is_renamed else [] for trace in opened.values()}
        return [
            *([trace.key, trace.sample, *names[trace.key]] for trace in opened.values()),
            *([table, ""] for table in tables if table),
        ]

    def is_open_in_other_window(self, key: str) -> bool:
        return any(session.of(key) is not None for _, session in self._others(current_session()))

    def _others(self, asking: str) -> Iterator[tuple[str, Session]]:
        """Yield the sessions of other open windows; Gradio keeps those of closed ones for a while."""
        is_open = self._page.open_pages.is_open
        return ((name, session) for name, session in self.sessions() if name != asking and is_open(name))


def current_session() -> str:
    """Return Gradio's name of the window or program whose event is being answered."""
    return getattr(LocalContext.request.get(None), "session_hash", None) or ""
