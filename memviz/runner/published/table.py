"""A published figure beside ours, and the rules by which both are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from memviz.runner.predict.cards import Card, card_named

GiB = 1 << 30

CARD = "A100 40GB"
"""The published peaks hold a cuBLAS workspace of 8.125 MiB, so they were measured on no Hopper; the speeds of the
first seed fit an A100. Any card of these generations gives the same figures."""

RELEASE = (2, 6)
"""Of torch, whose choices of kernels the published runs had: newer ones fuse what these did in several steps."""

ON_A_GPU = "speed: only a GPU can say"

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Row:
    case: str
    figure: str
    """What is counted: 'allocated GiB', 'reserved GiB', ..."""
    published: float | None
    """None where only a relation was published, or where the figure is ours alone."""
    ours: float | None
    """None where only a GPU can say."""
    note: str = ""
    same_model: bool = True
    """False where ours is of another model: then only the pattern compares, and no percentage means anything."""

    @property
    def difference_percent(self) -> float | None:
        if not self.same_model or not self.published or self.ours is None:
            return None
        return 100 * (self.ours / self.published - 1)


@dataclass(frozen=True)
class Seed:
    name: str
    title: str
    source: str
    """Where the table was published."""
    window: str
    """What is inside the measured window, because it changes the figures."""
    rows: Callable[[Tell], Iterator[Row]]

    def as_json(self, row: Row) -> dict[str, Any]:
        return {
            "seed": self.name,
            "case": row.case,
            "figure": row.figure,
            "published": row.published,
            "ours": row.ours,
            "difference_percent": row.difference_percent,
            "note": row.note,
        }


def card() -> Card:
    return card_named(CARD)


def gib(count: int) -> float:
    return count / GiB
