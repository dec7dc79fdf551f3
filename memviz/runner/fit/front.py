"""Ways of running that no other is better than in both memory and cost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from memviz.runner.fit.cost import Cost
from memviz.runner.fit.predictions import Prediction
from memviz.runner.fit.space import Candidate


@dataclass(frozen=True)
class TriedWay:
    candidate: Candidate
    prediction: Prediction
    cost: Cost

    @property
    def peak_reserved_bytes(self) -> int:
        """On the card, where it fits there; else what it would reserve if nothing limited it."""
        return self.prediction.reserved_on_card_bytes if self.fits else self.prediction.peak_reserved_bytes

    @property
    def fits(self) -> bool:
        return self.prediction.fits is True


def front_of(ways: Iterable[TriedWay]) -> tuple[TriedWay, ...]:
    """Cheapest first; each next one is dearer and takes less. Of equal ones, that with the fewest changes."""
    ordered = sorted(ways, key=_order)
    front: list[TriedWay] = []
    for way in ordered:
        if not front or way.peak_reserved_bytes < front[-1].peak_reserved_bytes:
            front.append(way)
    return tuple(front)


def cheapest_that_fits(ways: Iterable[TriedWay]) -> TriedWay | None:
    """Of equally cheap ones, that with the fewest changes, though another may take less."""
    fitting = (way for way in ways if way.fits)
    return min(fitting, key=_simplest, default=None)


def _order(way: TriedWay) -> tuple[float, int, int]:
    return way.cost.rank, way.peak_reserved_bytes, _changes(way)


def _simplest(way: TriedWay) -> tuple[float, int, int]:
    return way.cost.rank, _changes(way), way.peak_reserved_bytes


def _changes(way: TriedWay) -> int:
    return sum(1 + len(knobs) for _, knobs in way.candidate.request.optimizations)
