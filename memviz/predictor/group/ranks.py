"""Ranks of a distributed program: numbers and environment, the grid of their groups, and classes of equal memory.

Ranks are numbered along a grid. A dimension is a stride and a size: of data x tensor = 2 x 4, tensor is (1, 4) and
data is (4, 2). Where all coordinates of a dimension take the same memory from rank 0, the dimension does not count;
of those that count, every combination is predicted. Ranks are equal if they allocate and free the same bytes in the
same order.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from memviz.allocator.context import Communicator
from memviz.errors import UsageError

CARDS_OF_A_MACHINE = 8


@dataclass(frozen=True)
class GroupRank:
    """One process of a group on full machines: of world size 16, rank 9 is the second of the second machine."""

    number: int
    world_size: int

    def __post_init__(self) -> None:
        if self.world_size < 1:
            raise UsageError(f"The world size must be at least 1, not {self.world_size}.")
        if not 0 <= self.number < self.world_size:
            last = self.world_size - 1
            raise UsageError(f"The rank must be 0 to {last} with {self.world_size} processes, not {self.number}.")

    @property
    def cards(self) -> int:
        """Number of cards of its machine, one per process."""
        return min(self.world_size, CARDS_OF_A_MACHINE)

    @property
    def card(self) -> int:
        """Number of the rank's card: `LOCAL_RANK`."""
        return self.number % self.cards

    @property
    def environment(self) -> dict[str, str]:
        machines = -(-self.world_size // self.cards)
        return {
            "RANK": str(self.number),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_RANK": str(self.card),
            "LOCAL_WORLD_SIZE": str(self.cards),
            "GROUP_RANK": str(self.number // self.cards),
            "GROUP_WORLD_SIZE": str(machines),
            "ROLE_RANK": str(self.number),
            "ROLE_WORLD_SIZE": str(self.world_size),
            "ROLE_NAME": "default",
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": "29500",
            "TORCHELASTIC_RUN_ID": "none",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "TORCHELASTIC_USE_AGENT_STORE": "False",
        }


def rank_of_environment(environment: Mapping[str, str]) -> GroupRank | None:
    """Return the rank that `torchrun` set, if any."""
    world_size, rank = environment.get("WORLD_SIZE", ""), environment.get("RANK", "0")
    if not world_size.isdigit() or not rank.isdigit() or int(world_size) < 2:
        return None
    return GroupRank(int(rank), int(world_size))


Dimension = tuple[int, int]


@dataclass
class Layout:
    dimensions: set[Dimension] = field(default_factory=set)
    chains: set[Dimension] = field(default_factory=set)
    """Whose ranks send to one another, as stages of a pipeline do: each may be different."""
    uneven: set[tuple[int, int]] = field(default_factory=set)
    """Lengths that were parted among so many ranks, and do not divide by them."""
    unlike: list[list[int]] = field(default_factory=list)
    """Ranks of the whole group by what they own, where an optimizer hands out weights one by one."""
    communicators: dict[tuple[str, int], Communicator] = field(default_factory=dict, compare=False)
    """NCCL's, made by a group's first use; by group, and by the other rank where one sends to it."""

    def note_communicator(self, group: Any, other: int | None, *, exchanges: bool) -> None:
        """Note a use of NCCL. A message between two ranks has a communicator of its own in PyTorch."""
        key = group.group_name, -1 if other is None else other
        exchanges |= key in self.communicators and self.communicators[key].exchanges
        self.communicators[key] = Communicator(group.size() if other is None else 2, exchanges)

    def note_group(self, ranks: Sequence[int]) -> None:
        dimension = dimension_of(ranks)
        if dimension is not None:
            self.dimensions.add(dimension)

    def note_chain(self, ranks: Sequence[int]) -> None:
        dimension = dimension_of(ranks)
        if dimension is not None:
            self.chains.add(dimension)

    def note_uneven_parts(self, length: int, parts: int) -> None:
        if parts > 1 and length % parts:
            self.uneven.add((length, parts))

    def as_json(self) -> dict[str, Any]:
        return {
            "dimensions": sorted(self.dimensions),
            "chains": sorted(self.chains),
            "uneven": sorted(self.uneven),
            "unlike": self.unlike,
        }

    @classmethod
    def of_json(cls, said: Any) -> Layout:
        def pairs(name: str) -> set[tuple[int, int]]:
            return {(one, other) for one, other in said[name]}

        unlike = [list(ranks) for ranks in said["unlike"]]
        return cls(pairs("dimensions"), pairs("chains"), pairs("uneven"), unlike)


def dimension_of(ranks: Sequence[int]) -> Dimension | None:
    """Return the dimension of ranks; None for a single rank or uneven distances."""
    if len(ranks) < 2:
        return None
    stride = ranks[1] - ranks[0]
    even = all(after - before == stride for before, after in pairwise(ranks))
    return (stride, len(ranks)) if even and stride > 0 else None


def grid_of(dimensions: Iterable[Dimension], world_size: int) -> tuple[Dimension, ...]:
    """Return the finest grid of the dimensions, innermost first; one row where there is none."""
    known, grid, stride = sorted(set(dimensions)), [], 1
    while stride < world_size:
        # Up to where another begins; what is left over has no group of its own.
        sizes = [size if at == stride else at // stride for at, size in known if at >= stride and at % stride == 0]
        size = min((size for size in sizes if world_size % (stride * size) == 0), default=world_size // stride)
        grid.append((stride, size))
        stride *= size
    return tuple(grid)


def places_of(layout: Layout, dimension: Dimension, *, same_program: bool = False) -> tuple[int, ...]:
    """Return the coordinates along a dimension that represent those between them.

    The first, which often writes down what the others do not; the second; the last; where a length that does not
    divide comes to its end; and all of a chain. Where all do the same, an even dimension has one for all.
    """
    _, size = dimension
    if dimension in layout.chains:
        return tuple(range(size))
    places = {0} if same_program else {0, 1, size - 1}
    for length, parts in layout.uneven:
        if parts == size:
            full = length // -(-length // parts)
            places |= {full, full + 1}
    return tuple(sorted(place for place in places if place < size))


Run = Callable[[Sequence[int]], Sequence[Any]]
"""Predicts ranks: each result has a `fingerprint` and a `layout`."""


def classes_of(world_size: int, run: Run, *, same_program: bool = False) -> list[tuple[list[int], Any]]:
    """Return classes of equal ranks, each with the prediction of its first, in order of the ranks.

    `same_program`: no rank does what others do not, such as writing down a loss, so what is even is equal.
    """
    known = _PredictedRanks(run)
    layout = known[0].layout
    if layout.unlike:
        stand_ins = {rank: ranks[0] for ranks in layout.unlike for rank in ranks}
    else:
        grid = grid_of(layout.dimensions, world_size)
        # Along each dimension, only places where the memory changes count, and the first.
        places = [places_of(layout, dimension, same_program=same_program) for dimension in grid]
        known.run(sorted({place * stride for (stride, _), own in zip(grid, places, strict=True) for place in own}))
        counting = []
        for (stride, _), own in zip(grid, places, strict=True):
            prints = [known[place * stride].fingerprint for place in own]
            counting.append([place for at, place in enumerate(own) if not at or prints[at] != prints[at - 1]])
        stand_ins = {}
        for rank in range(world_size):
            # The nearest place before its own along each dimension.
            pairs = zip(grid, counting, strict=True)
            stand_ins[rank] = sum(
                stride * own[bisect_right(own, rank // stride % size) - 1] for (stride, size), own in pairs
            )
    known.run(sorted(set(stand_ins.values())))
    found: dict[str, list[int]] = {}
    for rank in range(world_size):
        found.setdefault(known[stand_ins[rank]].fingerprint, []).append(rank)
    return [(ranks, known[stand_ins[ranks[0]]]) for ranks in found.values()]


class _PredictedRanks:
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
