"""What falls evenly where nobody computes which of several it is: tokens over experts, vectors over a codebook.

A router takes some of many for each row. Whoever then counts how often each was taken, or asks for the rows that took
one of them, gets an even share; what is left over goes to the first. The counts add up to what was there, so a
program can part its rows by them.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from memviz.runner.predict.arguments import tensors_of
from memviz.runner.predict.by_storage import ByStorage

aten = torch.ops.aten
EVENLY = "which of several it is, nobody computes; each is taken to be chosen equally often"
_CHOOSING = {
    **dict.fromkeys((aten.topk.default, aten.max.dim, aten.min.dim), 1),
    **dict.fromkeys((aten.argmax.default, aten.argmin.default, aten.multinomial.default), None),
}
"""And which of the results is a place, where there are several."""
_KEEPING = {
    *(aten._to_copy.default, aten.clone.default, aten.index.Tensor, aten.index_select.default, aten.cat.default),
    *(aten.stack.default, aten._unsafe_view.default),
}
_EQUALS = {aten.eq.Tensor, aten.eq.Scalar}
_COMPARES = {*_EQUALS, aten.gt.Scalar, aten.ne.Scalar}
_IS_ONE = {(aten.eq.Scalar, 1), (aten.gt.Scalar, 0), (aten.ne.Scalar, 0)}
_SETS = {aten.scatter.value, aten.scatter_.value}
_SUMS = {
    *(aten.sum.default, aten.sum.dim_IntList, aten.count_nonzero.default, aten.count_nonzero.dim_IntList),
}
_ANY = {aten.any.default, aten.any.dim, aten.any.dims}
_ADDS = {aten.scatter_add.default, aten.scatter_add_.default, aten.index_add.default, aten.index_add_.default}
CONCERNED = {
    *(*_CHOOSING, *_KEEPING, *_COMPARES, *_SETS, *_SUMS, *_ANY, *_ADDS),
    *(aten.bincount.default, aten.histc.default),
}
_MOST_COUNTS = 1 << 16
"""That are spelled out."""
Values = Callable[[Tensor], Tensor | None]


class EvenShares:
    def __init__(self, values: Values) -> None:
        """`values` gives those of a tensor, wherever it lies, or None."""
        self._values = values
        self._places: ByStorage[int] = ByStorage()
        """Tensors of places, and among how many."""
        self._marks: ByStorage[Fraction] = ByStorage()
        """Tensors of zeros and ones, and which part of them is one."""

    def places_in(self, mask: Tensor) -> int | None:
        """How often a mask is true, where that follows."""
        share = self._marks.of(mask)
        return None if share is None else round(share * mask.numel())

    def follow(self, func: Any, args: Any, out: Any) -> Tensor | None:
        """Before what is written is forgotten: values to assume of the result, if any follow."""
        if func is aten.bincount.default:
            has_weights = len(args) > 1 and args[1] is not None
            return None if has_weights else _spread(args[0].numel(), out)
        if func in _SUMS:
            count = self.places_in(args[0])
            return None if count is None else _spread(count, out)
        if func is aten.histc.default:
            return _spread(args[0].numel(), out) if args[0] in self._places else None
        if func in _ADDS:
            return self._add(args, out)
        self._follow_marks(func, args, out)
        return None

    def _follow_marks(self, func: Any, args: Any, out: Any) -> None:
        if func in _CHOOSING:
            self._choose(func, args, out)
        elif func in _KEEPING:
            self._keep(next(tensors_of(args[0]), None), out)
        elif func in _SETS:
            self._mark_places(args, out)
        elif func in _COMPARES:
            self._compare(func, args, out)
        elif func in _ANY and (share := self._marks.of(args[0])) is not None:
            # A row takes each of several once, so what they take adds up.
            self._marks.put(out, min(Fraction(1), share * args[0].numel() / max(out.numel(), 1)))

    def _choose(self, func: Any, args: Any, out: Any) -> None:
        result = _CHOOSING[func]
        places = out if result is None else out[result]
        dim = _dim_of(func, args)
        if dim is not None and args[0].dim():
            self._places.put(places, args[0].size(dim))

    def _keep(self, tensor: Tensor | None, out: Any) -> None:
        if tensor is None or not isinstance(out, Tensor):
            return
        many, share = self._places.of(tensor), self._marks.of(tensor)
        if many is not None:
            self._places.put(out, many)
        if share is not None:
            self._marks.put(out, share)

    def _mark_places(self, args: Any, out: Tensor) -> None:
        target, dim, index, number = args[:4]
        if index in self._places and number == 1:
            self._marks.put(out, Fraction(index.size(dim), target.size(dim)))

    def _compare(self, func: Any, args: Any, out: Tensor) -> None:
        one, other = args[0], args[1]
        share, many = self._marks.of(one), self._places.of(one)
        if share is not None and (func, other) in _IS_ONE:
            self._marks.put(out, share)
        elif many and func in _EQUALS and (type(other) is int or isinstance(other, Tensor) and self._is_known(other)):
            self._marks.put(out, Fraction(1, many))

    def _is_known(self, tensor: Tensor) -> bool:
        return self._values(tensor) is not None

    def _add(self, args: Any, out: Tensor) -> Tensor | None:
        """Ones, to what was counted before."""
        target, index, ones = args[0], args[2], args[3]
        if index not in self._places or target.dim() != 1:
            return None
        before, added = self._values(target), self._values(ones)
        if before is None or added is None or not bool((added == 1).all()):
            return None
        spread = _spread(index.numel(), out)
        return None if spread is None else before + spread


def _dim_of(func: Any, args: Any) -> int | None:
    """Among whose elements it chooses: the last dimension, or one that is named; None where all are one row."""
    at = 2 if func is aten.topk.default else 1
    if func is aten.multinomial.default:
        return -1
    given = args[at] if len(args) > at else None
    return -1 if given is None and func is aten.topk.default else given


def _spread(count: int, over: Tensor) -> Tensor | None:
    if not 0 < over.numel() <= _MOST_COUNTS:
        return None
    share, left = divmod(count, over.numel())
    return (torch.arange(over.numel()) < left).add(share).to(over.dtype).view(over.shape)
