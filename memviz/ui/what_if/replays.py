"""Replays that visitors asked for, limited in time and cached for a while.

A replay is reached by its trace's key, or by a name of its own that cannot be guessed. The least recently used goes
first.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from memviz.allocator.context import OVERHEAD_BYTES
from memviz.allocator.event_replay import Progress
from memviz.allocator.replay_result import Replayed
from memviz.allocator.replayer import CardMemory, Replayer, WhatIf
from memviz.allocator.search import Search, search
from memviz.allocator.settings import NEWEST, Release, Settings
from memviz.analysis.cache import drop_large, size_in_bytes
from memviz.errors import MemvizError
from memviz.trace.limits import positive_setting
from memviz.trace.model import DeviceTrace, Trace
from memviz.ui.components.component import requested_trace
from memviz.ui.shell.session import Context

SECONDS_SETTING = "MEMVIZ_MAX_REPLAY_SECONDS"
_LEAST_SECONDS = 10.0
_EVENTS_A_SECOND = 10_000
"""A search of all settings that matter takes a second for 25,000 of them."""
UNASKED_SECONDS = 5.0
"""For what nobody asked for."""


class TooLong(MemvizError):
    """It was given up."""


def most_seconds(device: DeviceTrace, environment: Mapping[str, str] = os.environ) -> float:
    """Return the CPU seconds that one question may take in all."""
    return positive_setting(SECONDS_SETTING, environment) or _LEAST_SECONDS + len(device.events) / _EVENTS_A_SECOND


def within(seconds: float, progress: Progress | None = None) -> Progress:
    """Limit this thread's CPU time from now on: the returned callback raises TooLong at its first call after that."""
    end = time.thread_time() + seconds

    def tell(done: int, total: int) -> None:
        if time.thread_time() > end:
            reason = f"The replay takes longer than the limit of {seconds:g} seconds here."
            raise TooLong(f"{reason} If you trust the file, raise {SECONDS_SETTING}, or use `python -m memviz replay`.")
        if progress is not None:
            progress(done, total)

    return tell


GiB = 1 << 30
T = TypeVar("T")
_SIZED_UNASKED = 200_000
"""Events up to which the smallest card is found for every question."""


@dataclass(frozen=True)
class Terms:
    """Conditions of a question other than its settings."""

    card: CardMemory | None = None
    release: Release = NEWEST
    """Whose settings a search tries."""
    overhead_bytes: int = OVERHEAD_BYTES
    """Taken from the cards of the usual sizes."""


@dataclass
class _CachedResult:
    result: Any
    trace: Trace | None
    """The trace whose memory the result holds."""
    bytes: int
    name: str = field(default_factory=lambda: secrets.token_urlsafe(18))


