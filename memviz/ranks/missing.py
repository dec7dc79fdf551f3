"""Ranks of which there is no file: between the first and the highest that there is one of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from memviz.ranks.numbers import Rank, numbers_in
from memviz.ranks.row import FailedFile

Span = tuple[int, int]
"""First and last."""


def missing(ranks: Sequence[Rank], failed: Sequence[FailedFile]) -> tuple[Span, ...]:
    """A file that cannot be read is there all the same."""
    by_name = numbers_in([*(rank.row.place for rank in ranks), *(one.place for one in failed)])
    told = (by_name[one.place] for one in failed)
    there = {rank.number for rank in ranks} | {number for number in told if number is not None}
    return tuple(_gaps(sorted(there)))


def _gaps(numbers: Iterable[int]) -> Iterable[Span]:
    before = -1
    for number in numbers:
        if number > before + 1:
            yield before + 1, number - 1
        before = number
