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
from memviz.runner.output_check.model_runs import adapter_name
from memviz.runner.output_check.rounding_bounds import coarser, unit_roundoff

Types = dict[str, torch.dtype]


def stored_types(reference: nn.Module, changed: nn.Module) -> Types:
    """Weights that the changed model keeps in a coarser type than the reference, by the reference's name.

    A layer that something was wrapped around, as adapters are, is the wrapper's `base`.
    """
    ours = {_plain(name): parameter.dtype for name, parameter in changed.named_parameters()}
    return {
        name: ours[_plain(name)]
        for name, parameter in reference.named_parameters()
        if _plain(name) in ours and parameter.is_floating_point() and coarser(ours[_plain(name)], parameter.dtype)
    }


def _plain(name: str) -> str:
    return adapter_name(name).replace(".base.", ".")


def coarsest_stored(types: Types) -> torch.dtype | None:
    floating = [kind for kind in types.values() if kind.is_floating_point]
    return max(floating, key=unit_roundoff, default=None)


def as_stored(reference: nn.Module, types: Types) -> nn.Module:
    """A copy whose weights went through these types and back."""
    rounded = deepcopy(reference)
    for name, parameter in rounded.named_parameters():
        if name in types:
            parameter.data = parameter.data.to(types[name]).to(parameter.dtype)
    return rounded


@contextmanager
def computing_in(model: nn.Module) -> Iterator[set[torch.dtype]]:
    """Types of what modules are given inside; those that tensors only rest in do not count."""
    computing: set[torch.dtype] = set()

    def note(_module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        given = [tensor.dtype for tensor in flatten((args, kwargs)).values()]
        computing.update(tensor for tensor in given if tensor.is_floating_point and tensor.itemsize > 1)

    handles = [module.register_forward_pre_hook(note, with_kwargs=True) for module in model.modules()]
    try:
        yield computing
    finally:
        for handle in handles:
            handle.remove()
