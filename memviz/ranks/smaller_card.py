"""Which rank would run out first on a smaller card, told from the rows: no file is read again.

Live bytes need their room whatever the allocator does: a rank whose live peak does not fit runs out. Reserved bytes it
can partly give back: where only those do not fit, a replay of that rank says (`replay --memory`), and here it is close.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from memviz.analysis.reserved.known import is_reserved_known
from memviz.ranks.numbers import Rank
from memviz.ranks.row import RankRow

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
class OnCard:
    card: Smaller
    fits: tuple[int, ...]
    close: tuple[int, ...]
    runs_out: tuple[int, ...]
    """By when: the step, and how far into it; then by what is lacking, the most first."""
    first: int | None
    """The first of those that run out; else of those that are close, the one that lacks most."""
    first_step: int | None
    """In which it has no more; None where that is only close, or where all fit."""
    lacks_bytes: int
    """What it needs more than there is, of live bytes; of reserved ones where these alone lack room, 0 where nobody
    knows how many these are."""
    replayed: tuple[int, ...] = ()
    """Ranks that were close by their rows, and of which a replay of their requests says whether they fit."""


def on_card(ranks: Sequence[Rank], card: Smaller) -> OnCard:
    words = {rank.number: fit(rank.row, card) for rank in ranks}
    close = sorted((rank for rank in ranks if words[rank.number] == "close"), key=_most_reserved)
    out = sorted((rank for rank in ranks if words[rank.number] == "no"), key=lambda rank: _when(rank, card))
    first = next(iter([*out, *close]), None)
    needs = 0 if first is None else first.row.peak_bytes if out else first.row.reserved_peak_bytes
    return OnCard(
        card=card,
        fits=tuple(rank.number for rank in ranks if words[rank.number] == "yes"),
        close=tuple(sorted(rank.number for rank in close)),
        runs_out=tuple(rank.number for rank in out),
        first=None if first is None else first.number,
        first_step=when(out[0].row, card)[0] if out else None,
        lacks_bytes=max(needs - card.usable_bytes, 0),
    )


def fit(row: RankRow, card: Smaller) -> Word:
    if row.peak_bytes > card.usable_bytes:
        return "no"
    is_known = is_reserved_known(row.peak_bytes, row.reserved_peak_bytes)
    return "yes" if is_known and row.reserved_peak_bytes <= card.usable_bytes else "close"


def _most_reserved(rank: Rank) -> tuple[int, int]:
    return -rank.row.reserved_peak_bytes, rank.number


def _when(rank: Rank, card: Smaller) -> tuple[int, float, int, int]:
    return (*when(rank.row, card), -rank.row.peak_bytes, rank.number)


def when(row: RankRow, card: Smaller) -> tuple[int, float]:
    """The number of the step in which live bytes first go beyond, and how far into it."""
    curve = row.curve
    place = next(at for at, live in enumerate(curve.live) if live > card.usable_bytes)
    return curve.parts[place // curve.columns].number, place % curve.columns / curve.columns
