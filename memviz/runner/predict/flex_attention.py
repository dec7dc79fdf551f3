"""Flex attention, as its compiled kernels take memory: the output and a number for each query, in backward likewise.

Programs compile it, since uncompiled it keeps every score. It is no operator of torch's C++: it takes functions as
arguments, and to derive those torch would trace them. Their memory is nothing, so here nobody does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

ASSUMED = "flex_attention runs as its compiled kernels would, and keeps no scores; uncompiled it would keep them all"


Forget = Callable[[Tensor], None]
"""The values of a tensor, which seems to hold what lay there before."""


def flex_attention(forget: Forget, query: Tensor, key: Tensor, value: Tensor, score_mod: Any) -> tuple[Tensor, ...]:
    """What torch's own gives: the output, the logarithms of sums, and the largest scores, which nobody asked for."""
    inputs: tuple[Tensor, ...] = (query, key, value)
    if torch.is_autocast_enabled("cuda"):
        inputs = tuple(tensor.to(torch.get_autocast_dtype("cuda")) for tensor in inputs)
    made: tuple[Tensor, ...] = _FlexAttention.apply(forget, *inputs, *_learned(score_mod))  # type: ignore[no-untyped-call]
    return made


def _learned(score_mod: Any) -> list[Tensor]:
    """What the function takes from around it and is trained, as a table of biases."""
    cells = [cell.cell_contents for cell in getattr(score_mod, "__closure__", None) or ()]
    names = getattr(getattr(score_mod, "__code__", None), "co_names", ())
    around = [score_mod.__globals__.get(name) for name in names]
    return [value for value in (*cells, *around) if isinstance(value, Tensor) and value.requires_grad]


class _FlexAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, forget: Forget, query: Tensor, key: Tensor, value: Tensor, *learned: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        same = query.size(-1) == value.size(-1)
        output = torch.empty_like(query) if same else query.new_empty(*query.shape[:-1], value.size(-1))
        sums = query.new_empty(query.shape[:-1], dtype=torch.float32)
        largest = query.new_empty(0, dtype=torch.float32)
        for tensor in (output, sums):
            forget(tensor)
        ctx.forget = forget
        ctx.save_for_backward(query, key, value, output, sums, *learned)
        ctx.mark_non_differentiable(largest)
        return output, sums, largest

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """The kernel reads the products of output and gradient, one number for each query."""
        query, key, value, _output, _sums, *learned = ctx.saved_tensors
        products = query.new_empty(query.shape[:-1], dtype=torch.float32)
        made = tuple(torch.empty_like(tensor) for tensor in (query, key, value, *learned))
        del products
        for gradient in made:
            ctx.forget(gradient)
        return None, *made
