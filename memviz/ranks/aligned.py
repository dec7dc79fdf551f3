"""Live bytes of many ranks over the same steps, as one table: a row a rank, the same moment in the same column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from memviz.ranks.numbers import Rank
from memviz.ranks.step_parts import MOST_COLUMNS, MOST_PARTS

NOTHING = -1
"""Where a rank has no such step."""


@dataclass(frozen=True, eq=False)
class AlignedRanks:
    ranks: tuple[Rank, ...]
    """In the order of the rows."""
    steps: tuple[tuple[int, str], ...]
    """Number of each, and what the program called it; the first may be what came before step 1."""
    columns: int
    """Of each step."""
    live: npt.NDArray[np.int64]
    """The highest of each column, or NOTHING."""


def aligned(ranks: Sequence[Rank]) -> AlignedRanks:
    names: dict[int, str] = {}
    for rank in ranks:
        for part in rank.row.curve.parts:
            names[part.number] = names.get(part.number) or part.name
    # The last ones: those before are in the first of them on every rank that has so many.
    numbers = sorted(names)[-MOST_PARTS:]
    columns = MOST_COLUMNS // max(len(numbers), 1)
    place_of = {number: place for place, number in enumerate(numbers)}
    live = np.full((len(ranks), len(numbers) * columns), NOTHING, dtype=np.int64)
    for row, rank in enumerate(ranks):
        curve = rank.row.curve
        table = np.array(curve.live, dtype=np.int64).reshape(len(curve.parts), curve.columns)
        for part, values in zip(curve.parts, table, strict=True):
            if part.number in place_of:
                begin = place_of[part.number] * columns
                live[row, begin : begin + columns] = _spread(values, columns)
    return AlignedRanks(tuple(ranks), tuple((number, names[number]) for number in numbers), columns, live)


def _spread(values: npt.NDArray[np.int64], columns: int) -> npt.NDArray[np.int64]:
    """Over as many columns; the highest of those that come together stays."""
    if len(values) <= columns:
        return values[np.arange(columns) * len(values) // columns]
    return np.asarray(np.maximum.reduceat(values, np.arange(columns) * len(values) // columns), dtype=np.int64)
