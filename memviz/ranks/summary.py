"""Summary of many ranks: peaks, groups of equal ranks, outliers, and the sites that make the difference.

Ranks of one kind (a pipeline stage, a data-parallel copy) need the same to the byte, or nearly. So groups are peaks
that lie close together; how close is taken from the ranks themselves. An outlier has few ranks like it, while many
others are alike, and is further from their median than their own differences explain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from memviz.analysis.purpose.categories import SAYS_NOTHING
from memviz.errors import UsageError
from memviz.ranks.numbers import Rank, Span, missing, numbered, with_mesh_labels
from memviz.ranks.reduce_rank import MOST_COLUMNS, MOST_PARTS
from memviz.ranks.row import FailedFile, RankRow, Reduced

REST = "(all others)"


@dataclass(frozen=True)
class NamedDelta:
    name: str
    delta_bytes: int
    is_probable: bool = False
    """For a category: True if most of it, in both ranks, is only probably of that category."""

    @property
    def words(self) -> str:
        return f"probably {self.name}" if self.is_probable else self.name


def by_site(row: RankRow, other: RankRow, top: int | None = None) -> tuple[NamedDelta, ...]:
    """The largest first, what is left as `REST`; together they are the difference of the peaks."""
    mine = {site.key: site for site in row.sites}
    theirs = {site.key: site for site in other.sites}
    # Two machines may have the same program in different folders.
    alone = {site.label: site.key for site in row.sites if site.key not in theirs}
    same = {site.key: alone.get(site.label, site.key) for site in other.sites if site.key not in mine}
    deltas = {key: site.bytes for key, site in mine.items()}
    labels = {key: site.label for key, site in mine.items()}
    for key, site in theirs.items():
        name = same.get(key, key)
        deltas[name] = deltas.get(name, 0) - site.bytes
        labels.setdefault(name, site.label)
    changed = [NamedDelta(labels[key], delta) for key, delta in deltas.items() if delta]
    return _ranked(changed, row.other_sites_bytes - other.other_sites_bytes, top)


def by_category(row: RankRow, other: RankRow) -> tuple[NamedDelta, ...]:
    deltas: Counter[str] = Counter()
    doubt: Counter[str] = Counter()
    for parts, sign in ((row.categories, 1), (other.categories, -1)):
        for part in parts:
            deltas[part.kind] += sign * part.bytes
            doubt[part.kind] += 2 * part.probable_bytes - part.bytes
    return _ranked([NamedDelta(kind, delta, doubt[kind] > 0) for kind, delta in deltas.items() if delta], 0, None)


def _ranked(changed: list[NamedDelta], rest: int, top: int | None) -> tuple[NamedDelta, ...]:
    in_order = sorted(changed, key=lambda one: (-abs(one.delta_bytes), one.name))
    rest += sum(one.delta_bytes for one in in_order[len(in_order) if top is None else top :])
    return (*in_order[:top], *([NamedDelta(REST, rest)] if rest else []))


def bytes_apart(row: RankRow, other: RankRow) -> int:
    """How much of the two peaks is not the same, whichever has it."""
    return sum(abs(one.delta_bytes) for one in by_site(row, other))


_LEAST_GAP, _MOST_GAP = 0.001, 0.02
"""Shares of the highest peak: ranks closer than the first always share a group, ranks farther than the second never."""
_GAPS = 8
"""Times the usual distance from one rank to the next."""
_OTHERWISE = 0.1
"""Share of a peak by which the sites of two ranks of equal height may differ within a group."""
_FEW = 0.05
"""Share of a group's ranks: a smaller set beside it is an exception to it, a larger one is a group of another kind."""
_DEVIATIONS = 6
_NEAREST = 3
"""Limits in the norm's own deviations: distance from the median, and from the nearest rank of the norm."""
_SIGMA = 1.4826
"""Median deviations in a standard deviation."""
_MOST_NORMS = 64
_GROUP_CAUSES = 8


@dataclass(frozen=True)
class RankGroup:
    ranks: tuple[int, ...]
    median_rank: int
    """One of them."""
    peak_bytes: int
    """Peak memory of the median rank."""
    least_bytes: int
    most_bytes: int


