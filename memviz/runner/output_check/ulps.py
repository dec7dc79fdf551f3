"""Distance in units in the last place: how many numbers of the type lie between two of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

_BITS = {
    torch.float64: torch.int64,
    torch.float32: torch.int32,
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
    torch.float8_e4m3fn: torch.int8,
    torch.float8_e5m2: torch.int8,
}
EDGES = (0, 1, 2, 4, 8, 16, 64, 256, 1024)


@dataclass(frozen=True)
class Ulps:
    max: int
    histogram: tuple[tuple[int | None, int], ...]
    """(at most so many, elements), each apart from the ones before; None: more. Empty bins are left out."""


def ulps_between(one: Tensor, other: Tensor) -> Tensor | None:
    """Per element, int64; None for a type that is not counted so. Both zeros are the same number; no NaN, please."""
    if one.dtype != other.dtype or one.dtype not in _BITS:
        return None
    first, second = _ordered(one), _ordered(other)
    apart = (first - second).abs()
    # The largest float64 and its negative lie further apart than an int64 counts.
    across = (first < 0) != (second < 0)
    beyond = across & (first.abs() + second.abs() < 0)
    return torch.where(beyond, torch.iinfo(torch.int64).max, apart)


def _ordered(values: Tensor) -> Tensor:
    """Bits of a floating point number are sign and magnitude; as one integer they have the numbers' order."""
    kind = _BITS[values.dtype]
    bits = values.contiguous().view(kind).to(torch.int64)
    return torch.where(bits < 0, -(bits - torch.iinfo(kind).min), bits)


class UlpCounts:
    """Ulps gathered over the pieces of a large tensor."""

    def __init__(self) -> None:
        self._max = 0
        self._counts = [0] * (len(EDGES) + 1)

    def add(self, distances: Tensor) -> None:
        if not distances.numel():
            return
        self._max = max(self._max, int(distances.max()))
        edges = torch.tensor(EDGES, device=distances.device)
        bins = torch.bucketize(distances.reshape(-1), edges)
        for index, count in enumerate(torch.bincount(bins, minlength=len(self._counts)).tolist()):
            self._counts[index] += count

    def result(self) -> Ulps:
        bounds: Iterable[int | None] = (*EDGES, None)
        return Ulps(self._max, tuple((edge, n) for edge, n in zip(bounds, self._counts, strict=True) if n))
