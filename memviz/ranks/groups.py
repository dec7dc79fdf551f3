"""Ranks that need the same, and those that stand out from them.

Ranks of one kind (a pipeline's stage, a data-parallel copy) need the same to the byte, or nearly, where what they are
given differs. So groups are what lies close together among the peaks; how close is taken from the ranks themselves.
A rank stands out where few are like it, many are like one another, and it is further from their median than their own
differences explain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from memviz.analysis.purpose.categories import SAYS_NOTHING
from memviz.ranks.differences import REST, NamedDelta, by_category, by_site, bytes_apart
from memviz.ranks.numbers import Rank

_LEAST_GAP, _MOST_GAP = 0.001, 0.02
"""Of the highest peak: nearer ranks are always of one group, farther ones never."""
_GAPS = 8
"""Times the usual distance from one rank to the next."""
_OTHERWISE = 0.1
"""Of a peak: ranks of one height that are made of other things by so much are no equals."""
_FEW = 0.05
"""Of the ranks of a group: so few beside it are exceptions to it, more are a group of another kind."""
_DEVIATIONS = 6
_NEAREST = 3
"""Of the norm's own deviation: from the median, and from the nearest of the norm."""
_SIGMA = 1.4826
"""Median deviations in a standard deviation."""
_MOST_NORMS = 64
_CAUSES = 8


@dataclass(frozen=True)
class RankGroup:
    ranks: tuple[int, ...]
    median_rank: int
    """One of them."""
    peak_bytes: int
    """Of the median rank."""
    least_bytes: int
    most_bytes: int


@dataclass(frozen=True)
class Outlier:
    rank: int
    against: int
    """The median rank of the group it is nearest to."""
    delta_bytes: int
    because: tuple[NamedDelta, ...]
    """By site. They add up to the difference."""
    categories: tuple[NamedDelta, ...] = ()
    """They add up to it, too."""

    @property
    def chief_category(self) -> NamedDelta | None:
        """The largest that goes the way of the whole and explains something."""
        deltas = {one.delta_bytes for one in self.categories}
        # As much less of another category is the same tensors, which look different there.
        telling = (one for one in self.categories if one.name not in SAYS_NOTHING and -one.delta_bytes not in deltas)
        return max(self._along(tuple(telling)), key=lambda one: abs(one.delta_bytes), default=None)

    @property
    def chief_site(self) -> NamedDelta | None:
        """The largest that goes the way of the whole; None where several are as large.

        All that is left together may be more: it is many sites, each of them smaller.
        """
        along = self._along(self.because)
        ranked = sorted(along, key=lambda one: (one.name == REST, -abs(one.delta_bytes)))
        is_tied = len(ranked) > 1 and ranked[1].name != REST and ranked[0].delta_bytes == ranked[1].delta_bytes
        return None if is_tied or not ranked else ranked[0]

    def _along(self, parts: Sequence[NamedDelta]) -> list[NamedDelta]:
        return [one for one in parts if one.delta_bytes * self.delta_bytes > 0]


def grouped(ranks: Sequence[Rank]) -> tuple[tuple[RankGroup, ...], tuple[Outlier, ...]]:
    """Every rank is in one group, the largest group first; the outliers are those furthest out first."""
    parts = sorted((part for cluster in _clusters(ranks) for part in _alike(cluster)), key=len, reverse=True)
    usual = [part for part in parts if len(part) > 1][:_MOST_NORMS]
    if 2 * sum(map(len, usual)) < len(ranks):
        # All differ: then what is usual is the median of all.
        return _in_order(parts), _ranked(_far(ranks, [ranks]))
    outliers: list[Outlier] = []
    norms: list[list[Rank]] = []
    rest: list[list[Rank]] = []
    joining: list[tuple[list[Rank], list[Rank]]] = []
    for part in parts:
        beside = _norms_of(part, norms)
        if not beside:
            (norms if len(part) > 1 and len(norms) < _MOST_NORMS else rest).append(part)
            continue
        far = _far(part, beside)
        outliers += far
        names = {one.rank for one in far}
        joining.append((beside[0], [rank for rank in part if rank.number not in names]))
        rest.append([rank for rank in part if rank.number in names])
    # Only now: what joins a group is not what the others are held against.
    for norm, more in joining:
        norm += more
    return _in_order([*norms, *filter(None, rest)]), _ranked(outliers)


