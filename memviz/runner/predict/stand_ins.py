"""What stands in for conditions and counts that nobody computes, where one answer is natural.

A count of what is true in a mask is all of it, as a mask is true everywhere where its places are asked for. A question
about numbers is answered as if they were 1.0, and a whole number, such as a token, equals none that it is compared
with: loops that generate go on to their end. Whoever looks gets these with a note; a tensor keeps them by its storage,
and its copies with it. What is drawn at random has no natural answer as long as nothing else came of it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from memviz.runner.predict.arguments import draws, tensors_of
from memviz.runner.predict.by_storage import ByStorage

aten = torch.ops.aten
STANDS = 1.0
_COUNTS = {aten.sum.default, aten.sum.dim_IntList, aten.count_nonzero.default, aten.count_nonzero.dim_IntList}
_KEEP = {
    *(aten.any.default, aten.any.dim, aten.any.dims, aten.all.default, aten.all.dim, aten.all.dims),
    *(aten._is_all_true.default, aten._is_any_true.default),
    *(aten.cat.default, aten.stack.default, aten.index.Tensor, aten.index_select.default, aten.clone.default),
    *(aten._to_copy.default, aten.copy_.default),
    *(aten.max.default, aten.min.default, aten.amax.default, aten.amin.default),
}
WHOLE_ARITHMETIC: dict[Any, Callable[[Any, Any], Any]] = {
    aten.add.Tensor: operator.add,
    aten.sub.Tensor: operator.sub,
    aten.mul.Tensor: operator.mul,
}
"""That a stand-in goes through where all of it is whole."""
_COMPARE: dict[Any, Callable[[Any, Any], bool]] = {
    overload: compare
    for name, compare in {
        "lt": operator.lt,
        "le": operator.le,
        "gt": operator.gt,
        "ge": operator.ge,
        "eq": operator.eq,
        "ne": operator.ne,
    }.items()
    for overload in (getattr(aten, name).Tensor, getattr(aten, name).Scalar)
}
_EQUALITIES = {func for func, compare in _COMPARE.items() if compare in (operator.eq, operator.ne)}
_CHOOSING = {aten.multinomial, aten.dropout, aten.native_dropout}
"""Which of several it is has an answer; what is left of a tensor is no draw."""
_SAME_DRAW = {
    *(aten.sum.default, aten.mean.default, aten.max.default, aten.min.default, aten.abs.default, aten.neg.default),
    *(aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor, aten.floor.default, aten.round.default),
}
"""Of one tensor that was drawn, and numbers."""
_JOINS: dict[Any, Callable[[Any], bool]] = {
    **dict.fromkeys((aten.bitwise_or.Tensor, aten.bitwise_or_.Tensor), any),
    **dict.fromkeys((aten.logical_or.default, aten.logical_or_.default), any),
    **dict.fromkeys((aten.bitwise_and.Tensor, aten.bitwise_and_.Tensor), all),
    **dict.fromkeys((aten.logical_and.default, aten.logical_and_.default), all),
}
_NOT = {aten.logical_not.default, aten.bitwise_not.default}
_PRODUCTS = {aten.cumprod.default, aten.prod.default, aten.prod.dim_int}
"""Of zeros and ones."""
_CONCERNED = {*_COUNTS, *_COMPARE, *_NOT, *_JOINS, *_KEEP, *_PRODUCTS, *WHOLE_ARITHMETIC}


def says_of_unknown(func: Any) -> bool:
    """Whether anything may stand in for its result, where nothing was drawn."""
    return func in _CONCERNED


class StandIns:
    def __init__(self, known: Callable[[Tensor], Tensor | None]) -> None:
        """`known` gives the values of a tensor, wherever it lies, or None."""
        self._known = known
        self._refs: ByStorage[int] = ByStorage()
        self._drawn: ByStorage[bool] = ByStorage()

    @property
    def has_draws(self) -> bool:
        return len(self._drawn) > 0

    def is_drawn(self, tensor: Tensor) -> bool:
        return tensor in self._drawn

    def of(self, tensor: Tensor) -> int | None:
        return self._refs.of(tensor)

    def copy(self, tensor: Tensor, copied: Tensor) -> None:
        number = self.of(tensor)
        if number is not None:
            self._mark(copied, number)
        if self.is_drawn(tensor):
            self._drawn.put(copied, True)

    def follow(self, func: Any, args: Any, out: Any) -> None:
        """After an operator that met values which nobody knows, or draws some; before what it wrote is forgotten."""
        if draws(func) and func.overloadpacket not in _CHOOSING:
            return self._drawn.put(out, True) if isinstance(out, Tensor) else None
        if self._drawn:
            self._follow_draws(func, args, out)
        if func in _COUNTS:
            self._count(args[0], out)
        elif func in _COMPARE:
            self._compare(func, args, out)
        elif self._refs and isinstance(out, Tensor) and not out.is_floating_point():
            self._follow_known(func, args, out)

    def _follow_known(self, func: Any, args: Any, out: Tensor) -> None:
        """Of tensors with a stand-in."""
        if func in _NOT and out.dtype is torch.bool:
            number = self.of(args[0])
            if number is not None:
                self._mark(out, int(not number))
        elif func in _JOINS and out.dtype is torch.bool:
            self._join(func, args, out)
        elif func in WHOLE_ARITHMETIC and _is_whole(out):
            one, other = map(self._number, args[:2])
            if type(one) is int and type(other) is int:
                self._mark(out, WHOLE_ARITHMETIC[func](one, other))
        elif func in _KEEP or func in _PRODUCTS and self.of(args[0]) in (0, 1):
            numbers = [number for number in map(self.of, tensors_of(args)) if number is not None]
            if numbers:
                self._mark(out, min(numbers))

    def _count(self, tensor: Tensor, out: Any) -> None:
        if not isinstance(out, Tensor) or not out.numel():
            return
        each = tensor.numel() // out.numel()
        if tensor.dtype is torch.bool:
            self._mark(out, each)
        elif _is_whole(tensor) and (number := self.of(tensor)) is not None:
            self._mark(out, number * each)

    def _join(self, func: Any, args: Any, out: Tensor) -> None:
        answers = [self._truth(arg) for arg in args[:2]]
        if None not in answers:
            self._mark(out, int(_JOINS[func](answers)))

    def _truth(self, value: Any) -> bool | None:
        """Of values that are all alike, or of what stands in for them."""
        values = self._known(value)
        if values is None:
            number = self.of(value)
            return None if number is None else bool(number)
        return bool(values.all()) if bool(values.all()) == bool(values.any()) else None

    def _follow_draws(self, func: Any, args: Any, out: Any) -> None:
        follows = func in _SAME_DRAW or func in _KEEP or func in _COMPARE or func in _NOT or func in _COUNTS
        if not follows or not isinstance(out, Tensor):
            return
        tensors = [arg for arg in args if isinstance(arg, Tensor) and self._known(arg) is None]
        if len(tensors) == 1 and self.is_drawn(tensors[0]):
            self._drawn.put(out, True)

    def _compare(self, func: Any, args: Any, out: Tensor) -> None:
        if func in _EQUALITIES and all(map(_is_whole, args[:2])) and None in map(self._number, args[:2]):
            return self._mark(out, int(_COMPARE[func](0, 1)))
        one, other = map(self._number, args[:2])
        if one is not None and other is not None:
            self._mark(out, int(_COMPARE[func](one, other)))

    def _number(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        values = self._known(value)
        if values is not None:
            return values.reshape(-1)[0].item() if values.numel() == 1 else None
        return STANDS if value.is_floating_point() else self.of(value)

    def _mark(self, tensor: Tensor, number: int) -> None:
        self._refs.put(tensor, number)


def _is_whole(value: Any) -> bool:
    if isinstance(value, Tensor):
        return not (value.is_floating_point() or value.is_complex() or value.dtype is torch.bool)
    return type(value) is int
