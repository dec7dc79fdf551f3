"""A visitor's session: their open traces, how a key becomes a trace and its device, and links that restore a view.

A link names a sample by its name, an estimate of one by the sample and the action, and any other trace by a digest
of its key: only the visitor who has the key finds it again.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from memviz.analysis.cache import cached_on
from memviz.analysis.devices import choose_device
from memviz.fair_lock import FairLock
from memviz.figures.colouring import MEANINGS
from memviz.predictor.cards import common_cards, short_name
from memviz.ranks.summary import RankSummary
from memviz.results.headline import trace_name
from memviz.trace.model import DeviceTrace, Trace
from memviz.ui.shell.store import RankTables, TraceStore

MOST_OPEN = 64
MOST_COMPARED = 8
_LONGEST_NAME = 80


@dataclass(frozen=True)
class Opened:
    key: str
    """Key in the store; a secret of this visitor's browser."""
    name: str
    device: str
    devices: tuple[str, ...]
    sample: str = ""
    """The name of a sample in links, because everybody has them; of an estimate of one, with its action behind it."""
    is_renamed: bool = False

    @staticmethod
    def of(key: str, trace: Trace) -> Opened:
        devices = tuple(device.name for device in trace.devices)
        return Opened(key, trace_name(trace.about.source), choose_device(trace).name, devices)

    def named(self, name: str) -> Opened:
        """Return it under a visitor's own name, which comes from a browser; an empty one changes nothing."""
        name = " ".join(name.split())[:_LONGEST_NAME]
        return replace(self, name=name, is_renamed=True) if name else self


@dataclass(frozen=True)
class Refused:
    name: str
    reason: str
    turn: str = ""
    """The browser's number of the upload, by which it finds the refusal."""
    drop: int = 0
    """The browser's number of the drop that it was part of."""


@dataclass(frozen=True)
class Session:
    opened: tuple[Opened, ...] = ()
    chosen: str = ""
    compared: tuple[str, ...] = ()
    """Keys, baseline first."""
    refused: tuple[Refused, ...] = ()
    home: bool = False
    """Show the samples although traces are open."""
    table: str = ""
    """Key of the table of ranks that this visitor brought."""

    def of(self, key: str) -> Opened | None:
        return next((opened for opened in self.opened if opened.key == key), None)

    @property
    def current(self) -> Opened | None:
        return self.of(self.chosen)

    def with_opened(self, new: Opened) -> Session:
        """Choose the new trace; the first two are also compared."""
        opened = (*self.opened, new)[-MOST_OPEN:]
        compared = (*self.compared, new.key) if len(self.compared) < 2 else self.compared
        return replace(self, opened=opened, chosen=new.key, compared=compared, home=False)._valid()

    def with_refused(self, refused: Refused) -> Session:
        return replace(self, refused=(*self.refused, refused))

    def without_refused(self, before: int | None = None) -> Session:
        """Drop refusals, after a success. Those of drop `before` and later stay."""
        still = () if before is None else tuple(one for one in self.refused if one.drop >= before)
        return self if still == self.refused else replace(self, refused=still)

    def choosing(self, key: str) -> Session:
        return replace(self, chosen=key, home=False)._valid()

    def closing(self, key: str) -> Session:
        return replace(self, opened=tuple(opened for opened in self.opened if opened.key != key))._valid()

    def renaming(self, key: str, name: str, file_name: str) -> Session:
        """Give a trace a visitor's own name, or the name of its file again."""
        before = [replace(opened, name=file_name, is_renamed=False) for opened in self.opened if opened.key == key]
        changed = {opened.key: opened.named(name) for opened in before}
        return replace(self, opened=tuple(changed.get(opened.key, opened) for opened in self.opened))

    def on_device(self, key: str, device: str) -> Session:
        chosen = self.of(key)
        if chosen is None or device not in chosen.devices:
            return self
        changed = replace(chosen, device=device)
        return replace(self, opened=tuple(changed if opened is chosen else opened for opened in self.opened))

    def toggling(self, key: str) -> Session:
        """Add the trace to the end of the comparison, or remove it."""
        if key in self.compared:
            return replace(self, compared=tuple(other for other in self.compared if other != key))
        return replace(self, compared=(*self.compared, key)[-MOST_COMPARED:])._valid()

    def with_baseline(self, key: str) -> Session:
        rest = tuple(other for other in self.compared if other != key)
        return replace(self, compared=(key, *rest))._valid()

    def _valid(self) -> Session:
        keys = [opened.key for opened in self.opened]
        chosen = self.chosen if self.chosen in keys else (keys[-1] if keys else "")
        return replace(self, chosen=chosen, compared=tuple(key for key in self.compared if key in keys))


