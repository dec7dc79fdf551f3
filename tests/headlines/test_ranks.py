"""What is said of many ranks: who is like whom, and what makes the difference."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memviz.headlines.ranks import ranks as headline
from memviz.ranks.numbers import Rank
from memviz.ranks.places import Place
from memviz.ranks.reduce_rank import row_of
from memviz.ranks.row import SiteBytes
from memviz.ranks.together import of_ranks
from tests.traces import MiB, alloc, trace_of

ONE = row_of(trace_of([alloc(0, 100)]), Place("here"))


def said(*peaks: dict[str, int]) -> str:
    """Of ranks that hold so many MiB at these places."""
    rows = []
    for sizes in peaks:
        sites = tuple(SiteBytes(name, name, size * MiB) for name, size in sizes.items())
        rows.append(replace(ONE, peak_bytes=sum(sizes.values()) * MiB, sites=sites, other_sites_bytes=0))
    return headline(of_ranks(tuple(Rank(number, row) for number, row in enumerate(rows)))).reason


@pytest.mark.parametrize(
    ("peaks", "words"),
    [
        ((100, 200, 300), "No two need the same."),
        ((100, 100, 300, 300), "They are 2 groups; in the largest 2 ranks need the same."),
        ((10_000, 10_001, 20_000, 20_001, 20_002), "They are 2 groups; in the largest 3 ranks need nearly the same."),
    ],
)
def test_groups_are_counted_apart_from_the_ranks_in_them(peaks: tuple[int, ...], words: str) -> None:
    assert said(*({"weights": peak} for peak in peaks)).startswith(words)


@pytest.mark.parametrize(
    ("cache", "weights", "words"),
    [
        (30, 100, "most of it by cache (+30.0 MiB)"),
        (30, 80, "more than all of it by cache (+30.0 MiB)"),
    ],
)
def test_a_cause_that_others_go_against_is_more_than_all(cache: int, weights: int, words: str) -> None:
    assert words in said(*[{"weights": 100}] * 20, {"weights": weights, "cache": cache})
