"""A model called with a part of the batch, for losses that hold their inputs themselves."""

from collections.abc import Iterator
from typing import Any

from torch import nn

from optimizations.gradient_accumulation import GradientAccumulation


def parts_of(model: nn.Module, pieces: GradientAccumulation | None) -> Iterator[tuple[Any, float]]:
    """Yield each micro-batch model with its share of the batch."""
    if pieces is None:
        yield model, 1.0
        return
    for number in range(pieces.pieces):
        part = _Part(model, pieces, number)
        yield part, 1 / pieces.pieces


class _Part:
    def __init__(self, model: nn.Module, pieces: GradientAccumulation, number: int) -> None:
        self.model, self.pieces, self.number = model, pieces, number

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = {**{str(place): value for place, value in enumerate(args)}, **kwargs}
        piece, share = list(self.pieces.split(given))[self.number]
        assert share == 1 / self.pieces.pieces
        by_place = [piece.pop(str(place)) for place in range(len(args))]
        return self.model(*by_place, **piece)
