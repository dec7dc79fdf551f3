"""The same weights moved in both models, as an optimizer would move them: for what is right once and never again.

A change may compute with weights that it kept, or add to sums that it never emptied. Its first step is right then.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

SHARE = 0.1
"""Of its own size, by which every weight moves on average: far beyond any rounding, and the same model still."""


def moved_weights(model: nn.Module) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(0)
    found = {}
    for name, each in model.named_parameters():
        if each.is_floating_point():
            size = float(each.detach().to(torch.float64).norm()) / math.sqrt(max(each.numel(), 1))
            by = torch.randn(each.shape, generator=draw) * (SHARE * size)
            found[name] = each.detach() + by.to(device=each.device, dtype=each.dtype)
    return found


def takes(model: nn.Module, weights: Mapping[str, Tensor]) -> bool:
    """Whether it has these very weights, neither stored in another type nor under other names."""
    ours = {name: each for name, each in model.named_parameters() if each.is_floating_point()}
    alike = (ours[name].dtype is each.dtype and ours[name].shape == each.shape for name, each in weights.items())
    return ours.keys() == weights.keys() and all(alike)


@contextmanager
def holding(model: nn.Module, weights: Mapping[str, Tensor]) -> Iterator[None]:
    """In place, where an optimizer writes, too; afterwards as before."""
    ours = {name: each for name, each in model.named_parameters() if name in weights}
    kept = {name: each.detach().clone() for name, each in ours.items()}
    try:
        _write(ours, weights)
        yield
    finally:
        _write(ours, kept)


@torch.no_grad()
def _write(into: Mapping[str, nn.Parameter], weights: Mapping[str, Tensor]) -> None:
    for name, each in into.items():
        each.copy_(weights[name])
