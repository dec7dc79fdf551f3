"""Housekeeping by the clock: forgetting visitors who left, polling less, and waiting until nobody is busy.

Gradio's queue polls a thousand times a second, a twentieth of a core, even while the page is unused.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

from memviz import memory
from memviz.trace.limits import positive_setting
from memviz.ui.shell.temporary_files import drop_stale

SETTING = "MEMVIZ_KEEP_SECONDS"
_KEEP_SECONDS = 3600.0
_EVERY_SECONDS = 15.0
_HALF_OPEN_SECONDS = 60.0


def keep_seconds() -> float:
    """Return for how long the session of a visitor who left is kept."""
    return positive_setting(SETTING) or _KEEP_SECONDS


class Housekeeping:
    """Periodic cleanup of one page, while its server is up."""

    def __init__(self, page: Any, keep: float | None = None) -> None:
        self._page = page
        self._keep = keep_seconds() if keep is None else keep
        self._stop = threading.Event()
        self._silent: dict[int, float] = {}

    @asynccontextmanager
    async def while_up(self) -> AsyncIterator[None]:
        memory.limit_heap_cache()
        thread = threading.Thread(target=self._run, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(min(_EVERY_SECONDS, self._keep / 4)):
            # Gradio's tables may change during iteration; the next round then does it.
            with suppress(RuntimeError):
                self.tidy()

    def tidy(self) -> None:
        self._page.readings.forget()
        self._page.exports.forget()
        drop_stale()
        gone = self._forget_visitors()
        # Traces of visitors who left and are not forgotten yet are open too.
        open_keys = {opened.key for _, session in self._page.windows.sessions() for opened in session.opened}
        gone += self._page.store.forget(open_keys, self._keep)
        self._close_half_open()
        if gone:
            memory.give_back()

    def _forget_visitors(self) -> int:
        """Delete sessions of visitors who left. Gradio would keep the last ten thousand, with all their values."""
        holder, queue = self._page.state_holder, self._page._queue
        gone = [name for name in list(holder.session_data) if self._is_gone(name)]
        for name in gone:
            with holder.lock:
                holder.session_data.pop(name, None)
                holder.time_last_used.pop(name, None)
            queue.pending_messages_per_session.pop(name, None)
            queue.pending_event_ids_session.pop(name, None)
            self._page.open_pages.forget(name)
            self._page.windows.forget(name)
        return len(gone)

    def _is_gone(self, name: str) -> bool:
        pages, queue = self._page.open_pages, self._page._queue
        pending = queue.pending_event_ids_session.get(name, ())
        if pages.is_open(name) or any(event_id in queue.event_ids_to_events for event_id in list(pending)):
            return False
        used = self._page.state_holder.time_last_used.get(name)
        unused = time.time() - used.timestamp() if used is not None else self._keep
        return unused >= self._keep and (pages.is_gone(name, self._keep) or not pages.was_open(name))

    def _close_half_open(self) -> None:
        """Close connections that send no request: each takes one of the few that a server may have."""
        state = getattr(getattr(self._page, "server", None), "server_state", None)
        now = time.monotonic()
        connections = list(state.connections) if state else []
        waiting = {id(connection): connection for connection in connections if _is_half_open(connection)}
        self._silent = {key: self._silent.get(key, now) for key in waiting}
        for key, since in self._silent.items():
            if now - since > _HALF_OPEN_SECONDS:
                with suppress(RuntimeError):
                    waiting[key].loop.call_soon_threadsafe(partial(_close_if_half_open, waiting[key]))


def _is_half_open(connection: Any) -> bool:
    """Return True before the end of the first request's headers; between requests the server has its own timeout."""
    return (
        getattr(connection, "cycle", connection) is None
        and getattr(connection, "timeout_keep_alive_task", None) is None
        and getattr(connection, "transport", None) is not None
    )


def _close_if_half_open(connection: Any) -> None:
    if _is_half_open(connection):
        connection.transport.close()


_QUEUE_SECONDS = 0.01
_PROGRESS_SECONDS = 0.1


def poll_less_when_idle(page: Any) -> None:
    """Make the queue of a started page poll less; it reads these settings at each poll."""
    page._queue.sleep_when_free = max(_QUEUE_SECONDS, page._queue.sleep_when_free)
    page._queue.progress_update_sleep_when_free = _PROGRESS_SECONDS


_QUIET_SECONDS = 0.5
_LONGEST_SECONDS = 10.0
"""A page of many visitors is always busy."""
_LOOK_SECONDS = 0.1


async def wait_until_idle(is_busy: Callable[[], bool], is_wanted: Callable[[], bool]) -> bool:
    """Wait for a quiet moment, or the longest time. Return False as soon as the result is not wanted any more."""
    begun = busy = time.monotonic()
    while is_wanted():
        now = time.monotonic()
        if is_busy():
            busy = now
        if now - busy >= _QUIET_SECONDS or now - begun >= _LONGEST_SECONDS:
            return True
        await asyncio.sleep(_LOOK_SECONDS)
    return False
