"""Whose ranks the tab shows: of whoever started the page, of a table, or of what is open under ranks' names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from memviz.analysis.cache import cached_on
from memviz.ranks.numbers import Rank, once_more, rank_in_name
from memviz.ranks.places import Place
from memviz.ranks.reduce_rank import row_of
from memviz.ranks.row import FailedFile, RankRow
from memviz.ranks.together import Ranks, of_ranks
from memviz.trace.formats.own_labels import RANK_FACT
from memviz.trace.model import Trace
from memviz.ui.shell.context import Context
from memviz.ui.shell.session import Opened, Session

LEAST = 2
"""One rank has nobody beside it."""


@dataclass(frozen=True)
class Shown:
    job: Ranks
    keys: Mapping[int, str] = field(default_factory=dict)
    """Of those that are open, in the store."""
    is_given: bool = False
    """By whoever started the page: then any rank's file may be opened from where it lies."""
    is_open: bool = False
    """They are what this visitor has open, and no more."""


def open_ranks(context: Context, session: Session) -> dict[int, Opened]:
    """By number; of several of one rank, the one that a folder of them would be told by. Nothing is computed for it."""
    return {one.number: one.opened for one in reversed(_called_ranks(context, session))}


@dataclass(frozen=True)
class _Called:
    number: int
    source: str
    opened: Opened


def _called_ranks(context: Context, session: Session) -> list[_Called]:
    """The shortest names first, as where files are read from a folder."""
    found = []
    for opened in session.opened:
        trace = context.store.get(opened.key)
        number = None if trace is None else _number(trace)
        if trace is not None and number is not None:
            found.append(_Called(number, trace.about.source, opened))
    return sorted(found, key=lambda one: len(one.source))


def _once_more(context: Context, session: Session) -> tuple[FailedFile, ...]:
    """Nobody wonders why some of what is open is not among the ranks."""
    taken: dict[int, str] = {}
    left = []
    for one in _called_ranks(context, session):
        if one.number in taken:
            left.append(FailedFile(one.source, once_more(one.number, taken[one.number])))
        taken.setdefault(one.number, one.source)
    return tuple(left)


def has_ranks(context: Context, session: Session) -> bool:
    if context.given_ranks is not None or context.tables.get(session.table) is not None:
        return True
    return len(open_ranks(context, session)) >= LEAST


def shown_ranks(context: Context, session: Session) -> Shown | None:
    numbers = open_ranks(context, session)
    keys = {number: opened.key for number, opened in numbers.items()}
    if context.given_ranks is not None:
        return Shown(context.given_ranks, keys, is_given=True)
    if (brought := context.tables.get(session.table)) is not None:
        # Its rows name files of another machine, which are not opened; what is open here is.
        return Shown(brought.job, keys)
    rows = [(number, _row(context, opened)) for number, opened in sorted(numbers.items())]
    ranks = tuple(Rank(number, row) for number, row in rows if row is not None)
    if len(ranks) < LEAST:
        return None
    return Shown(of_ranks(ranks, _once_more(context, session)), keys, is_open=True)


def _row(context: Context, opened: Opened) -> RankRow | None:
    pair = context.of(opened)
    if pair is None:
        return None
    trace, device = pair
    return cached_on(trace, ("rank's row", device.name), lambda: row_of(trace, Place(trace.about.source), device.name))


def _number(trace: Trace) -> int | None:
    said = trace.about.facts.get(RANK_FACT, "")
    return int(said) if said.isascii() and said.isdigit() and len(said) < 10 else rank_in_name(trace.about.source)
