"""What a program made of its group, noted while one rank of it runs: which other ranks may differ from it.

Ranks are numbered along a grid. A dimension of it is a stride and a size: of data x tensor = 2 x 4, tensor is
(1, 4) and data is (4, 2).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

Dimension = tuple[int, int]


@dataclass
class Layout:
    dimensions: set[Dimension] = field(default_factory=set)
    """Of the groups that this rank is in."""
    chains: set[Dimension] = field(default_factory=set)
    """Whose ranks send to one another, as stages of a pipeline do: each may be different."""
    uneven: set[tuple[int, int]] = field(default_factory=set)
    """Lengths that were parted among so many ranks, and do not divide by them."""
    unlike: list[list[int]] = field(default_factory=list)
    """Ranks of the whole group by what they own, where an optimizer hands out weights one by one."""

    def note_group(self, ranks: Sequence[int]) -> None:
        dimension = dimension_of(ranks)
        if dimension is not None:
            self.dimensions.add(dimension)

    def note_chain(self, ranks: Sequence[int]) -> None:
        dimension = dimension_of(ranks)
        if dimension is not None:
            self.chains.add(dimension)

    def note_parts(self, length: int, parts: int) -> None:
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
    """None of one rank, and of ranks that lie in no even distance."""
    if len(ranks) < 2:
        return None
    stride = ranks[1] - ranks[0]
    even = all(after - before == stride for before, after in zip(ranks, ranks[1:], strict=False))
    return (stride, len(ranks)) if even and stride > 0 else None


def grid_of(dimensions: Iterable[Dimension], world_size: int) -> tuple[Dimension, ...]:
    """The finest grid that the dimensions make, innermost first; one row where they make none."""
    known, grid, stride = sorted(set(dimensions)), [], 1
    while stride < world_size:
        # Up to where another begins; what is left over has no group of its own.
        sizes = [size if at == stride else at // stride for at, size in known if at >= stride and at % stride == 0]
        size = min((size for size in sizes if world_size % (stride * size) == 0), default=world_size // stride)
        grid.append((stride, size))
        stride *= size
    return tuple(grid)


def places_of(layout: Layout, dimension: Dimension, *, same_program: bool = False) -> tuple[int, ...]:
    """Coordinates along a dimension that stand for those between them.

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
