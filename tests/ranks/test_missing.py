"""Ranks without a file."""

from __future__ import annotations

import pytest

from memviz.ranks.numbers import missing, numbered
from memviz.ranks.places import Place
from memviz.ranks.reduce_rank import row_of
from memviz.ranks.row import FailedFile
from tests.traces import alloc, trace_of


@pytest.mark.parametrize(
    ("names", "gaps"),
    [
        (["rank0", "rank1"], ()),
        (["rank2", "rank5"], ((0, 1), (3, 4))),
        (["gpu0", "gpu9"], ((1, 8),)),
        # Numbers that no word calls ranks: counted from 1, with a gap, or those of processes.
        (["snapshot_1", "snapshot_2", "snapshot_3"], ()),
        (["snapshot_1", "snapshot_2", "snapshot_4"], ((3, 3),)),
        (["node_30412", "node_30413", "node_30419"], ()),
    ],
)
def test_gaps(names: list[str], gaps: tuple[tuple[int, int], ...]) -> None:
    ranks, failed = numbered([row_of(trace_of([alloc(0, 100)]), Place(f"{name}.pickle")) for name in names])
    assert (missing(ranks, failed), failed) == (gaps, ())


def test_a_damaged_file_is_there() -> None:
    ranks, _ = numbered([row_of(trace_of([alloc(0, 100)]), Place(f"rank{number}.pickle")) for number in (0, 3)])
    assert missing(ranks, [FailedFile("rank1.pickle", "It is cut short.")]) == ((2, 2),)