@dataclass(frozen=True)
class PeakDifference:
    delta_bytes: int
    because: tuple[NamedDelta, ...]
    """Differences by site; they add up to the whole difference."""
    categories: tuple[NamedDelta, ...]
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


@dataclass(frozen=True, kw_only=True)
class Outlier(PeakDifference):
    rank: int
    against: int
    """The median rank of the group it is nearest to."""


def grouped(ranks: Sequence[Rank]) -> tuple[tuple[RankGroup, ...], tuple[Outlier, ...]]:
    """Every rank is in one group, the largest group first; the outliers are those furthest out first."""
    parts = sorted((part for cluster in _clusters(ranks) for part in _split_by_sites(cluster)), key=len, reverse=True)
    usual = [part for part in parts if len(part) > 1][:_MOST_NORMS]
    if 2 * sum(map(len, usual)) < len(ranks):
        # All differ: then what is usual is the median of all.
        return _in_order(parts), _causes_by_size(_far(ranks, [ranks]))
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
    return _in_order([*norms, *filter(None, rest)]), _causes_by_size(outliers)


def _clusters(ranks: Sequence[Rank]) -> list[list[Rank]]:
    """Split ranks by peak wherever the gap to the next is many times the usual one."""
    in_order = sorted(ranks, key=lambda rank: (rank.row.peak_bytes, rank.number))
    peaks = np.array([rank.row.peak_bytes for rank in in_order], dtype=np.float64)
    gaps, highest = np.diff(peaks), max(peaks[-1], 1.0)
    usual = float(np.median(gaps)) if len(gaps) else 0.0
    most = min(max(_GAPS * usual, _LEAST_GAP * highest), _MOST_GAP * highest)
    ends = [*(np.flatnonzero(gaps > most) + 1).tolist(), len(in_order)]
    return [in_order[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


def _split_by_sites(cluster: list[Rank]) -> list[list[Rank]]:
    """Split ranks of equal peaks by the sites they consist of."""
    kinds: list[list[Rank]] = []
    of_table: dict[object, list[Rank]] = {}
    for rank in cluster:
        table = rank.row.sites, rank.row.other_sites_bytes
        if table not in of_table:
            near = (
                kind
                for kind in kinds
                if bytes_apart(kind[0].row, rank.row) <= _OTHERWISE * max(kind[0].row.peak_bytes, 1)
            )
            of_table[table] = next(near, [])
            if not of_table[table]:
                kinds.append(of_table[table])
        of_table[table].append(rank)
    return kinds


def _norms_of(part: list[Rank], norms: list[list[Rank]]) -> list[list[Rank]]:
    """The groups beside which it is few, the one that is most like it first."""
    larger = [norm for norm in norms if len(part) <= max(1, _FEW * len(norm))]
    return sorted(larger, key=lambda norm: bytes_apart(part[0].row, _median(norm).row))


def _far(part: Sequence[Rank], norms: Sequence[Sequence[Rank]]) -> list[Outlier]:
    """Those of a part that no norm's own differences explain; against the first of them."""
    median = _median(norms[0])
    measured = [_Spread(norm) for norm in norms]
    return [
        Outlier(
            rank=rank.number,
            against=median.number,
            delta_bytes=rank.row.peak_bytes - median.row.peak_bytes,
            because=by_site(rank.row, median.row, _GROUP_CAUSES),
            categories=by_category(rank.row, median.row),
        )
        for rank in part
        if all(spread.is_far(rank) for spread in measured)
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
    groups = []
    for part in parts:
        median, peaks = _median(part), [rank.row.peak_bytes for rank in part]
        numbers = tuple(sorted(rank.number for rank in part))
        groups.append(RankGroup(numbers, median.number, median.row.peak_bytes, min(peaks), max(peaks)))
    return tuple(sorted(groups, key=lambda group: (-len(group.ranks), -group.peak_bytes, group.ranks)))


def _causes_by_size(outliers: Sequence[Outlier]) -> tuple[Outlier, ...]:
    return tuple(sorted(outliers, key=lambda one: (-abs(one.delta_bytes), one.rank)))


_MOST_CAUSES = 8


@dataclass(frozen=True)
class Imbalance:
    """From the lowest peak to the highest: what the other cards hold unused."""

    bytes: int
    highest: int
    lowest: int
    categories: tuple[NamedDelta, ...]
    """They add up to the bytes, as the sites do."""
    sites: tuple[NamedDelta, ...]


@dataclass(frozen=True)
class RankSummary:
    ranks: tuple[Rank, ...]
    """Ranks by number; at least one."""
    failed: tuple[FailedFile, ...]
    groups: tuple[RankGroup, ...]
    outliers: tuple[Outlier, ...]
    imbalance: Imbalance
    missing: tuple[Span, ...] = ()
    """Ranks of which there is no file."""

    @property
    def highest(self) -> Rank:
        return highest(self.ranks)

    @property
    def ran_out(self) -> tuple[Rank, ...]:
        return tuple(rank for rank in self.ranks if rank.row.ran_out)

    @property
    def usual_groups(self) -> tuple[RankGroup, ...]:
        """Without those of ranks that stand out, which are told by themselves."""
        out = {one.rank for one in self.outliers}
        return tuple(group for group in self.groups if not out.issuperset(group.ranks))

    def against(self, number: int) -> int:
        """The rank to compare one with: the median of its group, or of the group that it stands out from."""
        for one in self.outliers:
            if one.rank == number:
                return one.against
        group = next(group for group in self.groups if number in group.ranks)
        return group.median_rank if group.median_rank != number else self.groups[0].median_rank

    def of(self, number: int) -> Rank | None:
        return next((rank for rank in self.ranks if rank.number == number), None)


def summarize_ranks(reduced: Iterable[Reduced], sizes: Mapping[str, int] | None = None) -> RankSummary:
    """`sizes`: of their mesh, where files and names do not say it.

    Raises:
        UsageError: Not one file is a rank's.
    """
    ranks, failed = numbered(reduced)
    if not ranks:
        first = failed[0]
        raise UsageError(f"None of {len(failed):,} files is a rank's snapshot. {first.place}: {first.reason}")
    return summary_of(with_mesh_labels(ranks, sizes) if sizes else ranks, failed)


def summary_of(ranks: tuple[Rank, ...], failed: tuple[FailedFile, ...] = ()) -> RankSummary:
    """Summarize ranks, which are ordered by number; at least one is needed."""
    groups, outliers = grouped(ranks)
    high, low = highest(ranks), min(ranks, key=lambda rank: (rank.row.peak_bytes, rank.number))
    imbalance = Imbalance(
        bytes=high.row.peak_bytes - low.row.peak_bytes,
        highest=high.number,
        lowest=low.number,
        categories=by_category(high.row, low.row),
        sites=by_site(high.row, low.row, _MOST_CAUSES),
    )
    return RankSummary(ranks, failed, groups, outliers, imbalance, missing(ranks, failed))


def highest(ranks: Iterable[Rank]) -> Rank:
    """The first of those with the highest peak."""
    return max(ranks, key=lambda rank: (rank.row.peak_bytes, -rank.number))


@dataclass(frozen=True, kw_only=True)
class RankChange(PeakDifference):
    """Peaks of one rank, or the sums of several, in two jobs."""

    ranks: tuple[int, ...]
    peaks: tuple[int, int]

    def rows(self, by: str, top: int | None = None) -> tuple[list[NamedDelta], int]:
        """Return the largest differences by "site" or "category", and the sum of all others."""
        named = [one for one in (self.because if by == "site" else self.categories) if one.name != REST][:top]
        return named, self.delta_bytes - sum(one.delta_bytes for one in named)


@dataclass(frozen=True)
class JobChanges:
    """Two jobs, rank by rank; the sums are over the ranks that both have."""

    jobs: tuple[RankSummary, RankSummary]
    ranks: tuple[RankChange, ...]
    groups: tuple[RankChange, ...]
    """Ranks that are of one group in the first job and of one in the second; the largest change first."""
    total: RankChange

    def alone(self, side: int) -> tuple[int, ...]:
        """Numbers of the ranks that only this job has."""
        return tuple(rank.number for rank in self.jobs[side].ranks if rank.number not in self.total.ranks)

    def ran_out(self) -> tuple[int, ...]:
        """Numbers of the ranks that ran out of memory in the second job and not in the first."""
        before = {rank.number for rank in self.jobs[0].ran_out}
        return tuple(rank.number for rank in self.jobs[1].ran_out if rank.number not in before)


def job_changes(before: RankSummary, after: RankSummary) -> JobChanges:
    """Compare the ranks of equal number.

    Raises:
        UsageError: No rank is in both jobs.
    """
    pairs = [(rank, other) for rank in before.ranks if (other := after.of(rank.number)) is not None]
    if not pairs:
        raise UsageError("The two jobs have no rank in common: ranks are matched by their numbers.")
    ranks = tuple(
        RankChange(
            other.row.peak_bytes - rank.row.peak_bytes,
            by_site(other.row, rank.row),
            by_category(other.row, rank.row),
            ranks=(rank.number,),
            peaks=(rank.row.peak_bytes, other.row.peak_bytes),
        )
        for rank, other in pairs
    )
    alike: dict[tuple[int, ...], list[RankChange]] = {}
    for change in ranks:
        key = tuple(
            next(place for place, group in enumerate(job.groups) if change.ranks[0] in group.ranks)
            for job in (before, after)
        )
        alike.setdefault(key, []).append(change)
    groups = sorted(map(_sum_changes, alike.values()), key=lambda group: (-abs(group.delta_bytes), group.ranks))
    return JobChanges((before, after), ranks, tuple(groups), _sum_changes(ranks))


def _sum_changes(changes: Sequence[RankChange]) -> RankChange:
    return RankChange(
        sum(change.delta_bytes for change in changes),
        _sum_deltas([change.because for change in changes]),
        _sum_deltas([change.categories for change in changes]),
        ranks=tuple(number for change in changes for number in change.ranks),
        peaks=(sum(change.peaks[0] for change in changes), sum(change.peaks[1] for change in changes)),
    )


def _sum_deltas(differences: Sequence[Sequence[NamedDelta]]) -> tuple[NamedDelta, ...]:
    """Sum by name. A sum is probable where most of its bytes are."""
    sums: Counter[str] = Counter()
    doubt: Counter[str] = Counter()
    for one in (one for deltas in differences for one in deltas):
        sums[one.name] += one.delta_bytes
        doubt[one.name] += abs(one.delta_bytes) if one.is_probable else -abs(one.delta_bytes)
    rest = sums.pop(REST, 0)
    return _ranked([NamedDelta(name, size, doubt[name] > 0) for name, size in sums.items() if size], rest, None)


NOTHING = -1
"""Marks a step that a rank does not have."""


@dataclass(frozen=True, eq=False)
class AlignedRanks:
    ranks: tuple[Rank, ...]
    """In the order of the rows."""
    steps: tuple[tuple[int, str], ...]
    """Number of each, and what the program called it; the first may be what came before step 1."""
    columns: int
    """Number of columns per step."""
    live: npt.NDArray[np.int64]
    """The highest of each column, or NOTHING."""


def aligned(ranks: Sequence[Rank]) -> AlignedRanks:
    names: dict[int, str] = {}
    for rank in ranks:
        for part in rank.row.curve.parts:
            names[part.number] = names.get(part.number) or part.name
    # The last ones: those before are in the first of them on every rank that has so many.
    numbers = sorted(names)[-MOST_PARTS:]
    columns = MOST_COLUMNS // max(len(numbers), 1)
    place_of = {number: place for place, number in enumerate(numbers)}
    live = np.full((len(ranks), len(numbers) * columns), NOTHING, dtype=np.int64)
    for row, rank in enumerate(ranks):
        curve = rank.row.curve
        table = np.array(curve.live, dtype=np.int64).reshape(len(curve.parts), curve.columns)
        for part, values in zip(curve.parts, table, strict=True):
            if part.number in place_of:
                begin = place_of[part.number] * columns
                live[row, begin : begin + columns] = _spread(values, columns)
    return AlignedRanks(tuple(ranks), tuple((number, names[number]) for number in numbers), columns, live)


def _spread(values: npt.NDArray[np.int64], columns: int) -> npt.NDArray[np.int64]:
    """Over as many columns; the highest of those that come together stays."""
    if len(values) <= columns:
        return values[np.arange(columns) * len(values) // columns]
    return np.asarray(np.maximum.reduceat(values, np.arange(columns) * len(values) // columns), dtype=np.int64)
