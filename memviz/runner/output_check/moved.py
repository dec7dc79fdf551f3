"""The same weights moved in both models, as an optimizer would move them: for what is right once and never again.

A change may compute with weights that it kept, or add to sums that it never emptied. Its first step is right then.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

SHARE = 0.1
"""Of its own size, by which every weight moves on average: far beyond any rounding, and the same model still."""


def moved_weights(model: nn.Module, rests: Mapping[str, torch.dtype]) -> dict[str, Tensor]:
    """Through the types that the other model keeps them in, where it has its own, so that both can hold them."""
    draw = torch.Generator().manual_seed(0)
    moved = {}
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point():
            size = float(parameter.detach().to(torch.float64).norm()) / math.sqrt(max(parameter.numel(), 1))
            by = torch.randn(parameter.shape, generator=draw) * (SHARE * size)
            weight = parameter.detach() + by.to(device=parameter.device, dtype=parameter.dtype)
            moved[name] = weight.to(rests[name]).to(weight.dtype) if name in rests else weight
    return moved


def takes(model: nn.Module, weights: Mapping[str, Tensor], rests: Mapping[str, torch.dtype]) -> bool:
    """Whether it has these very weights, neither under other names nor stored in a type that is not known.

    A tensor that is made of others, as torchao's of codes and scales, says the dtype that it stands for.
    """
    ours = {name: parameter for name, parameter in model.named_parameters() if parameter.is_floating_point()}
    return ours.keys() == weights.keys() and all(
        ours[name].dtype is rests.get(name, weight.dtype)
        and ours[name].shape == weight.shape
        and not is_traceable_wrapper_subclass(ours[name])
        for name, weight in weights.items()
    )


@contextmanager
def holding(model: nn.Module, weights: Mapping[str, Tensor]) -> Iterator[None]:
    """In place, where an optimizer writes, too; afterwards as before."""
    ours = {name: parameter for name, parameter in model.named_parameters() if name in weights}
    kept = {name: weight.detach().clone() for name, weight in ours.items()}
    try:
        _write(ours, weights)
        yield
    finally:
        _write(ours, kept)


@torch.no_grad()
def _write(into: Mapping[str, nn.Parameter], weights: Mapping[str, Tensor]) -> None:
    for name, parameter in into.items():
        parameter.copy_(weights[name])
