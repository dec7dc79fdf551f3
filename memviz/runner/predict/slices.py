"""Indexing with colons, as releases differ in it.

Up to torch 2.6 every ":" of `x[:, -1, :]` makes a slice, though it shows all of its dimension; and the gradient of
a slice is put among zeros, as large as what was sliced. Later ones leave such a slice out, as the one that runs may.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

SLICES_UNTIL = (2, 6)
_END = 2**63 - 1
_WHOLE = slice(None)


def index_with_every_slice(args: Any, kwargs: Any) -> Any:
    """Index as torch 2.6 does; the default where that makes no difference.

    `Tensor.__getitem__` itself is not replaced: a Python function there makes CPython treat tensors as sequences, and
    `torch.tensor([x.sum()])` fails in the process from then on, even when the function is taken away.
    """
    tensor, index = args
    steps_matter = isinstance(index, tuple) and tensor.is_meta and tensor.requires_grad and torch.is_grad_enabled()
    if not steps_matter or not any(isinstance(part, slice) and part == _WHOLE for part in index):
        return NotImplemented
    return _step_by_step(tensor, index)


def _step_by_step(tensor: Tensor, index: tuple[Any, ...]) -> Any:
    """Dimension by dimension, as torch does it: numbers, slices and new dimensions first, tensors together at last."""
    taken = sum(1 for part in index if part is not None and part is not Ellipsis and not isinstance(part, bool))
    taken += sum(part.dim() - 1 for part in index if isinstance(part, Tensor) and part.dtype == torch.bool)
    left = tensor.dim() - taken
    at = 0
    later: list[Any] = []
    for part in index:
        if part is Ellipsis:
            later += [_WHOLE] * left
            at += left
        elif part is None:
            tensor = tensor.unsqueeze(at)
            later.append(_WHOLE)
            at += 1
        elif isinstance(part, slice):
            if part == _WHOLE:
                tensor = torch.ops.aten.slice.Tensor(tensor, at, 0, _END, 1)
            else:
                tensor = tensor[(*(_WHOLE,) * at, part)]
            later.append(_WHOLE)
            at += 1
        elif isinstance(part, int) and not isinstance(part, bool):
            tensor = tensor.select(at, part)
        else:
            later.append(part)
            at += part.dim() if isinstance(part, Tensor) and part.dtype == torch.bool else 1
    return tensor[tuple(later)] if any(part is not _WHOLE for part in later) else tensor
