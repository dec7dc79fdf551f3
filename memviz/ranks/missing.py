"""Ranks of which there is no file: between the first and the highest that there is one of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from memviz.ranks.numbers import Rank, numbers_in, rank_in_name
from memviz.ranks.row import FailedFile

Span = tuple[int, int]
"""First and last."""


def missing(ranks: Sequence[Rank], failed: Sequence[FailedFile]) -> tuple[Span, ...]:
    """A file that cannot be read is there all the same. Numbers that nobody calls ranks may begin anywhere, and be
    those of processes: more gaps than files are no gaps."""
    by_name = numbers_in([*(rank.row.place for rank in ranks), *(one.place for one in failed)])
    told = (by_name[one.place] for one in failed)
    there = sorted({rank.number for rank in ranks} | {number for number in told if number is not None})
    if all(map(_is_called_one, ranks)):
        return tuple(_gaps(there))
    inner = tuple(_gaps(there, there[0]))
    return inner if sum(last - first + 1 for first, last in inner) <= len(there) else ()


def _is_called_one(rank: Rank) -> bool:
    return rank.row.said_rank is not None or rank_in_name(rank.row.place) is not None


def _gaps(numbers: Iterable[int], first: int = 0) -> Iterable[Span]:
    expected = first
    for number in numbers:
        if number > expected:
            yield expected, number - 1
        expected = number + 1
