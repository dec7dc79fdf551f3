"""The rank number of a file."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memviz.ranks.numbers import missing, numbered, numbers_in
from memviz.ranks.places import Place
from memviz.ranks.reduce_rank import row_of
from memviz.ranks.row import FailedFile, RankRow
from tests.traces import alloc, trace_of

NOT_SAID = "Its rank is unknown."


def row(place: str, said: int | None = None) -> RankRow:
    return replace(row_of(trace_of([alloc(0, 100)]), Place(place)), said_rank=said)


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("rank0.pickle", 0),
        ("run.rank12.pickle.gz", 12),
        ("rank_7_memory_snapshot.pickle", 7),
        ("iteration_10/rank3_memory_snapshot.pickle", 3),
        ("RANK-5-of-8.pkl", 5),
        ("global_rank4_step100.pickle", 4),
        ("node2_gpu3_1700000000.pickle", 3),
        ("runs/rank_9/snapshot.pickle", 9),
        ("snapshot_17.pickle", 17),
        ("snapshot.pickle", None),
        ("step100_host3.pickle", None),
        ("1700000000123456.pickle", None),
        ("forward-bf16.pickle", None),
        ("memory_fp32_3.pickle", 3),
        ("print8.pickle", 8),
        ("forward-fp32.pickle", None),
    ],
)
def test_the_number_in_a_name(name: str, number: int | None) -> None:
    assert numbers_in([name]) == {name: number}


def test_what_several_numbers_mean_is_told_by_all_names() -> None:
    assert numbers_in(["step100_0.pickle", "step100_1.pickle"]) == {"step100_0.pickle": 0, "step100_1.pickle": 1}
    both = ["step100_0.pickle", "step200_1.pickle"]
    assert numbers_in(both) == dict.fromkeys(both)
    two = [f"host-{host}_gpu{gpu}.pickle" for host in range(2) for gpu in range(2)]
    assert numbers_in(two) == dict.fromkeys(two)
    local = ["node0/local_rank_1.pickle", "node1/local_rank_1.pickle"]
    assert numbers_in(local) == dict.fromkeys(local)
    one = ["node0_gpu0.pickle", "node0_gpu1.pickle"]
    assert numbers_in(one) == {one[0]: 0, one[1]: 1}
    said = [f"node{rank // 2}_gpu{rank % 2}_rank{rank}.pickle" for rank in range(4)]
    assert list(numbers_in(said).values()) == [0, 1, 2, 3]


def test_the_time_in_a_name_is_no_rank() -> None:
    """Names by MindSpeed and verl; ranks of one job are written in different minutes."""
    names = ["snapshot_2024-01-02-03-04_0.pickle", "snapshot_2024-01-02-03-05_1.pickle"]
    assert list(numbers_in(names).values()) == [0, 1]
    names = [f"20250101-120{rank}/periodic_rank{rank}_pid77{rank}.pickle" for rank in range(2)]
    assert list(numbers_in(names).values()) == [0, 1]


def test_ranks_come_by_number_and_what_is_none_is_named_with_the_reason() -> None:
    ranks, failed = numbered([row("rank10.pickle"), row("rank2.pickle"), row("rank3.pickle", said=0)])
    assert [(rank.number, rank.row.place) for rank in ranks] == [
        (0, "rank3.pickle"),
        (2, "rank2.pickle"),
        (10, "rank10.pickle"),
    ]
    assert failed == ()
    bad = FailedFile("rank4.pickle", "It is empty.")
    ranks, failed = numbered([row("run.rank1.oom.pickle"), row("final.pickle"), bad, row("run.rank1.pickle")])
    assert [rank.row.place for rank in ranks] == ["run.rank1.pickle"]
    assert [(one.place, one.reason) for one in failed] == [
        ("final.pickle", f"{NOT_SAID} Name the files by rank, as in rank0.pickle."),
        ("rank4.pickle", "It is empty."),
        ("run.rank1.oom.pickle", "A second file of rank 1; run.rank1.pickle is used."),
    ]


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
    ranks, failed = numbered([row(f"{name}.pickle") for name in names])
    assert (missing(ranks, failed), failed) == (gaps, ())


def test_a_damaged_file_is_there() -> None:
    ranks, _ = numbered([row(f"rank{number}.pickle") for number in (0, 3)])
    assert missing(ranks, [FailedFile("rank1.pickle", "It is cut short.")]) == ((2, 2),)
