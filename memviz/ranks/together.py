"""What many ranks come to: who is highest, who is like whom, who stands out, and what the differences are made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from memviz.errors import UsageError
from memviz.ranks.differences import NamedDelta, by_category, by_site
from memviz.ranks.groups import Outlier, RankGroup, grouped
from memviz.ranks.mesh import told_apart
from memviz.ranks.missing import Span, missing
from memviz.ranks.numbers import Rank, numbered
from memviz.ranks.row import FailedFile, Reduced

_CAUSES = 8


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
class Ranks:
    ranks: tuple[Rank, ...]
    """By number; at least one."""
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


def together(reduced: Iterable[Reduced], sizes: Mapping[str, int] | None = None) -> Ranks:
    """`sizes`: of their mesh, where files and names do not say it.

    Raises:
        UsageError: Not one file is a rank's.
    """
    ranks, failed = numbered(reduced)
    if not ranks:
        first = failed[0]
        raise UsageError(f"None of {len(failed):,} files is a rank's snapshot. {first.place}: {first.reason}")
    return of_ranks(told_apart(ranks, sizes) if sizes else ranks, failed)


def of_ranks(ranks: tuple[Rank, ...], failed: tuple[FailedFile, ...] = ()) -> Ranks:
    """By number, and at least one of them."""
    groups, outliers = grouped(ranks)
    return Ranks(ranks, failed, groups, outliers, _imbalance(ranks), missing(ranks, failed))


def highest(ranks: Iterable[Rank]) -> Rank:
    """The first of those with the highest peak."""
    return max(ranks, key=lambda rank: (rank.row.peak_bytes, -rank.number))


def _imbalance(ranks: tuple[Rank, ...]) -> Imbalance:
    high, low = highest(ranks), min(ranks, key=lambda rank: (rank.row.peak_bytes, rank.number))
    return Imbalance(
        bytes=high.row.peak_bytes - low.row.peak_bytes,
        highest=high.number,
        lowest=low.number,
        categories=by_category(high.row, low.row),
        sites=by_site(high.row, low.row, _CAUSES),
    )
