"""Many ranks in a sentence, and which of them have no file."""

import re
from dataclasses import replace

import pytest

from memviz.ranks.numbers import Rank
from memviz.ranks.places import Place
from memviz.ranks.reduce_rank import row_of
from memviz.ranks.row import KindBytes, RankRanOut, SiteBytes
from memviz.ranks.summary import RankSummary, summary_of
from memviz.results.headline import differing_names
from memviz.results.ranks import missing_ranks, ranks_headline
from tests.facts import missing
from tests.traces import MiB, alloc, trace_of

EMPTY = row_of(trace_of([alloc(0, 100)]), Place("here"))


def of_peaks(*peaks: int, ran_out: bool = False) -> RankSummary:
    failed = (RankRanOut(0, MiB, 0, 0, ""),) if ran_out else ()
    rows = [
        replace(EMPTY, peak_bytes=peak * MiB, sites=(SiteBytes("/f", "f", peak * MiB),), ran_out=failed)
        for peak in peaks
    ]
    return summary_of(tuple(Rank(number, replace(row, place=f"rank{number}")) for number, row in enumerate(rows)))


@pytest.mark.parametrize(
    ("peaks", "words"),
    [
        ((100, 120, 140, 160), "Every rank needs a different amount."),
        ((100, 100, 100, 300, 300), "2 groups; in the largest, 3 ranks need the same."),
        ((10_000, 10_001, 20_000, 20_001, 20_002), "2 groups; in the largest, 3 ranks need nearly the same."),
        ((100, 100, 100), "All need the same."),
        ((100, 100, 100, 100, 300), "4 need the same, 1 differs."),
    ],
)
def test_how_alike_they_are(peaks: tuple[int, ...], words: str) -> None:
    assert ranks_headline(of_peaks(*peaks)).reason.startswith(words)
    reached = re.sub("needs?", "reached", words)
    assert reached in ranks_headline(of_peaks(*peaks, ran_out=True)).reason


def test_those_without_a_file_are_named() -> None:
    job = of_peaks(100, 100, 100)
    assert missing_ranks(job) == ""
    assert missing_ranks(replace(job, missing=((3, 3),))) == "No file of rank 3."
    assert missing_ranks(replace(job, missing=((3, 3), (8, 11)))) == "No file of ranks 3, 8-11."
    assert missing_ranks(replace(job, missing=((4, 5),)), "Not open here:") == "Not open here: ranks 4-5."


@pytest.mark.parametrize(
    ("cache", "weights", "words"),
    [
        (30, 100, "most of it by cache (+30.0 MiB)"),
        (30, 80, "more than all of it by cache (+30.0 MiB)"),
    ],
)
def test_a_cause_that_others_go_against_is_more_than_all(cache: int, weights: int, words: str) -> None:
    held = [{"weights": 100}] * 20 + [{"weights": weights, "cache": cache}]
    rows = [
        replace(
            EMPTY,
            peak_bytes=sum(sizes.values()) * MiB,
            sites=tuple(SiteBytes(name, name, size * MiB) for name, size in sizes.items()),
            other_sites_bytes=0,
        )
        for sizes in held
    ]
    assert words in ranks_headline(summary_of(tuple(Rank(number, row) for number, row in enumerate(rows)))).reason


def test_a_difference_names_its_largest_category_and_no_site_that_ties() -> None:
    """The six sites of activations are as large as one another, and optimizer state is more than each."""
    held = [{"norm": 0, "state": 100}] * 20 + [{"norm": 256, "state": 1637}]
    rows = [
        replace(
            EMPTY,
            peak_bytes=(6 * sizes["norm"] + sizes["state"]) * MiB,
            sites=tuple(SiteBytes(f"norm{at}", f"norm{at}_forward", sizes["norm"] * MiB) for at in range(6)),
            other_sites_bytes=sizes["state"] * MiB,
            categories=(
                KindBytes("activation", 6 * sizes["norm"] * MiB),
                KindBytes("optimizer state", sizes["state"] * MiB),
            ),
        )
        for sizes in held
    ]
    said = ranks_headline(summary_of(tuple(Rank(number, row) for number, row in enumerate(rows)))).reason
    assert missing(said, "Rank 20", "+3,073 MiB", "rank 9", "+1,537 MiB") == []
    assert "norm" not in said


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["run.rank0", "run.rank1", "run.rank10"], ["rank0", "rank1", "rank10"]),
        (["train-bf16-start", "train-fp32-start"], ["bf16", "fp32"]),
        (["rank-0", "rank-1"], ["rank-0", "rank-1"]),
        (["train", "train-checkpointed"], ["train", "train-checkpointed"]),
        (["out-of-memory", "out-of-memory, expandable"], ["out-of-memory", "out-of-memory, expandable"]),
        (["a", "a"], ["a", "a"]),
        (["one"], ["one"]),
        ([], []),
    ],
)
def test_what_names_have_in_common_is_left_out(names: list[str], shown: list[str]) -> None:
    assert differing_names(names) == shown
