"""Default values for results that are not computed: indices, uniform routing, and conditions and counts.

An index among several is the first. Routing (tokens over experts, vectors over a codebook) is uniform, with the
remainder on the first, so counts add up. A mask is true everywhere, a number is 1.0, and a whole number equals none
that it is compared with. Facts are kept per storage, so views share them.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from memviz.runner.predict.arguments import draws, tensors_of

Known = TypeVar("Known")


class _KeyedRef(weakref.ref["torch.UntypedStorage"]):
    __slots__ = ("key",)
    key: int


class ByStorage(Generic[Known]):
    def __init__(self) -> None:
        self._known: dict[int, tuple[_KeyedRef, Known]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, tensor: Tensor) -> bool:
        return _storage_key(tensor) in self._known

    def of(self, tensor: Tensor) -> Known | None:
        known = self._known.get(_storage_key(tensor))
        return None if known is None else known[1]

    def put(self, tensor: Tensor, known: Known) -> None:
        storage = tensor.untyped_storage()
        ref = _KeyedRef(storage, self._gone)
        ref.key = storage._cdata
        self._known[ref.key] = ref, known

    def _gone(self, ref: weakref.ref[torch.UntypedStorage]) -> None:
        assert isinstance(ref, _KeyedRef)
        known = self._known.get(ref.key)
        if known is not None and known[0] is ref:
            del self._known[ref.key]


class _SizedRef(weakref.ref["torch.UntypedStorage"]):
    __slots__ = ("key", "size")
    key: int
    size: int


class MarkedStorages:
    """Storages with a property that torch does not record: their values are unknown, or they count as pinned.

    Keyed by the address of the storage's C++ object while the storage lives, so that views are marked with it.
    """

    def __init__(self) -> None:
        self._refs: dict[int, _SizedRef] = {}
        self.bytes = 0
        self.peak_bytes = 0

    def __len__(self) -> int:
        return len(self._refs)

    def __contains__(self, tensor: object) -> bool:
        if not self._refs or not isinstance(tensor, Tensor):
            return False
        if tensor.layout is not torch.strided:
            return False
        return tensor.untyped_storage()._cdata in self._refs

    def add(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        ref = _SizedRef(storage, self._gone)
        ref.key, ref.size = storage._cdata, storage.nbytes()
        self._take(ref.key)
        self._refs[ref.key] = ref
        self.bytes += ref.size
        self.peak_bytes = max(self.peak_bytes, self.bytes)

    def remove(self, tensor: Tensor) -> None:
        self._take(tensor.untyped_storage()._cdata)

    def _take(self, key: int) -> None:
        known = self._refs.pop(key, None)
        self.bytes -= 0 if known is None else known.size

    def _gone(self, ref: weakref.ref[torch.UntypedStorage]) -> None:
        key = ref.key  # type: ignore[attr-defined]
        if self._refs.get(key) is ref:
            self._take(key)


def _storage_key(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata) if tensor.layout is torch.strided else 0


aten = torch.ops.aten
FIRST_INDEX = 0
FIRST_CHOSEN = "which of several it is, nobody computes; it is taken to be the first"
_INDEX_OPERATORS = {aten.argmax.default, aten.argmin.default, aten.multinomial.default}
_SECOND_INDEX_OPERATORS = {
    *(aten.topk.default, aten.sort.default, aten.sort.stable, aten.max.dim, aten.min.dim, aten.kthvalue.default),
    aten.mode.default,
}
"""Values come first."""
_INDEX_KEEPING_OPERATORS = {
    *(aten._to_copy.default, aten.clone.default, aten.index.Tensor, aten.gather.default, aten.cat.default),
    *(aten.stack.default, aten.copy_.default, aten.index_select.default),
}
"""Operators whose result holds indices where their arguments do."""


def may_return_indices(func: Any) -> bool:
    """Return whether the result of an operator may hold indices."""
    return func in _INDEX_OPERATORS or func in _SECOND_INDEX_OPERATORS or func in _INDEX_KEEPING_OPERATORS


class IndexTensors(MarkedStorages):
    def follow(self, func: Any, args: Any, out: Any) -> None:
        for tensor in self._made(func, args, out):
            if isinstance(tensor, Tensor) and not tensor.is_floating_point():
                self.add(tensor)

    def _made(self, func: Any, args: Any, out: Any) -> Iterator[Any]:
        if func in _INDEX_OPERATORS:
            yield out
        elif func in _SECOND_INDEX_OPERATORS:
            yield out[1]
        elif len(self) and func in _INDEX_KEEPING_OPERATORS and any(tensor in self for tensor in tensors_of(args)):
            yield out


CHOSEN_EVENLY = "which of several it is, nobody computes; each is taken to be chosen equally often"
_ROUTING_OPERATORS = {
    **dict.fromkeys((aten.topk.default, aten.max.dim, aten.min.dim), 1),
    **dict.fromkeys((aten.argmax.default, aten.argmin.default, aten.multinomial.default), None),
}
"""And which of the results is a place, where there are several."""
_ROUTING_KEEPING_OPERATORS = {
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
ROUTED_OPERATORS = {
    *(*_ROUTING_OPERATORS, *_ROUTING_KEEPING_OPERATORS, *_COMPARES, *_SETS, *_SUMS, *_ANY, *_ADDS),
    *(aten.bincount.default, aten.histc.default),
}
_MOST_COUNTS = 1 << 16
"""That are spelled out."""
Values = Callable[[Tensor], Tensor | None]


class UniformRouting:
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
            return None if has_weights else _even_counts(args[0].numel(), out)
        if func in _SUMS:
            count = self.places_in(args[0])
            return None if count is None else _even_counts(count, out)
        if func is aten.histc.default:
            return _even_counts(args[0].numel(), out) if args[0] in self._places else None
        if func in _ADDS:
            return self._add(args, out)
        self._follow_marks(func, args, out)
        return None

    def _follow_marks(self, func: Any, args: Any, out: Any) -> None:
        if func in _ROUTING_OPERATORS:
            self._choose(func, args, out)
        elif func in _ROUTING_KEEPING_OPERATORS:
            self._keep(next(tensors_of(args[0]), None), out)
        elif func in _SETS:
            self._mark_places(args, out)
        elif func in _COMPARES:
            self._compare(func, args, out)
        elif func in _ANY and (share := self._marks.of(args[0])) is not None:
            # A row takes each of several once, so what they take adds up.
            self._marks.put(out, min(Fraction(1), share * args[0].numel() / max(out.numel(), 1)))

    def _choose(self, func: Any, args: Any, out: Any) -> None:
        result = _ROUTING_OPERATORS[func]
        places = out if result is None else out[result]
        dim = _chosen_dim(func, args)
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
        spread = _even_counts(index.numel(), out)
        return None if spread is None else before + spread


def _chosen_dim(func: Any, args: Any) -> int | None:
    """Among whose elements it chooses: the last dimension, or one that is named; None where all are one row."""
    at = 2 if func is aten.topk.default else 1
    if func is aten.multinomial.default:
        return -1
    given = args[at] if len(args) > at else None
    return -1 if given is None and func is aten.topk.default else given


def _even_counts(count: int, over: Tensor) -> Tensor | None:
    if not 0 < over.numel() <= _MOST_COUNTS:
        return None
    share, left = divmod(count, over.numel())
    return (torch.arange(over.numel()) < left).add(share).to(over.dtype).view(over.shape)


DEFAULT_NUMBER = 1.0
_COUNTS = {aten.sum.default, aten.sum.dim_IntList, aten.count_nonzero.default, aten.count_nonzero.dim_IntList}
_VALUE_KEEPING_OPERATORS = {
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
_COMPARE_OPERATORS: dict[Any, Callable[[Any, Any], bool]] = {
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
_EQUALITIES = {func for func, compare in _COMPARE_OPERATORS.items() if compare in (operator.eq, operator.ne)}
_DRAWS_WITH_DEFAULT = {aten.multinomial, aten.dropout, aten.native_dropout}
"""Which of several it is has an answer; what is left of a tensor is no draw."""
_SAME_DRAW = {
    *(aten.sum.default, aten.mean.default, aten.max.default, aten.min.default, aten.abs.default, aten.neg.default),
    *(aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor, aten.floor.default, aten.round.default),
}
"""Operators on one randomly drawn tensor and plain numbers, which preserve the draw."""
_JOINS: dict[Any, Callable[[Any], bool]] = {
    **dict.fromkeys((aten.bitwise_or.Tensor, aten.bitwise_or_.Tensor), any),
    **dict.fromkeys((aten.logical_or.default, aten.logical_or_.default), any),
    **dict.fromkeys((aten.bitwise_and.Tensor, aten.bitwise_and_.Tensor), all),
    **dict.fromkeys((aten.logical_and.default, aten.logical_and_.default), all),
}
_NOT = {aten.logical_not.default, aten.bitwise_not.default}
_PRODUCTS = {aten.cumprod.default, aten.prod.default, aten.prod.dim_int}
"""Operators that keep a stand-in of 0 or 1."""
_DEFAULTED_OPERATORS = {
    *_COUNTS,
    *_COMPARE_OPERATORS,
    *_NOT,
    *_JOINS,
    *_VALUE_KEEPING_OPERATORS,
    *_PRODUCTS,
    *WHOLE_ARITHMETIC,
}


def has_default(func: Any) -> bool:
    """Return whether a result may have a stand-in, unless it was drawn at random."""
    return func in _DEFAULTED_OPERATORS


class DefaultValues:
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
        if draws(func) and func.overloadpacket not in _DRAWS_WITH_DEFAULT:
            return self._drawn.put(out, True) if isinstance(out, Tensor) else None
        if self._drawn:
            self._follow_draws(func, args, out)
        if func in _COUNTS:
            self._count(args[0], out)
        elif func in _COMPARE_OPERATORS:
            self._compare(func, args, out)
        elif self._refs and isinstance(out, Tensor) and not out.is_floating_point():
            self._follow_known(func, args, out)

    def _follow_known(self, func: Any, args: Any, out: Tensor) -> None:
        """Derive the stand-in of a result from those of its arguments."""
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
        elif func in _VALUE_KEEPING_OPERATORS or func in _PRODUCTS and self.of(args[0]) in (0, 1):
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
        """Return the truth of values that are all alike, or of their stand-in; None if there is neither."""
        values = self._known(value)
        if values is None:
            number = self.of(value)
            return None if number is None else bool(number)
        return bool(values.all()) if bool(values.all()) == bool(values.any()) else None

    def _follow_draws(self, func: Any, args: Any, out: Any) -> None:
        follows = (
            func in _SAME_DRAW
            or func in _VALUE_KEEPING_OPERATORS
            or func in _COMPARE_OPERATORS
            or func in _NOT
            or func in _COUNTS
        )
        if not follows or not isinstance(out, Tensor):
            return
        tensors = [arg for arg in args if isinstance(arg, Tensor) and self._known(arg) is None]
        if len(tensors) == 1 and self.is_drawn(tensors[0]):
            self._drawn.put(out, True)

    def _compare(self, func: Any, args: Any, out: Tensor) -> None:
        if func in _EQUALITIES and all(map(_is_whole, args[:2])) and None in map(self._number, args[:2]):
            return self._mark(out, int(_COMPARE_OPERATORS[func](0, 1)))
        one, other = map(self._number, args[:2])
        if one is not None and other is not None:
            self._mark(out, int(_COMPARE_OPERATORS[func](one, other)))

    def _number(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        values = self._known(value)
        if values is not None:
            return values.reshape(-1)[0].item() if values.numel() == 1 else None
        return DEFAULT_NUMBER if value.is_floating_point() else self.of(value)

    def _mark(self, tensor: Tensor, number: int) -> None:
        self._refs.put(tensor, number)


def _is_whole(value: Any) -> bool:
    if isinstance(value, Tensor):
        return not (value.is_floating_point() or value.is_complex() or value.dtype is torch.bool)
    return type(value) is int
