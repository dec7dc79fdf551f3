"""What the tabs of one page share: the store, and how a key becomes a trace and its device."""

from __future__ import annotations

from dataclasses import dataclass, field

from memviz.fair_lock import FairLock
from memviz.ranks.together import Ranks
from memviz.trace.model import DeviceTrace, Trace
from memviz.ui.shell.rank_tables import RankTables
from memviz.ui.shell.session import Opened, Session
from memviz.ui.shell.store import TraceStore

_READ_AT_ONCE = 2
"""More, of all visitors together, would only make each of them wait longer."""


@dataclass(frozen=True)
class Context:
    store: TraceStore
    programs: tuple[str, ...] = ()
    """Python files of whoever started the page, whose functions Run offers. Nobody who looks at it can name one."""
    given_ranks: Ranks | None = None
    """Of whoever started the page, for everybody who sees it."""
    tables: RankTables = field(default_factory=RankTables)
    """Of ranks, each of the visitor who brought it."""
    reading: FairLock = field(default_factory=lambda: FairLock(_READ_AT_ONCE))
    """Turns at reading files that come."""

    def find(self, key: str) -> tuple[Trace, DeviceTrace] | None:
        """`key` is the store's, a slash, and the device's name."""
        name, _, device = key.partition("/")
        trace = self.store.get(name)
        matching = [candidate for candidate in trace.devices if candidate.name == device] if trace is not None else []
        return (trace, matching[0]) if trace is not None and matching else None

    def of(self, opened: Opened | None) -> tuple[Trace, DeviceTrace] | None:
        return self.find(timeline_key(opened)) if opened is not None else None

    def current(self, session: Session) -> tuple[Trace, DeviceTrace] | None:
        return self.of(session.current)


def open_trace(store: TraceStore, trace: Trace, *, pinned: bool = False) -> Opened:
    return Opened.of(store.add(trace, pinned=pinned), trace)


def timeline_key(opened: Opened) -> str:
    return f"{opened.key}/{opened.device}"
