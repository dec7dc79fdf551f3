"""Ranks that take the same memory, found without running them all.

A rank runs for others that differ from it by coordinates between two places (`places_of`) alone. First each dimension
is looked at by itself, from rank 0: where all its places take the same memory it does not count. Of those that count,
every combination of places runs. Ranks are equal if they ask for and give back the same bytes in the same order.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, Protocol

from memviz.runner.predict.group.layout import Dimension, Layout, grid_of, places_of


class Predicted(Protocol):
    @property
    def fingerprint(self) -> str:
        """The same where the same bytes were taken and given back, in the same order."""
        ...

    @property
    def layout(self) -> Layout: ...


Run = Callable[[Sequence[int]], Sequence[Any]]
"""Predicts ranks."""


def classes_of(world_size: int, run: Run, *, same_program: bool = False) -> list[tuple[list[int], Any]]:
    """Ranks and what was predicted of one of them, its first; in order of the ranks.

    `same_program`: no rank does what others do not, such as writing down a loss, so what is even is equal.
    """
    known = _Known(run)
    layout = known[0].layout
    if layout.unlike:
        stand_ins = {rank: ranks[0] for ranks in layout.unlike for rank in ranks}
    else:
        grid = grid_of(layout.dimensions, world_size)
        stand_ins = _stand_ins(world_size, grid, _places_that_count(layout, grid, known, same_program=same_program))
    known.run(sorted(set(stand_ins.values())))
    found: dict[str, list[int]] = {}
    for rank in range(world_size):
        found.setdefault(known[stand_ins[rank]].fingerprint, []).append(rank)
    return [(ranks, known[stand_ins[ranks[0]]]) for ranks in found.values()]


class _Known:
    def __init__(self, run: Run) -> None:
        self._run = run
        self._known: dict[int, Any] = {}

    def run(self, ranks: Sequence[int]) -> None:
        new = [rank for rank in ranks if rank not in self._known]
        self._known.update(zip(new, self._run(new), strict=True))

    def __getitem__(self, rank: int) -> Any:
        if rank not in self._known:
            self.run([rank])
        return self._known[rank]


def _places_that_count(
    layout: Layout, grid: tuple[Dimension, ...], known: _Known, *, same_program: bool
) -> list[list[int]]:
    """For each dimension, where what is taken changes; the first place alone where it never does."""
    places = [places_of(layout, dimension, same_program=same_program) for dimension in grid]
    known.run(sorted({place * stride for (stride, _), own in zip(grid, places, strict=True) for place in own}))
    counting = []
    for (stride, _), own in zip(grid, places, strict=True):
        prints = [known[place * stride].fingerprint for place in own]
        counting.append([place for at, place in enumerate(own) if not at or prints[at] != prints[at - 1]])
    return counting


def _stand_ins(world_size: int, grid: tuple[Dimension, ...], counting: list[list[int]]) -> dict[int, int]:
    numbers = {}
    for places in product(*counting):
        numbers[places] = sum(place * stride for place, (stride, _) in zip(places, grid, strict=True))
    found = {}
    for rank in range(world_size):
        at = (rank // stride % size for stride, size in grid)
        nearest = (own[bisect_right(own, place) - 1] for place, own in zip(at, counting, strict=True))
        found[rank] = numbers[tuple(nearest)]
    return found
