"""The open traces and rank tables of all visitors, in memory, under keys that cannot be guessed.

Only the visitor's browser knows a key. The least recently used trace goes first when the store is full, and what no
visitor has open goes a while after its visitor. Caches of a trace's results are notified when it goes.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from memviz.analysis.cache import drop_large, size_in_bytes
from memviz.ranks.summary import RankSummary
from memviz.trace.model import Trace

GiB = 1 << 30
_IDLE_SECONDS = 60.0
_IDLE_SECONDS_PER_EVENT = 1e-3
"""Seconds without use. To compute dropped values again takes less than a thousandth of that."""


@dataclass
class _StoredTrace:
    trace: Trace
    bytes: int
    pinned: bool = False
    source_folders: tuple[str, ...] = ()
    used: float = field(default_factory=time.monotonic)
    idle_since: float = -1.0
    """Its `used` when its cached values were last dropped."""
    measured: float = -1.0
    """When its bytes were last counted."""

    def is_idle(self, now: float) -> bool:
        events = sum(len(device.events) for device in self.trace.devices)
        return self.idle_since != self.used and now - self.used >= max(_IDLE_SECONDS, _IDLE_SECONDS_PER_EVENT * events)


class TraceStore:
    def __init__(self, most_bytes: int = 6 * GiB, most_seconds: float = 12 * 3600) -> None:
        self.most_bytes = most_bytes
        self.most_seconds = most_seconds
        self._kept: OrderedDict[str, _StoredTrace] = OrderedDict()
        self._lock = threading.Lock()
        self._listeners: list[Callable[[str], None]] = []
        self._idle_listeners: list[Callable[[str], None]] = []

    def on_drop(self, listener: Callable[[str], None]) -> None:
        """Call `listener` with the key of each dropped trace."""
        self._listeners.append(listener)

    def on_idle(self, listener: Callable[[str], None]) -> None:
        """Call `listener` with the key of each trace that was not used for a while."""
        self._idle_listeners.append(listener)

    def add(self, trace: Trace, *, pinned: bool = False, source_folders: tuple[str, ...] = ()) -> str:
        """A `pinned` trace is given at startup, for all visitors, and cannot be closed.

        Sources in `source_folders` may be shown beside its stacks. An uploaded trace has none: it may name any path.
        """
        key = secrets.token_urlsafe(18)
        with self._lock:
            self._kept[key] = _StoredTrace(trace, size_in_bytes(trace), pinned, source_folders)
            gone = self._make_room()
        self._tell(gone)
        return key

    def get(self, key: str) -> Trace | None:
        with self._lock:
            entry = self._kept.get(key)
            if entry is None:
                return None
            entry.used = time.monotonic()
            self._kept.move_to_end(key)
            return entry.trace

    def source_folders(self, key: str) -> tuple[str, ...]:
        with self._lock:
            entry = self._kept.get(key)
            return entry.source_folders if entry is not None else ()

    def drop(self, key: str) -> None:
        with self._lock:
            is_dropped = key in self._kept and not self._kept[key].pinned
            if is_dropped:
                del self._kept[key]
        self._tell([key] if is_dropped else [])

    def forget(self, open_keys: Collection[str], left_seconds: float) -> bool:
        """Drop unpinned traces unused for `left_seconds` (`most_seconds` if held), and cached values of idle ones.

        Return True if that freed any memory.
        """
        now = time.monotonic()
        with self._lock:
            entries = dict(self._kept)
        idle = [key for key, entry in entries.items() if entry.is_idle(now)]
        for key in idle:
            entries[key].idle_since = entries[key].used
            entries[key].measured = -1.0
            drop_large(entries[key].trace)
            for listener in self._idle_listeners:
                listener(key)
        for entry in entries.values():
            # Views cache values on the trace, usually soon after its use.
            if entry.measured < entry.used + _IDLE_SECONDS:
                entry.bytes, entry.measured = size_in_bytes(entry.trace), now
        with self._lock:
            closed_seconds = min(left_seconds, self.most_seconds)
            gone = [
                key
                for key, entry in self._kept.items()
                if not entry.pinned and now - entry.used >= (self.most_seconds if key in open_keys else closed_seconds)
            ]
            for key in gone:
                del self._kept[key]
            gone += self._make_room()
        self._tell(gone)
        return bool(gone or idle)

    def _make_room(self) -> list[str]:
        """Drop the least recently used traces beyond the limits, but never the newest."""
        old = time.monotonic() - self.most_seconds
        total = sum(entry.bytes for entry in self._kept.values())
        gone = []
        for key in list(self._kept)[:-1]:
            entry = self._kept[key]
            if not entry.pinned and (total > self.most_bytes or entry.used < old):
                total -= entry.bytes
                del self._kept[key]
                gone.append(key)
        return gone

    def _tell(self, gone: list[str]) -> None:
        for key in gone:
            for listener in self._listeners:
                listener(key)


MOST_RANK_TABLES = 32
"""Limit for all visitors; the least recently used table goes first. A row takes some 8 KB."""
MOST_RANKS = 65_536
"""Limit of the ranks in all tables together."""


@dataclass(frozen=True)
class NamedRanks:
    name: str
    job: RankSummary


class RankTables:
    def __init__(self) -> None:
        self._kept: OrderedDict[str, NamedRanks] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, name: str, job: RankSummary) -> str:
        key = f"ranks-{secrets.token_urlsafe(18)}"
        with self._lock:
            self._kept[key] = NamedRanks(name, job)
            count = sum(len(table.job.ranks) for table in self._kept.values())
            while len(self._kept) > 1 and (len(self._kept) > MOST_RANK_TABLES or count > MOST_RANKS):
                count -= len(self._kept.popitem(last=False)[1].job.ranks)
        return key

    def get(self, key: str) -> NamedRanks | None:
        with self._lock:
            table = self._kept.get(key)
            if table is not None:
                self._kept.move_to_end(key)
            return table

    def drop(self, key: str) -> None:
        with self._lock:
            self._kept.pop(key, None)
