"""Groups of equal ranks, and outliers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memviz.ranks.numbers import Rank
from memviz.ranks.places import Place
from memviz.ranks.reduce_rank import row_of
from memviz.ranks.row import KindBytes, RankRow, SiteBytes
from memviz.ranks.summary import REST, NamedDelta, Outlier, RankGroup, by_category, by_site, grouped
from tests.traces import MiB, alloc, trace_of

EMPTY = row_of(trace_of([alloc(0, 100)]), Place("here"))
GiB = 1 << 30


def row(**sites: int) -> RankRow:
    table = tuple(SiteBytes(f"/{name}", name, size) for name, size in sites.items())
    return replace(EMPTY, peak_bytes=sum(sites.values()), sites=table, other_sites_bytes=0)


def ranks(*rows: RankRow) -> list[Rank]:
    return [Rank(number, row) for number, row in enumerate(rows)]


def of_peaks(peaks: object) -> list[Rank]:
    return ranks(*(row(weights=int(peak)) for peak in peaks))


def test_equal_ranks_are_one_group_unless_they_are_made_of_other_things() -> None:
    groups, outliers = grouped(of_peaks([40 * GiB] * 1024))
    assert groups == (RankGroup(tuple(range(1024)), 511, 40 * GiB, 40 * GiB, 40 * GiB),)
    assert outliers == ()
    groups, outliers = grouped(ranks(*[row(a=10 * GiB)] * 4, *[row(b=10 * GiB)] * 4))
    assert [group.ranks for group in groups] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert outliers == ()


@pytest.mark.parametrize("more", [60 * MiB, 2 * GiB, -2 * GiB])
@pytest.mark.parametrize("planted", [0, 500, 1023])
def test_a_planted_one_stands_out_with_its_cause(planted: int, more: int) -> None:
    rows = [row(weights=30 * GiB, forward=10 * GiB)] * 1024
    rows[planted] = row(weights=30 * GiB, forward=10 * GiB + more)
    groups, (outlier,) = grouped(ranks(*rows))
    assert [len(group.ranks) for group in groups] == [1023, 1]
    assert groups[1].ranks == (planted,)
    assert (outlier.rank, outlier.delta_bytes) == (planted, more)
    assert outlier.because == (NamedDelta("forward", more),)


def test_stages_are_groups_and_one_of_a_stage_is_held_against_its_own() -> None:
    stages = [row(weights=(20 - stage) * GiB, forward=3 * GiB * (8 - stage)) for stage in range(8)]
    rows = [stages[number // 32] for number in range(256)]
    rows[70] = row(weights=18 * GiB, forward=18 * GiB, cache=GiB)
    groups, outliers = grouped(ranks(*rows))
    assert sorted(len(group.ranks) for group in groups) == [1, 31, *[32] * 7]
    assert [(one.rank, one.against // 32, one.because) for one in outliers] == [(70, 2, (NamedDelta("cache", GiB),))]


@pytest.mark.parametrize("spread", [0.0005, 0.005, 0.05])
@pytest.mark.parametrize("count", [12, 64, 1024])
def test_ranks_that_are_given_different_lengths_do_not_stand_out(count: int, spread: float) -> None:
    lengths = 40 * GiB * (1 + spread * np.random.default_rng(7).random(count))
    _, outliers = grouped(of_peaks(lengths))
    assert outliers == ()


def test_among_ranks_that_all_differ_one_far_away_still_stands_out() -> None:
    peaks = 40 * GiB * (1 + 0.05 * np.random.default_rng(7).random(64))
    peaks[9] *= 1.8
    _, outliers = grouped(of_peaks(peaks))
    assert [one.rank for one in outliers] == [9]


@given(st.lists(st.integers(0, 100 * GiB), min_size=1, max_size=40))
def test_every_rank_is_in_one_group_and_causes_add_up(peaks: list[int]) -> None:
    groups, outliers = grouped(of_peaks(peaks))
    assert sorted(number for group in groups for number in group.ranks) == list(range(len(peaks)))
    for group in groups:
        members = [peaks[number] for number in group.ranks]
        assert (group.least_bytes, group.most_bytes) == (min(members), max(members))
        assert group.median_rank in group.ranks and peaks[group.median_rank] == group.peak_bytes
    for one in outliers:
        assert one.delta_bytes == peaks[one.rank] - peaks[one.against]
        assert sum(cause.delta_bytes for cause in one.because) == one.delta_bytes


def test_differences_add_up_and_stay_as_probable_as_they_are() -> None:
    one, other = row(a=5, b=7, c=1), replace(row(b=2, d=10), other_sites_bytes=3, peak_bytes=15)
    assert by_site(one, other) == (
        NamedDelta("d", -10),
        NamedDelta("a", 5),
        NamedDelta("b", 5),
        NamedDelta("c", 1),
        NamedDelta("(all others)", -3),
    )
    assert by_site(one, other, 2) == (NamedDelta("d", -10), NamedDelta("a", 5), NamedDelta("(all others)", 3))
    assert by_category(one, one) == ()
    # An activation in one rank and a temporary in the other may both be guesses.
    one = replace(EMPTY, categories=(KindBytes("activation", 60, 60), KindBytes("parameter", 50, 10)))
    other = replace(EMPTY, categories=(KindBytes("temporary", 40, 30), KindBytes("parameter", 20)))
    said = by_category(one, other)
    assert [(row.words, row.delta_bytes) for row in said] == [
        ("probably activation", 60),
        ("probably temporary", -40),
        ("parameter", 30),
    ]
    assert [row.name for row in said] == ["activation", "temporary", "parameter"]
    here = replace(EMPTY, peak_bytes=5, sites=(SiteBytes("/a/train.py:1 f", "train.py:1 f", 5),))
    there = replace(EMPTY, peak_bytes=7, sites=(SiteBytes("/b/train.py:1 f", "train.py:1 f", 7),))
    assert by_site(here, there) == (NamedDelta("train.py:1 f", -2),)


def test_the_chief_category_is_the_largest_that_explains_something() -> None:
    parts = (NamedDelta("unknown", 1600), NamedDelta("activation", 1537), NamedDelta("gradient", -9))
    assert Outlier(3128, (), parts, rank=64, against=5).chief_category == parts[1]
    assert Outlier(1600, (), parts[:1], rank=64, against=5).chief_category is None
    renamed = (NamedDelta("activation", 60), NamedDelta("temporary", -60), NamedDelta("output", 16))
    assert Outlier(16, (), renamed, rank=64, against=5).chief_category == renamed[2]


_A, _B, _C, _REST = NamedDelta("a.py:1", 40), NamedDelta("b.py:1", 30), NamedDelta("c.py:1", -90), NamedDelta(REST, 50)


@pytest.mark.parametrize(
    ("delta", "causes", "chief"),
    [
        (0, (), None),
        # It goes the way of the whole, and is a site where one is named: nobody can look up the rest.
        *((20, (_A, _B, _C), _A), (-20, (_A, _B, _C), _C), (120, (_A, _B, _REST), _A), (50, (_REST,), _REST)),
        # Of sites that tie none is the chief cause.
        (3281, tuple(NamedDelta(f"norm{number}_forward", 256) for number in range(6)), None),
    ],
)
def test_the_chief_site(delta: int, causes: tuple[NamedDelta, ...], chief: NamedDelta | None) -> None:
    assert Outlier(delta, causes, (), rank=64, against=5).chief_site == chief


@pytest.mark.parametrize("peaks", [[20, 30], [40, 30, 20, 10], [5]])
def test_two_ranks_or_four_stages_have_no_norm_to_stand_out_from(peaks: list[int]) -> None:
    groups, outliers = grouped(of_peaks(peak * GiB for peak in peaks))
    assert (len(groups), outliers) == (len(peaks), ())
