"""Indexing with colons, as releases differ in it.

Up to torch 2.6 every ":" of `x[:, -1, :]` makes a slice, though it shows all of its dimension; and the gradient of
a slice is put among zeros, as large as what was sliced. Later ones leave such a slice out, as the one that runs may.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from memviz.runner.predict.torch_patches import Patches

_SLICES_UNTIL = (2, 6)
_END = 2**63 - 1
_WHOLE = slice(None)


@contextmanager
def sliced_as_in(release: tuple[int, int]) -> Iterator[None]:
    patches = Patches()
    try:
        if release <= _SLICES_UNTIL:
            patches.put(Tensor, "__getitem__", _with_every_slice(Tensor.__getitem__))
        yield
    finally:
        patches.undo()


def _with_every_slice(plain: Any) -> Any:
    def getitem(self: Tensor, index: Any) -> Any:
        steps_matter = isinstance(index, tuple) and self.is_meta and self.requires_grad and torch.is_grad_enabled()
        if not steps_matter or not any(isinstance(part, slice) and part == _WHOLE for part in index):
            return plain(self, index)
        return _step_by_step(plain, self, index)

    return getitem


def _step_by_step(plain: Any, tensor: Tensor, index: tuple[Any, ...]) -> Any:
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
                tensor = plain(tensor, (*(_WHOLE,) * at, part))
            later.append(_WHOLE)
            at += 1
        elif isinstance(part, int) and not isinstance(part, bool):
            tensor = tensor.select(at, part)
        else:
            later.append(part)
            at += part.dim() if isinstance(part, Tensor) and part.dtype == torch.bool else 1
    return plain(tensor, tuple(later)) if any(part is not _WHOLE for part in later) else tensor
