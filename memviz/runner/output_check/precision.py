"""A module in float64 for a moment: the way to tell rounding from a bug.

Rounding shrinks with the type, by 5e8 from float32 to float64; a mistake in the arithmetic stays as large as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy

import torch
from torch import Tensor, nn

LIMIT_BYTES = 2 << 30
"""A module whose weights would take more than this as float64 is judged without it."""


def fits(*modules: nn.Module) -> bool:
    return sum(each.numel() * 8 for each in _floating(*modules)) <= LIMIT_BYTES


@contextmanager
def doubled(module: nn.Module, *others: nn.Module) -> Iterator[nn.Module]:
    """Weights and buffers in float64, then the very same ones as before.

    The parameters stay the same objects, so it holds for code that keeps them elsewhere, too. Gradients go.
    """
    kept = [(each, each.data) for each in _floating(module, *others)]
    try:
        for each, data in kept:
            each.grad = None
            each.data = data.to(torch.float64)
        yield module
    finally:
        for each, data in kept:
            each.grad = None
            each.data = data


@contextmanager
def doubled_copy(module: nn.Module) -> Iterator[nn.Module]:
    """For a module that keeps account of its weights' types, as one whose weights are cast: what it is given back
    would be another to it than what was taken."""
    yield deepcopy(module).to(torch.float64)


def _floating(*modules: nn.Module) -> list[Tensor]:
    every = [each for module in modules for each in (*module.parameters(), *module.buffers())]
    unique = {id(each): each for each in every if each.is_floating_point() and each.dtype != torch.float64}
    return list(unique.values())
