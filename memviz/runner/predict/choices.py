"""Tensors of places among others: the highest of some, a sorted order, what was drawn out of several.

Nobody computes which they are. A program that takes one out, as an action or a token, gets the first: it is always
there, and a size is rarely made of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from memviz.runner.predict.arguments import tensors_of
from memviz.runner.predict.by_storage import MarkedStorages

aten = torch.ops.aten
FIRST = 0
SENTENCE = "which of several it is, nobody computes; it is taken to be the first"
_CHOOSING = {aten.argmax.default, aten.argmin.default, aten.multinomial.default}
_CHOOSING_SECOND = {
    *(aten.topk.default, aten.sort.default, aten.sort.stable, aten.max.dim, aten.min.dim, aten.kthvalue.default),
    aten.mode.default,
}
"""Values come first."""
_KEEPING = {
    *(aten._to_copy.default, aten.clone.default, aten.index.Tensor, aten.gather.default, aten.cat.default),
    *(aten.stack.default, aten.copy_.default, aten.index_select.default),
}
"""Of the places that they are given."""


def concerns(func: Any) -> bool:
    """Whether what it gives may be places."""
    return func in _CHOOSING or func in _CHOOSING_SECOND or func in _KEEPING


class Choices(MarkedStorages):
    def follow(self, func: Any, args: Any, out: Any) -> None:
        for tensor in self._made(func, args, out):
            if isinstance(tensor, Tensor) and not tensor.is_floating_point():
                self.add(tensor)

    def _made(self, func: Any, args: Any, out: Any) -> Iterator[Any]:
        if func in _CHOOSING:
            yield out
        elif func in _CHOOSING_SECOND:
            yield out[1]
        elif len(self) and func in _KEEPING and any(tensor in self for tensor in tensors_of(args)):
            yield out
