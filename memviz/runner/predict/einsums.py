"""`einsum` of two tensors as torch made it up to 2.8: the left one is always the left of the product.

Later ones turn the two round where that gives a result whose rows lie as the equation orders them (read; proved by
recordings of torch 2.6). Which way it is decides how the result lies, and with it what the next operators copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
TURNED_SINCE = (2, 9)
_REST = "."
"""Stands for one dimension of an ellipsis, followed by its number from the right."""


def einsum(equation: str, operands: Sequence[Tensor], *, path: Any = None) -> Any:
    """What the older releases do, or NotImplemented where they are no different."""
    if len(operands) != 2 or "->" not in equation:
        return NotImplemented
    inputs, _, output = equation.replace(" ", "").partition("->")
    terms = inputs.split(",")
    if len(terms) != 2:
        return NotImplemented
    named = [_names(term, operand.dim()) for term, operand in zip(terms, operands, strict=True)]
    most = max((sum(name.startswith(_REST) for name in names) for names in named), default=0)
    wanted = _names(output, len(output.replace("...", "")) + (most if "..." in output else 0))
    summed = sorted({name for names in named for name in names} - set(wanted))
    if any(len(set(names)) < len(names) for names in (*named, wanted)) or not summed:
        return NotImplemented
    order = [*wanted, *summed]
    left, right = (_aligned(one, names, order) for one, names in zip(operands, named, strict=True))
    return _product(left, right, len(wanted))


def _names(term: str, dims: int) -> list[str]:
    before, dots, after = term.partition("...")
    rest = dims - len(before) - len(after) if dots else 0
    return [*before, *(f"{_REST}{number}" for number in reversed(range(rest))), *after]


def _aligned(tensor: Tensor, names: list[str], order: list[str]) -> Tensor:
    """With a dimension for each name, of size 1 where it has none."""
    for name in order:
        if name not in names:
            tensor, names = tensor.unsqueeze(-1), [*names, name]
    return tensor.permute([names.index(name) for name in order])


def _product(left: Tensor, right: Tensor, kept: int) -> Any:
    dims = range(left.dim())
    both = [at for at in dims[:kept] if left.size(at) != 1 and right.size(at) != 1]
    of_left = [at for at in dims[:kept] if left.size(at) != 1 and at not in both]
    of_right = [at for at in dims[:kept] if at not in both and at not in of_left]
    summed = list(dims[kept:])
    as_now = not of_left or not of_right or of_right[-1] > of_left[0]
    if as_now or any(left.size(at) == 1 or right.size(at) == 1 for at in summed):
        return NotImplemented
    sizes = [left.size(at) for at in both], [left.size(at) for at in of_left], [right.size(at) for at in of_right]
    batch, rows, columns = (torch.Size(part).numel() for part in sizes)
    inner = torch.Size([left.size(at) for at in summed]).numel()
    left = left.permute(both + of_left + summed + of_right).reshape(batch, rows, inner)
    right = right.permute(both + summed + of_right + of_left).reshape(batch, inner, columns)
    made = torch.bmm(left, right).view(*sizes[0], *sizes[1], *(1 for _ in summed), *sizes[2])
    lies = both + of_left + summed + of_right
    made = made.permute([lies.index(at) for at in dims])
    return made.view(made.shape[:kept])
