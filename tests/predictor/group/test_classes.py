"""Ranks that represent others: the grid of a group, the positions that matter, and the resulting classes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from memviz.predictor.group.ranks import Layout, classes_of, dimension_of, grid_of, places_of
from memviz.results.run import rank_list


@dataclass(frozen=True)
class One:
    fingerprint: str
    layout: Layout = field(default_factory=Layout)


def classes(world_size: int, kind: Callable[[int], object], layout: Layout) -> tuple[list[list[int]], list[int]]:
    """Ranks by class, and which ran."""
    ran: list[int] = []

    def run(ranks: Sequence[int]) -> list[One]:
        ran.extend(ranks)
        return [One(str(kind(rank)), layout) for rank in ranks]

    found = [ranks for ranks, _ in classes_of(world_size, run)]
    return found, sorted(ran)


def by_kind(world_size: int, kind: Callable[[int], object]) -> list[list[int]]:
    """Group all ranks by kind."""
    found: dict[object, list[int]] = {}
    for rank in range(world_size):
        found.setdefault(kind(rank), []).append(rank)
    return list(found.values())


def test_a_dimension_is_a_distance_and_a_length() -> None:
    examples = ([0, 1, 2, 3], [3, 7, 11], [5], [0, 1, 4], range(8))
    assert [dimension_of(ranks) for ranks in examples] == [*((1, 4), (4, 3), None, None, (1, 8))]


@pytest.mark.parametrize(
    ("dimensions", "grid"),
    [
        ([(1, 16)], ((1, 16),)),
        ([(1, 16), (1, 4), (4, 4)], ((1, 4), (4, 4))),
        ([(1, 16), (1, 2), (2, 4), (8, 2), (2, 8)], ((1, 2), (2, 4), (8, 2))),
        ([(1, 16), (4, 4)], ((1, 4), (4, 4))),
        ([(1, 16), (1, 4)], ((1, 4), (4, 4))),
        ([(1, 3)], ((1, 16),)),
        ([], ((1, 16),)),
    ],
)
def test_the_grid_is_the_finest_that_groups_make(
    dimensions: list[tuple[int, int]], grid: tuple[tuple[int, int], ...]
) -> None:
    assert grid_of(dimensions, 16) == grid


def test_places_are_where_a_length_ends() -> None:
    layout = Layout(uneven={(100, 16)}, chains={(16, 4)})
    # Parts of 7 rows: 0 to 13 are full, 14 has two rows, 15 none.
    assert places_of(layout, (1, 16)) == (0, 1, 14, 15)
    assert places_of(layout, (16, 4)) == (0, 1, 2, 3)
    assert places_of(Layout(), (1, 1024)) == (0, 1, 1023)


def test_only_ranks_that_may_differ_run() -> None:
    found, ran = classes(1024, lambda rank: "alike", Layout(dimensions={(1, 1024)}))
    assert found == [list(range(1024))] and ran == [0, 1, 1023]
    parts = [min(max(100 - 7 * rank, 0), 7) for rank in range(16)]
    layout = Layout(dimensions={(1, 16)}, uneven={(100, 16)})
    found, ran = classes(16, lambda rank: parts[rank], layout)
    assert found == by_kind(16, lambda rank: parts[rank]) and ran == [0, 1, 14, 15]
    layout = Layout(dimensions={(1, 4)}, unlike=[[0, 3], [1], [2]])
    found, ran = classes(4, {0: "a", 1: "b", 2: "a", 3: "a"}.get, layout)
    assert found == [[0, 2, 3], [1]] and ran == [0, 1, 2]


def test_dimensions_that_count_are_combined() -> None:
    def kind(rank: int) -> tuple[bool, int]:
        return rank % 4 == 3, rank // 4 % 2

    layout = Layout(dimensions={(1, 4), (4, 2)}, uneven={(9, 4)}, chains={(4, 2)})
    found, _ = classes(8, kind, layout)
    assert found == by_kind(8, kind)

    def stage(rank: int) -> int:
        return rank // 8 % 4

    layout = Layout(dimensions={(1, 8), (8, 4), (32, 2), (1, 64)}, chains={(8, 4)})
    found, ran = classes(64, stage, layout)
    assert found == by_kind(64, stage) and len(ran) == len({*ran}) <= 8


def test_layouts_and_ranks_in_words() -> None:
    layout = Layout({(1, 4)}, {(4, 2)}, {(9, 4)}, [[0, 1], [2]])
    assert Layout.of_json(layout.as_json()) == layout
    assert [rank_list(ranks) for ranks in ([3], [0, 1, 2, 5], [0, 4, 8, 12], list(range(9)))] == [
        *("rank 3", "ranks 0 to 2, 5", "ranks 0, 4, ... 12", "ranks 0 to 8")
    ]