def _clusters(ranks: Sequence[Rank]) -> list[list[Rank]]:
    """By peak: from one to the next there is no more than the usual distance, many times over."""
    in_order = sorted(ranks, key=lambda rank: (rank.row.peak_bytes, rank.number))
    if not in_order:
        return []
    peaks = np.array([rank.row.peak_bytes for rank in in_order], dtype=np.float64)
    gaps, highest = np.diff(peaks), max(peaks[-1], 1.0)
    usual = float(np.median(gaps)) if len(gaps) else 0.0
    most = min(max(_GAPS * usual, _LEAST_GAP * highest), _MOST_GAP * highest)
    ends = [*(np.flatnonzero(gaps > most) + 1).tolist(), len(in_order)]
    return [in_order[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


def _alike(cluster: list[Rank]) -> list[list[Rank]]:
    """Of one height, apart by what they are made of."""
    kinds: list[list[Rank]] = []
    of_table: dict[object, list[Rank]] = {}
    for rank in cluster:
        table = rank.row.sites, rank.row.other_sites_bytes
        if table not in of_table:
            near = (kind for kind in kinds if _is_like(kind[0], rank))
            of_table[table] = next(near, [])
            if not of_table[table]:
                kinds.append(of_table[table])
        of_table[table].append(rank)
    return kinds


def _is_like(one: Rank, other: Rank) -> bool:
    return bytes_apart(one.row, other.row) <= _OTHERWISE * max(one.row.peak_bytes, 1)


def _norms_of(part: list[Rank], norms: list[list[Rank]]) -> list[list[Rank]]:
    """The groups beside which it is few, the one that is most like it first."""
    larger = [norm for norm in norms if len(part) <= max(1, _FEW * len(norm))]
    return sorted(larger, key=lambda norm: bytes_apart(part[0].row, _median(norm).row))


def _far(part: Sequence[Rank], norms: Sequence[Sequence[Rank]]) -> list[Outlier]:
    """Those of a part that no norm's own differences explain; against the first of them."""
    median = _median(norms[0])
    measured = [_Spread(norm) for norm in norms]
    far = [rank for rank in part if all(spread.is_far(rank) for spread in measured)]
    return [
        Outlier(
            rank=rank.number,
            against=median.number,
            delta_bytes=rank.row.peak_bytes - median.row.peak_bytes,
            because=by_site(rank.row, median.row, _CAUSES),
            categories=by_category(rank.row, median.row),
        )
        for rank in far
    ]


class _Spread:
    """How far the ranks of a norm lie from their median."""

    def __init__(self, norm: Sequence[Rank]) -> None:
        self.peaks = np.array(sorted(rank.row.peak_bytes for rank in norm), dtype=np.float64)
        self.median = float(self.peaks[(len(norm) - 1) // 2])
        self.deviation = _SIGMA * float(np.median(np.abs(self.peaks - self.median)))

    def is_far(self, rank: Rank) -> bool:
        """From the median, and from the nearest of them: the end of a row that has no gap is no exception."""
        peak, least = rank.row.peak_bytes, _LEAST_GAP * self.median
        others = np.abs(self.peaks - peak)
        # One that is itself of the norm is no neighbour of its own.
        nearest = float(np.partition(others, 1)[1]) if len(others) > 1 and not others.min() else float(others.min())
        return abs(peak - self.median) > max(_DEVIATIONS * self.deviation, least) and nearest > max(
            _NEAREST * self.deviation, least
        )


def _median(ranks: Sequence[Rank]) -> Rank:
    in_order = sorted(ranks, key=lambda rank: (rank.row.peak_bytes, rank.number))
    return in_order[(len(in_order) - 1) // 2]


def _in_order(parts: Sequence[Sequence[Rank]]) -> tuple[RankGroup, ...]:
    groups = [_group(part) for part in parts]
    return tuple(sorted(groups, key=lambda group: (-len(group.ranks), -group.peak_bytes, group.ranks)))


def _group(part: Sequence[Rank]) -> RankGroup:
    median, peaks = _median(part), [rank.row.peak_bytes for rank in part]
    numbers = tuple(sorted(rank.number for rank in part))
    return RankGroup(numbers, median.number, median.row.peak_bytes, min(peaks), max(peaks))


def _ranked(outliers: Sequence[Outlier]) -> tuple[Outlier, ...]:
    return tuple(sorted(outliers, key=lambda one: (-abs(one.delta_bytes), one.rank)))
