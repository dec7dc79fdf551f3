"""What stands in for conditions and counts that nobody computes, where one answer is natural.

A count of what is true in a mask is all of it, as a mask is true everywhere where its places are asked for. A question
about numbers is answered as if they were 1.0, and a whole number, such as a token, equals none that it is compared
with: loops that generate go on to their end. What is counted into bins falls evenly into them, where it can: routed
to experts, each gets its share. Whoever looks gets these with a note; a tensor keeps them by its storage,
and its copies with it. What is drawn at random has no natural answer as long as nothing else came of it.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from memviz.runner.predict.arguments import draws, tensors_of

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
    **dict.fromkeys((aten.bitwise_or.Tensor, aten.logical_or.default), any),
    **dict.fromkeys((aten.bitwise_and.Tensor, aten.logical_and.default), all),
}
_NOT = {aten.logical_not.default, aten.bitwise_not.default}


def says_of_unknown(func: Any) -> bool:
    """Whether anything may stand in for its result, where nothing was drawn."""
    return func in _COUNTS or func in _COMPARE or func in _NOT or func in _JOINS or func in _KEEP or func in WHOLE_ARITHMETIC


class _StandIn(weakref.ref["torch.UntypedStorage"]):
    __slots__ = ("key", "number")
    key: int
    number: int


class StandIns:
    def __init__(self, known: Callable[[Tensor], Tensor | None]) -> None:
        """`known` gives the values of a tensor, wherever it lies, or None."""
        self._known = known
        self._refs: dict[int, _StandIn] = {}
        self._drawn: dict[int, _StandIn] = {}

    @property
    def has_draws(self) -> bool:
        return bool(self._drawn)

    def is_drawn(self, tensor: Tensor) -> bool:
        return _key(tensor) in self._drawn

    def of(self, tensor: Tensor) -> int | None:
        ref = self._refs.get(_key(tensor))
        return None if ref is None else ref.number

    def copy(self, tensor: Tensor, copied: Tensor) -> None:
        number = self.of(tensor) if self._refs else None
        if number is not None:
            self._mark(copied, number)
        if self.is_drawn(tensor):
            self._mark(copied, 0, self._drawn)

    def follow(self, func: Any, args: Any, out: Any) -> None:
        """After an operator that met values which nobody knows, or draws some."""
        if draws(func) and func.overloadpacket not in _CHOOSING:
            return self._mark(out, 0, self._drawn) if isinstance(out, Tensor) else None
        if self._drawn:
            self._follow_draws(func, args, out)
        if func in _COUNTS and args[0].dtype is torch.bool and isinstance(out, Tensor) and out.numel():
            self._mark(out, args[0].numel() // out.numel())
        elif func is aten.bincount.default:
            self._share(args[0].numel(), out)
        elif func in _COMPARE:
            self._compare(func, args, out)
        elif self._refs and func in _NOT and out.dtype is torch.bool:
            number = self.of(args[0])
            if number is not None:
                self._mark(out, int(not number))
        elif self._refs and func in _JOINS and out.dtype is torch.bool:
            self._join(func, args, out)
        elif self._refs and func in _KEEP and isinstance(out, Tensor) and not out.is_floating_point():
            numbers = [self.of(tensor) for tensor in tensors_of(args)]
            if any(number is not None for number in numbers):
                self._mark(out, min(number for number in numbers if number is not None))

        elif self._refs and func in WHOLE_ARITHMETIC and _is_whole(out):
            one, other = map(self._number, args[:2])
            if type(one) is int and type(other) is int:
                self._mark(out, WHOLE_ARITHMETIC[func](one, other))

    def _share(self, count: int, bins: Tensor) -> None:
        """Without weights, which would make sums of the counts."""
        if not bins.is_floating_point() and bins.numel() and not count % bins.numel():
            self._mark(bins, count // bins.numel())

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
            self._mark(out, 0, self._drawn)

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

    def _mark(self, tensor: Tensor, number: int, among: dict[int, _StandIn] | None = None) -> None:
        storage = tensor.untyped_storage()
        ref = _StandIn(storage, self._gone)
        ref.key, ref.number = storage._cdata, number
        among = self._refs if among is None else among
        among[ref.key] = ref

    def _gone(self, ref: weakref.ref[torch.UntypedStorage]) -> None:
        assert isinstance(ref, _StandIn)
        for refs in (self._refs, self._drawn):
            if refs.get(ref.key) is ref:
                del refs[ref.key]


def _key(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata) if tensor.layout is torch.strided else 0


def _is_whole(value: Any) -> bool:
    if isinstance(value, Tensor):
        return not (value.is_floating_point() or value.is_complex() or value.dtype is torch.bool)
    return type(value) is int