class Replays:
    def __init__(self, context: Context, most_bytes: int = GiB) -> None:
        self._context = context
        self._most_bytes = most_bytes
        self._kept: OrderedDict[Hashable, _CachedResult] = OrderedDict()
        self._lock = threading.Lock()
        context.store.on_drop(self._forget)
        context.store.on_idle(self._drop_views)

    def replayer(self, key: str) -> Replayer:
        """Return the shared source of all replays of one trace."""

        find = self._context.find
        return self._once((key, "replayer"), lambda: _CachedReplayer(self, key, *requested_trace(find, {"key": key})))

    def cached(self, key: Hashable, replay: Callable[[], Replayed]) -> Replayed:
        return self._once(key, replay, lambda replayed: replayed.trace)

    def what_if(self, key: str, settings: Settings, terms: Terms, progress: Progress | None = None) -> WhatIf:
        card, overhead = terms.card, terms.overhead_bytes
        return self._once(
            (key, "answer", settings, card, overhead),
            lambda: self.replayer(key).what_if(settings, card, overhead_bytes=overhead, progress=progress),
        )

    def search(self, key: str, settings: Settings, terms: Terms, progress: Progress | None = None) -> Search:
        """`settings` are tried besides."""
        searched = self.known_search(key, terms)
        if searched is None or settings not in [tried.settings for tried in searched.tried]:
            searched = search(
                self.replayer(key),
                terms.card,
                also=settings,
                release=terms.release,
                overhead_bytes=terms.overhead_bytes,
                progress=progress,
            )
            self._keep((key, "search", terms), searched, None)
        return searched

    def known_search(self, key: str, terms: Terms) -> Search | None:
        """The last one there, whatever was asked for besides."""
        known: Search | None = self._get((key, "search", terms))
        return known

    def know_slow(self, key: str) -> None:
        """Replaying it took longer than anybody should wait who has not asked for it."""
        self._keep((key, "slow"), True, None)

    def is_slow(self, key: str) -> bool:
        return self._get((key, "slow")) is not None

    def find(self, key: str) -> tuple[Trace, DeviceTrace] | None:
        """For components: a replay's name or any other trace's key, a slash, and the device's name."""
        name = key.partition("/")[0]
        with self._lock:
            kept = next((kept for kept in self._kept.values() if kept.name == name), None)
        if kept is None or not isinstance(kept.result, Replayed):
            return self._context.find(key)
        return kept.result.trace, kept.result.trace.devices[0]

    def key_of(self, replayed: Replayed) -> str:
        """Return the key under which `find` has the replay; empty if it is no longer cached."""
        with self._lock:
            name = next((kept.name for kept in self._kept.values() if kept.result is replayed), "")
        return f"{name}/{replayed.trace.devices[0].name}" if name else ""

    def _forget(self, stored: str) -> None:
        """The trace is not open any more, so nobody can ask for its replays."""
        with self._lock:
            for key in [key for key in self._kept if _of_trace(key).partition("/")[0] == stored]:
                del self._kept[key]

    def _drop_views(self, stored: str) -> None:
        """Free the values cached for views of a trace's replays while it is idle; they can be computed again."""
        with self._lock:
            idle = [kept for key, kept in self._kept.items() if _of_trace(key).partition("/")[0] == stored]
        for kept in idle:
            if kept.trace is not None:
                drop_large(kept.trace)
                kept.bytes = size_in_bytes(kept.trace)

    def _get(self, key: Hashable) -> Any:
        with self._lock:
            kept = self._kept.get(key)
            if kept is None:
                return None
            self._kept.move_to_end(key)
            return kept.result

    def _once(self, key: Hashable, make: Callable[[], T], trace: Callable[[T], Trace] | None = None) -> T:
        """Return the cached result, or make and keep it. `trace` gives the trace whose memory the result holds."""
        result: T | None = self._get(key)
        if result is None:
            result = make()
            self._keep(key, result, trace(result) if trace else None)
        return result

    def _keep(self, key: Hashable, result: Any, trace: Trace | None) -> None:
        with self._lock:
            if self._context.find(_of_trace(key)) is None:
                # It was closed while this was worked out.
                return
            self._kept[key] = _CachedResult(result, trace, size_in_bytes(trace) if trace else 0)
            total = sum(kept.bytes for kept in self._kept.values())
            # The last few are on somebody's screen.
            for old in list(self._kept)[:-4]:
                if total <= self._most_bytes:
                    break
                total -= self._kept.pop(old).bytes


def _of_trace(key: Hashable) -> str:
    return str(key[0]) if isinstance(key, tuple) else ""


class _CachedReplayer(Replayer):
    """Keeps its replays among those of all visitors."""

    def __init__(self, replays: Replays, key: str, trace: Trace, device: DeviceTrace) -> None:
        super().__init__(trace, device)
        self._replays = replays
        self._key = key

    def as_recorded(self, progress: Progress | None = None) -> Replayed:
        plain = super().as_recorded
        return self._replays.cached((self._key, "recorded"), lambda: plain(progress))

    def replay(
        self,
        settings: Settings | None = None,
        card: CardMemory | None = None,
        *,
        afresh: bool = False,
        progress: Progress | None = None,
    ) -> Replayed:
        plain = super().replay
        return self._replays.cached(
            (self._key, settings, card, afresh), lambda: plain(settings, card, afresh=afresh, progress=progress)
        )

    def smallest_for(
        self, replayed: Replayed, overhead_bytes: int = OVERHEAD_BYTES, progress: Progress | None = None
    ) -> CardMemory | None:
        """Return None for long recordings, where it takes a search of several replays."""
        if len(self.device.events) > _SIZED_UNASKED:
            return None
        return super().smallest_for(replayed, overhead_bytes, progress)
