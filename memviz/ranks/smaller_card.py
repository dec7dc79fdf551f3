"""Which rank would run out first on a smaller card, told from the rows: no file is read again.

Live bytes need their room whatever the allocator does: a rank whose live peak does not fit runs out. Reserved bytes it
can partly give back: where only those do not fit, a replay of that rank says (`replay --memory`), and here it is close.
A rank that ran out when it was recorded needed more than its peak: how much more, its row does not say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from memviz.ranks.numbers import Rank
from memviz.ranks.row import RankRow
from memviz.trace.reserved_bytes import is_reserved_known
from memviz.units import count_text

Word = Literal["yes", "close", "no"]


@dataclass(frozen=True)
class Smaller:
    name: str
    card_bytes: int
    overhead_bytes: int
    """Set aside for the CUDA context."""

    @property
    def usable_bytes(self) -> int:
        return max(self.card_bytes - self.overhead_bytes, 0)


@dataclass(frozen=True)
class FirstStep:
    number: int
    words: str
    """'in step 3', 'before step 1'."""


@dataclass(frozen=True)
class OnCard:
    card: Smaller
    fits: tuple[int, ...]
    close: tuple[int, ...]
    runs_out: tuple[int, ...]
    """By when: the step, and how far into it; then by what is lacking, the most first."""
    first: int | None
    """The first of those that run out; else of those that are close, the one that lacks most."""
    first_step: FirstStep | None
    """In which it has no more; None where that is only close, where all fit, or where its recording has no steps."""
    lacks_bytes: int
    """What it needs more than there is, of live bytes; of reserved ones where these alone lack room, 0 where nobody
    knows how many these are."""
    replayed: tuple[int, ...] = ()
    """Ranks that were close by their rows, and of which a replay of their requests says whether they fit."""
    cut_short: tuple[int, ...] = ()
    """Of those that are close, the ones that ran out when they were recorded."""


def on_card(ranks: Sequence[Rank], card: Smaller) -> OnCard:
    words = {rank.number: fit(rank.row, card) for rank in ranks}
    close = sorted((rank for rank in ranks if words[rank.number] == "close"), key=_most_reserved)
    out = sorted((rank for rank in ranks if words[rank.number] == "no"), key=lambda rank: _when(rank, card))
    first = next(iter([*out, *close]), None)
    needs = 0 if first is None else asked_bytes(first.row) if out else first.row.reserved_peak_bytes
    return OnCard(
        card=card,
        fits=tuple(rank.number for rank in ranks if words[rank.number] == "yes"),
        close=tuple(sorted(rank.number for rank in close)),
        runs_out=tuple(rank.number for rank in out),
        first=None if first is None else first.number,
        first_step=step_of(out[0].row, when(out[0].row, card)[0]) if out else None,
        lacks_bytes=max(needs - card.usable_bytes, 0),
        cut_short=tuple(sorted(rank.number for rank in close if rank.row.ran_out)),
    )


def fit(row: RankRow, card: Smaller) -> Word:
    if asked_bytes(row) > card.usable_bytes:
        return "no"
    if row.ran_out:
        return "close"
    is_known = is_reserved_known(row.peak_bytes, row.reserved_peak_bytes)
    return "yes" if is_known and row.reserved_peak_bytes <= card.usable_bytes else "close"


def asked_bytes(row: RankRow) -> int:
    """The most that was to be live at once, with what was asked for in vain."""
    return max([row.peak_bytes, *(one.live_bytes + one.requested_bytes for one in row.ran_out)])


def _most_reserved(rank: Rank) -> tuple[int, int]:
    return -rank.row.reserved_peak_bytes, rank.number


def _when(rank: Rank, card: Smaller) -> tuple[int, float, int, int]:
    return (*when(rank.row, card), -asked_bytes(rank.row), rank.number)


def when(row: RankRow, card: Smaller) -> tuple[int, float]:
    """The number of the step in which live bytes first go beyond, or would have, and how far into it."""
    curve, usable = row.curve, card.usable_bytes
    live = (at for at, live in enumerate(curve.live) if live > usable)
    times = [
        (curve.parts[place // curve.columns].number, place % curve.columns / curve.columns) for place in islice(live, 1)
    ]
    asked = (one.event for one in row.ran_out if one.live_bytes + one.requested_bytes > usable)
    return min([*times, *(moment_of(row, event) for event in islice(asked, 1))])


def step_of(row: RankRow, number: int) -> FirstStep | None:
    """A part without a name is no step, but what comes before the first one or after the last."""
    parts = row.curve.parts
    place = next(place for place, part in enumerate(parts) if part.number == number)
    if parts[place].name:
        return FirstStep(number, f"in step {count_text(number)}")
    if len(parts) == 1:
        return None
    is_before = place + 1 < len(parts)
    beside = parts[place + 1 if is_before else place - 1].number
    return FirstStep(number, f"{'before' if is_before else 'after'} step {count_text(beside)}")


def moment_of(row: RankRow, event: int) -> tuple[int, float]:
    """The number of its step, and how far into it."""
    parts = row.curve.parts
    part = next((part for part in parts if event <= part.last_event), parts[-1])
    return part.number, (event - part.first_event) / max(part.last_event - part.first_event + 1, 1)