_READ_AT_ONCE = max(2, os.cpu_count() or 1)
"""More, of all visitors together, would only make each of them wait longer."""


@dataclass(frozen=True)
class Context:
    store: TraceStore
    programs: tuple[str, ...] = ()
    """Python files given at startup, whose functions Run offers. Visitors cannot add one."""
    given_ranks: RankSummary | None = None
    """Ranks given at startup, for every visitor."""
    tables: RankTables = field(default_factory=RankTables)
    """Uploaded tables of ranks, each visible to its visitor only."""
    reading: FairLock = field(default_factory=lambda: FairLock(_READ_AT_ONCE))
    """Turns at reading files that come."""

    def find(self, key: str) -> tuple[Trace, DeviceTrace] | None:
        """`key` is the store's, a slash, and the device's name."""
        name, _, device = key.partition("/")
        trace = self.store.get(name)
        matching = [candidate for candidate in trace.devices if candidate.name == device] if trace is not None else []
        return (trace, matching[0]) if trace is not None and matching else None

    def of(self, opened: Opened | None) -> tuple[Trace, DeviceTrace] | None:
        """Return the trace, under its visitor's own name for it, and the device."""
        pair = self.find(timeline_key(opened)) if opened is not None else None
        if pair is None or opened is None or not opened.is_renamed:
            return pair
        (trace, device), name = pair, opened.name
        renamed = cached_on(trace, ("renamed", name), lambda: replace(trace, about=replace(trace.about, source=name)))
        return renamed, device

    def current(self, session: Session) -> tuple[Trace, DeviceTrace] | None:
        return self.of(session.current)


def open_trace(
    store: TraceStore, trace: Trace, *, pinned: bool = False, source_folders: tuple[str, ...] = ()
) -> Opened:
    return Opened.of(store.add(trace, pinned=pinned, source_folders=source_folders), trace)


def timeline_key(opened: Opened | None) -> str:
    return f"{opened.key}/{opened.device}" if opened is not None else ""


def open_once(
    store: TraceStore, session: Session, trace: Trace, sample: str = "", source_folders: tuple[str, ...] = ()
) -> Session:
    """Choose the trace, and open it unless it is open already. `sample` is its name in links."""
    for opened in session.opened:
        stored = store.get(opened.key)
        if stored is not None and stored.about == trace.about:
            return session.choosing(opened.key)
    return session.with_opened(replace(open_trace(store, trace, source_folders=source_folders), sample=sample))


def open_derived_trace(
    store: TraceStore, session: Session, recording: str, derived: Trace, *, compared: bool, sample: str = ""
) -> Session:
    """Choose a derived trace, or compare it with its recording. `sample` is its name in links."""
    session = open_once(store, session.without_refused(), derived, sample, store.source_folders(recording))
    if compared and session.of(recording) is not None:
        return replace(session, compared=(recording, session.chosen))
    return session


_NUMBERS = ("at", "from", "to", "low", "high", "pin")
_CARDS = tuple(short_name(card.name) for card in common_cards())
_CHOICES = {"order": ("category", "age"), "colour": MEANINGS, "axis": ("event", "time"), "card": _CARDS}
SAMPLE = "sample:"
_WITH_ACTION = "+"


def link_name(opened: Opened) -> str:
    if opened.sample:
        return SAMPLE + opened.sample
    return hashlib.sha256(opened.key.encode()).hexdigest()[:12]


def estimate_name(sample: str, finding: str, kind: str) -> str:
    """Return `Opened.sample` of an estimate, or empty if only this visitor can reproduce it."""
    return _WITH_ACTION.join((sample, finding, kind)) if sample and _WITH_ACTION not in sample else ""


def parts_of_sample(name: str) -> tuple[str, dict[str, str]]:
    """The sample's file, and the action that an estimate of it is made with."""
    file, *action = name.split(_WITH_ACTION)
    return file, dict(zip(("finding", "kind"), action, strict=True)) if len(action) == 2 else {}


def find_by_link(session: Session, name: str) -> Opened | None:
    return next((opened for opened in session.opened if link_name(opened) == name), None)


def view_state(query: Mapping[str, str]) -> dict[str, Any]:
    """Return the view state that a link contains; invalid values are left out."""
    state: dict[str, Any] = {}
    for key in _NUMBERS:
        text = query.get(key, "")
        if text.lstrip("-").isdigit() and len(text) < 16:
            state[key] = int(text)
    for key, allowed in _CHOICES.items():
        if query.get(key) in allowed:
            state[key] = query[key]
    return state
