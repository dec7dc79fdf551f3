"""What storing weights in a smaller type explains, to the bit.

A model whose weights rest in a small type computes what the same model computes with its weights rounded through that
type once. So what storing costs is not estimated: the reference's own weights are rounded, each through the type that
the changed model stores it in, and whatever the changed model differs from *that* must be rounding, like any rewrite's.
The type that layers compute in is read off what goes into them; a coarser one than the model's rounds as that one does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import torch
from torch import nn

from memviz.runner.output_check.flatten import flatten
from memviz.runner.output_check.rounding import coarser, unit_roundoff

Types = dict[str, torch.dtype]


def stored_types(reference: nn.Module, changed: nn.Module) -> Types:
    """Weights that the changed model keeps in a coarser type than the reference, by name."""
    ours = {name: each.dtype for name, each in changed.named_parameters()}
    return {
        name: ours[name]
        for name, each in reference.named_parameters()
        if name in ours and each.is_floating_point() and coarser(ours[name], each.dtype)
    }


def coarsest_stored(types: Types) -> torch.dtype | None:
    found = [each for each in types.values() if each.is_floating_point]
    return max(found, key=unit_roundoff, default=None)


def as_stored(reference: nn.Module, types: Types) -> nn.Module:
    """A copy whose weights went through these types and back."""
    rounded = deepcopy(reference)
    for name, each in rounded.named_parameters():
        if name in types:
            each.data = each.data.to(types[name]).to(each.dtype)
    return rounded


@contextmanager
def computing_in(model: nn.Module) -> Iterator[set[torch.dtype]]:
    """Types of what modules are given inside; those that tensors only rest in do not count."""
    found: set[torch.dtype] = set()

    def note(_module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        given = [each.dtype for each in flatten((args, kwargs)).values()]
        found.update(each for each in given if each.is_floating_point and each.itemsize > 1)

    handles = [each.register_forward_pre_hook(note, with_kwargs=True) for each in model.modules()]
    try:
        yield found
    finally:
        for each in handles:
            each.remove()
