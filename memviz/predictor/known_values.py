"""Values of tensors on the pretended device, known or assumed.

Known values are stored on the host. Small tensors computed from known values (masks, lengths, schedules, indices,
seeds) keep them, so a program that reads them gets the card's own answer. A large tensor keeps them only if all its
elements are equal. Results of unknown values, and random draws on the card, have none, but may have a default value:
an index among several is the first. Routing (tokens over experts, vectors over a codebook) is uniform, with the
remainder on the first, so counts add up. A mask is true everywhere, a number is 1.0, and an integer equals no number
that it is compared with.

Facts are keyed by storage, so all views share them.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import inf
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from memviz.predictor.ledger import StorageRef
from memviz.predictor.shapes import (
    SPARSE,
    draws,
    fills_its_storage,
    map_tensors,
    parts_of,
    tensors_of,
    written_arguments,
)

T = TypeVar("T")


class ByStorage(Generic[T]):
    """One fact a storage, kept by the address of its C++ object while the storage lives, so that views share it."""

    def __init__(self) -> None:
        self._facts: dict[int, tuple[StorageRef, T]] = {}

    def __len__(self) -> int:
        return len(self._facts)

    def __contains__(self, tensor: object) -> bool:
        return bool(self._facts) and isinstance(tensor, Tensor) and _storage_key(tensor) in self._facts

    def of(self, tensor: Tensor) -> T | None:
        fact = self._facts.get(_storage_key(tensor))
        return None if fact is None else fact[1]

    def put(self, tensor: Tensor, fact: T) -> None:
        storage = tensor.untyped_storage()
        ref = StorageRef(storage, self._gone)
        ref.key = storage._cdata
        self._drop(ref.key)
        self._facts[ref.key] = ref, fact

    def remove(self, tensor: Tensor) -> None:
        self._drop(_storage_key(tensor))

    def _gone(self, ref: weakref.ref[torch.UntypedStorage]) -> None:
        assert isinstance(ref, StorageRef)
        fact = self._facts.get(ref.key)
        if fact is not None and fact[0] is ref:
            self._drop(ref.key)

    def _drop(self, key: int) -> T | None:
        fact = self._facts.pop(key, None)
        return None if fact is None else fact[1]


class MarkedStorages(ByStorage[int]):
    """Storages with a property that torch does not record, by their size: unknown values, pinned memory."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0
        self.peak_bytes = 0

    def add(self, tensor: Tensor) -> None:
        size = tensor.untyped_storage().nbytes()
        self.put(tensor, size)
        self.bytes += size
        self.peak_bytes = max(self.peak_bytes, self.bytes)

    def _drop(self, key: int) -> int | None:
        size = super()._drop(key)
        self.bytes -= size or 0
        return size


def _storage_key(tensor: Tensor) -> int:
    if tensor.layout in SPARSE and not tensor.is_meta:
        tensor = parts_of(tensor)[-1]
    return int(tensor.untyped_storage()._cdata) if tensor.layout is torch.strided else 0


aten = torch.ops.aten
MOST_BYTES = 1 << 20
"""Largest floating-point tensor whose values are kept."""
_MOST_BYTES_OF_INDICES = 1 << 22
_MOST_ELEMENTS = 1 << 22
"""That an operator may run through, views of few values that are spread over many included."""
_MOST_SPELLED_OUT = 1 << 12
"""Limit of equal elements written out; above it only their number is stored, until some of them differ."""
_HOST = torch.device("cpu")
_FROM_ZERO = {aten.randint.default, aten.randint.generator}
_WHOLE_DRAWS = _FROM_ZERO | {aten.randint.low, aten.randint.low_generator}
_MOST_DRAWN = 256
_REAL_DRAWS = {aten.rand: torch.rand, aten.rand_like: torch.rand, aten.randn: torch.randn, aten.randn_like: torch.randn}
"""Drawn on the host if it is a single number: programs decide by it."""
_DRAWN_ON_HOST = "small random numbers of the card are drawn on the host, from seed 0"
"""Elements: offsets, lengths and steps, and not whole batches of tokens."""
_FILL_ALL = {aten.fill_.Scalar, aten.fill_.Tensor, aten.zero_.default, aten.copy_.default}
_UNIFORM_REDUCTIONS = {
    *(aten.all.default, aten.all.dim, aten.all.dims, aten.any.default, aten.any.dim, aten.any.dims),
    *(aten._is_all_true.default, aten._is_any_true.default),
    *(aten.max.default, aten.min.default, aten.amax.default, aten.amin.default, aten.mean.default, aten.mean.dim),
}
_ABSORBING = {
    **dict.fromkeys((aten.bitwise_or.Tensor, aten.logical_or.default), True),
    **dict.fromkeys((aten.bitwise_and.Tensor, aten.logical_and.default, aten.mul.Tensor), False),
}
_EMPTY = ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided")
_SHAPE_COUNTS = ("empty_like", "zeros_like", "ones_like", "full_like", "new_empty", "new_zeros", "new_ones", "new_full")
"""Operators whose result depends on the argument's shape and not on its values."""
_QUESTIONS = {
    *(aten.isnan.default, aten.isinf.default, aten.eq.Tensor, aten.ne.Tensor, aten.eq.Scalar, aten.ne.Scalar),
}
"""Tests of numbers with a certain answer if these are finite."""


def may_be_known_from_unknown(func: Any) -> bool:
    """Return whether a result may have known values where the arguments have none."""
    by_name = func.overloadpacket.__name__ in _SHAPE_COUNTS
    return by_name or draws(func) or func in _FILL_ALL or func in _ABSORBING or func in _QUESTIONS


@dataclass
class _Values:
    """Values of one storage: its bytes on the host, or the number that all elements equal."""

    bytes: torch.UntypedStorage | None = None
    number: Tensor | None = None
    reason: str = ""
    """Why the values are known without being computed; empty if they were computed."""


class KnownValues:
    def __init__(self, is_unknown_on_host: Callable[[Any], bool]) -> None:
        self._entries: ByStorage[_Values] = ByStorage()
        self._is_unknown_on_host = is_unknown_on_host
        self._draws = torch.Generator().manual_seed(0)

    def __contains__(self, tensor: Tensor) -> bool:
        return tensor in self._entries

    def of(self, tensor: Tensor) -> Tensor | None:
        """Return the known values of a device tensor as a host tensor, or None."""
        entry = self._entries.of(tensor)
        return None if entry is None else _twin(entry, tensor)

    def reason(self, tensor: Tensor) -> str:
        entry = self._entries.of(tensor)
        return "" if entry is None else entry.reason

    def put(self, tensor: Tensor, values: Tensor, reason: str = "") -> None:
        """Store the values of a tensor that has its storage to itself."""
        entry = _Values(_zeros_like_storage(tensor), None, reason)
        self._entries.put(tensor, entry)
        twin = _twin(entry, tensor)
        assert twin is not None
        twin.copy_(values)

    def put_uniform(self, tensor: Tensor, number: Any, reason: str) -> None:
        if _is_small(tensor) and tensor.numel() <= _MOST_SPELLED_OUT:
            self.put(tensor, torch.full(tensor.shape, number, dtype=tensor.dtype), reason)
        else:
            self._entries.put(tensor, _Values(None, torch.tensor(number, dtype=tensor.dtype), reason))

    def forget(self, tensor: Tensor) -> None:
        self._entries.remove(tensor)

    def forget_written(self, func: Any, args: Any, kwargs: Any) -> None:
        if self._entries:
            for tensor in written_arguments(func, args, kwargs):
                if tensor.is_meta:
                    self.forget(tensor)

    def written_in_place(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Update values where the result of a functional operator is its first argument, as backward adds and fills."""
        if not self._entries or not isinstance(out, Tensor) or not args or args[0] not in self._entries:
            return
        if _storage_key(out) != _storage_key(args[0]):
            return
        values = self.reads(func, args, kwargs) if _is_small(out) and self.all_known(args, kwargs) else None
        self.forget(out)
        if values is not None and fills_its_storage(out):
            self.put(out, values)

    def all_known(self, args: Any, kwargs: Any) -> bool:
        return all(map(self.is_known, tensors_of((args, kwargs))))

    def is_known(self, tensor: Tensor) -> bool:
        if tensor.is_meta:
            return tensor in self._entries
        return not self._is_unknown_on_host(tensor)

    def reads(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operator on the known values, on the host."""
        return func(*self._twins(args), **_on_host(self._twins(kwargs)))

    def on_device(self, result: Any, reason: str) -> Any:
        """Return device tensors with the shapes and values of a result computed on the host."""
        if isinstance(result, list | tuple):
            return type(result)(self.on_device(item, reason) for item in result)
        if not isinstance(result, Tensor):
            return result
        tensor = torch.empty_strided(result.shape, result.stride(), dtype=result.dtype, device="meta")
        if _is_small(tensor):
            self.put(tensor, result, reason)
        return tensor

    def reason_of(self, args: Any, kwargs: Any) -> str:
        return next(filter(None, map(self.reason, (t for t in tensors_of((args, kwargs)) if t.is_meta))), "")

    def follow(self, func: Any, args: Any, kwargs: Any, out: Any, *, writes: bool) -> None:
        """Update the values of an operator's results and written arguments, as far as they are known."""
        if func in _WHOLE_DRAWS and out.is_meta and 0 < out.numel() <= _MOST_DRAWN:
            low, high = (0, args[0]) if func in _FROM_ZERO else args[:2]
            values = torch.randint(low, high, tuple(out.shape), dtype=out.dtype, generator=self._draws)
            return self.put(out, values, _DRAWN_ON_HOST)
        if func.overloadpacket in _REAL_DRAWS and isinstance(out, Tensor) and out.is_meta and out.numel() == 1:
            draw = _REAL_DRAWS[func.overloadpacket]
            return self.put(out, draw(tuple(out.shape), dtype=out.dtype, generator=self._draws), _DRAWN_ON_HOST)
        knows = self.all_known(args, kwargs)
        if not knows and writes:
            fills = func in _FILL_ALL and fills_its_storage(args[0])
            knows = fills and self.all_known(args[1:], kwargs)
        elif not knows:
            knows = func.overloadpacket.__name__ in _SHAPE_COUNTS
        if writes and (draws(func) or not knows):
            self.forget_written(func, args, kwargs)
        if draws(func):
            return
        if not knows:
            return self._assume(func, args, out)
        try:
            if writes:
                self._write(func, args, kwargs)
            else:
                self._make(func, args, kwargs, out)
        except (RuntimeError, IndexError, TypeError, ValueError):
            # The host has no such kernel, or an index is out of bounds there, as it would be on a card.
            if writes:
                self.forget_written(func, args, kwargs)

    def _make(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        new = [tensor for tensor in tensors_of(out) if tensor.is_meta and not self._shares(tensor, args)]
        if not new:
            return
        reason = self.reason_of(args, kwargs)
        if func.overloadpacket.__name__ in _EMPTY:
            # Memory that is not written has other numbers in every run.
            if _is_small(new[0]):
                self.put_uniform(new[0], 0, reason)
            return
        if len(new) == 1 and new[0].numel() > _MOST_SPELLED_OUT:
            one = self._uniform_number(func, args, kwargs)
            if one is not None:
                return self.put_uniform(new[0], one, reason)
        few = all(tensor.numel() <= _MOST_ELEMENTS for tensor in tensors_of((args, kwargs)))
        if few and all(map(_is_small, new)):
            known = args
            if func.overloadpacket.__name__ in _SHAPE_COUNTS:
                like = args[0]
                known = (torch.empty_strided(like.shape, like.stride(), dtype=like.dtype), *args[1:])
            results = tensors_of(self.reads(func, known, kwargs))
            for target, values in zip(tensors_of(out), results, strict=True):
                if target.is_meta and not self._shares(target, args):
                    self.put(target, values, reason)
        elif len(new) == 1 and (one := self._uniform_number(func, args, kwargs)) is not None:
            self.put_uniform(new[0], one, reason)

    def _shares(self, tensor: Tensor, args: Any) -> bool:
        key = _storage_key(tensor)
        return any(other.is_meta and _storage_key(other) == key for other in tensors_of(args))

    def _write(self, func: Any, args: Any, kwargs: Any) -> None:
        target = args[0]
        if not isinstance(target, Tensor):
            # Programs rarely read values of tensors in lists.
            return self.forget_written(func, args, kwargs)
        if not target.is_meta:
            # The host has computed it: to do so again would add, turn or scale twice.
            return
        if not _is_small_storage(target):
            number = self._uniform_number(func, args, kwargs) if fills_its_storage(target) else None
            self.forget(target)
            if number is not None:
                self.put_uniform(target, number, self.reason_of(args[1:], kwargs))
            return
        reason = self.reason_of(args, kwargs)
        if target.numel() > _MOST_SPELLED_OUT and fills_its_storage(target):
            number = self._uniform_number(func, args, kwargs)
            if number is not None:
                return self.put_uniform(target, number, reason)
        entry = self._entries.of(target)
        if entry is None:
            self.put(target, torch.zeros((), dtype=target.dtype))
        elif entry.number is not None:
            if self._writes_again(func, args, entry.number):
                return
            # Elements that were stored as one number are written out.
            number, entry.number = entry.number, None
            entry.bytes = _zeros_like_storage(target)
            torch.empty(0, dtype=number.dtype, device=_HOST).set_(entry.bytes).fill_(number)
        if sum(tensor.numel() for tensor in tensors_of((args, kwargs))) > _MOST_ELEMENTS:
            return self.forget_written(func, args, kwargs)
        self.reads(func, args, kwargs)
        written = self._entries.of(target)
        if reason and written is not None:
            written.reason = reason

    def _writes_again(self, func: Any, args: Any, uniform: Tensor) -> bool:
        """Return whether a uniform tensor gets its own number written again."""
        if func is aten.zero_.default:
            return not uniform.item()
        if func not in _FILL_ALL:
            return False
        number = self._number(args[1]) if isinstance(args[1], Tensor) else torch.tensor(args[1])
        return number is not None and bool(number == uniform)

    def _uniform_number(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Return the number that all elements of the result equal, if it follows from uniform arguments, or None."""
        name = func.overloadpacket.__name__
        if name in ("zeros", "zeros_like", "new_zeros", "zero_"):
            return 0
        if name in ("ones", "ones_like", "new_ones"):
            return 1
        if name in ("full", "full_like", "new_full", "fill_"):
            number = args[1] if name != "new_full" else args[2]
            values = self.of(number) if isinstance(number, Tensor) and number.is_meta else number
            return values.item() if isinstance(values, Tensor) else values
        pointwise = torch.Tag.pointwise in func.tags or func in (aten._to_copy.default, aten.copy_.default)
        if not pointwise and func not in _UNIFORM_REDUCTIONS and name != "clone":
            return None
        tensors = list(tensors_of((args, kwargs)))
        numbers = [number for number in map(self._number, tensors) if number is not None]
        if not numbers or len(numbers) < len(tensors):
            return None
        rest = iter(numbers)
        ones = map_tensors(lambda tensor: next(rest).expand([1] * tensor.dim()).clone(), (args, kwargs))
        result: Tensor = func(*ones[0], **_on_host(ones[1]))
        return result.reshape(-1)[0].item() if isinstance(result, Tensor) else None

    def _number(self, tensor: Tensor) -> Tensor | None:
        if not tensor.is_meta:
            return tensor.reshape(()) if tensor.numel() == 1 else None
        entry = self._entries.of(tensor)
        if entry is None:
            return None
        if entry.number is not None:
            return entry.number if entry.number.dtype == tensor.dtype else None
        twin = _twin(entry, tensor)
        return twin.reshape(()) if twin is not None and twin.numel() == 1 else None

    def _assume(self, func: Any, args: Any, out: Any) -> None:
        if self._is_absorbed(func, args, out) or not isinstance(out, Tensor) or not out.is_meta:
            return
        number = None
        if func in (aten.isnan.default, aten.isinf.default):
            number = False
        elif func in (aten.eq.Tensor, aten.ne.Tensor) and args[0] is args[1]:
            number = func is aten.eq.Tensor
        elif func in (aten.eq.Scalar, aten.ne.Scalar) and args[1] in (inf, -inf):
            number = func is aten.ne.Scalar
        if number is not None:
            self.put_uniform(out, number, "numbers that are not computed are assumed to be finite")

    def _is_absorbed(self, func: Any, args: Any, out: Any) -> bool:
        """True or anything is true, false and anything is false, and zero times a whole number is zero."""
        absorbing = _ABSORBING.get(func)
        if absorbing is None or out.is_floating_point() or out.is_complex() or absorbing and out.dtype != torch.bool:
            return False
        for tensor in args[:2]:
            values = self.of(tensor) if isinstance(tensor, Tensor) and tensor.is_meta else None
            if values is not None and values.shape == out.shape and bool((values == absorbing).all()):
                self.put_uniform(out, absorbing, self.reason(tensor))
                return True
        return False

    def _twins(self, value: Any) -> Any:
        return map_tensors(lambda tensor: self.of(tensor) if tensor.is_meta else tensor, value)


def _zeros_like_storage(tensor: Tensor) -> torch.UntypedStorage:
    return torch.zeros(tensor.untyped_storage().nbytes(), dtype=torch.uint8, device=_HOST).untyped_storage()


def _twin(entry: _Values, tensor: Tensor) -> Tensor | None:
    if entry.number is not None:
        return entry.number.expand(tensor.shape) if entry.number.dtype == tensor.dtype else None
    assert entry.bytes is not None
    twin = torch.empty(0, dtype=tensor.dtype, device=_HOST)
    twin.set_(entry.bytes, tensor.storage_offset(), tensor.shape, tensor.stride())
    twin = twin.conj() if tensor.is_conj() else twin
    return twin._neg_view() if tensor.is_neg() else twin


def _is_small(tensor: Tensor) -> bool:
    return _is_small_storage(tensor) and tensor.numel() <= _MOST_ELEMENTS


def _is_small_storage(tensor: Tensor) -> bool:
    most = MOST_BYTES if tensor.is_floating_point() or tensor.is_complex() else _MOST_BYTES_OF_INDICES
    return tensor.untyped_storage().nbytes() <= most


def _on_host(kwargs: Any) -> Any:
    return {key: _HOST if key == "device" else value for key, value in kwargs.items()}


FIRST_CHOSEN = "a choice that is not computed is assumed to be the first"
CHOSEN_EVENLY = "choices that are not computed are assumed to be evenly distributed"
_ARG_EXTREMES = {
    **dict.fromkeys((aten.topk.default, aten.max.dim, aten.min.dim), 1),
    **dict.fromkeys((aten.argmax.default, aten.argmin.default, aten.multinomial.default), None),
}
"""Operators that choose among several, and which of their results is the index; None where it is the only one."""
_INDEX_OPERATORS = {
    **_ARG_EXTREMES,
    **dict.fromkeys((aten.sort.default, aten.sort.stable, aten.kthvalue.default, aten.mode.default), 1),
}
_INDEX_KEEPING_OPERATORS = {
    *(aten._to_copy.default, aten.clone.default, aten.index.Tensor, aten.gather.default, aten.cat.default),
    *(aten.stack.default, aten.copy_.default, aten.index_select.default),
}
"""Operators whose result holds indices where their arguments do."""
_SUMS = {*(aten.sum.default, aten.sum.dim_IntList, aten.count_nonzero.default, aten.count_nonzero.dim_IntList)}


def may_return_indices(func: Any) -> bool:
    return func in _INDEX_OPERATORS or func in _INDEX_KEEPING_OPERATORS


class IndexTensors(MarkedStorages):
    """Indices among several that are not computed; each is assumed to be the first."""

    def follow(self, func: Any, args: Any, out: Any) -> None:
        if func in _INDEX_OPERATORS:
            result = _INDEX_OPERATORS[func]
            out = out if result is None else out[result]
        elif not self or func not in _INDEX_KEEPING_OPERATORS or not any(tensor in self for tensor in tensors_of(args)):
            return
        if isinstance(out, Tensor) and not out.is_floating_point():
            self.add(out)


_IS_ONE = {(aten.eq.Scalar, 1), (aten.gt.Scalar, 0), (aten.ne.Scalar, 0)}


class UniformRouting:
    """Tokens that a router sends to experts, assumed to be spread evenly."""

    def __init__(self, values: Callable[[Tensor], Tensor | None]) -> None:
        """`values` returns the values of a host or device tensor, or None."""
        self._values = values
        self._places: ByStorage[int] = ByStorage()
        """Index tensors, with the number of choices."""
        self._marks: ByStorage[Fraction] = ByStorage()
        """Tensors of zeros and ones, with the share of ones."""

    def put(self, index: Tensor, many: int) -> None:
        """Note that a tensor holds indices among so many, evenly spread."""
        self._places.put(index, many)

    def choices_of(self, index: Any) -> int:
        return self._places.of(index) or 0 if isinstance(index, Tensor) else 0

    def places_in(self, mask: Tensor) -> int | None:
        """Return how often a mask is true, where that follows."""
        share = self._marks.of(mask)
        return None if share is None else round(share * mask.numel())

    def follow(self, func: Any, args: Any, out: Any) -> Tensor | None:
        """Return the values to assume of a result, if any follow; call it before written values are forgotten."""
        return _ROUTING_TRANSFERS[func](self, func, args, out)

    def _bincount(self, func: Any, args: Any, out: Any) -> Tensor | None:
        has_weights = len(args) > 1 and args[1] is not None
        return None if has_weights else _even_counts(args[0].numel(), out)

    def _histogram(self, func: Any, args: Any, out: Any) -> Tensor | None:
        return _even_counts(args[0].numel(), out) if args[0] in self._places else None

    def _sum(self, func: Any, args: Any, out: Any) -> Tensor | None:
        count = self.places_in(args[0])
        return None if count is None else _even_counts(count, out)

    def _add(self, func: Any, args: Any, out: Tensor) -> Tensor | None:
        target, index, ones = args[0], args[2], args[3]
        if index not in self._places or target.dim() != 1:
            return None
        before, added = self._values(target), self._values(ones)
        if before is None or added is None or not bool((added == 1).all()):
            return None
        spread = _even_counts(index.numel(), out)
        return None if spread is None else before + spread

    def _any(self, func: Any, args: Any, out: Tensor) -> None:
        share = self._marks.of(args[0])
        if share is not None:
            # A row takes each of several once, so what they take adds up.
            self._marks.put(out, min(Fraction(1), share * args[0].numel() / max(out.numel(), 1)))

    def _choose(self, func: Any, args: Any, out: Any) -> None:
        result, at = _ARG_EXTREMES[func], 2 if func is aten.topk.default else 1
        # Without a dimension, argmax and argmin choose among all elements, which are no row.
        dim = -1 if func in (aten.topk.default, aten.multinomial.default) else None
        if func is not aten.multinomial.default and len(args) > at and args[at] is not None:
            dim = args[at]
        if dim is not None and args[0].dim():
            self._places.put(out if result is None else out[result], args[0].size(dim))

    def _keep(self, func: Any, args: Any, out: Any) -> None:
        tensor = next(tensors_of(args[0]), None)
        if tensor is None or not isinstance(out, Tensor):
            return
        many, share = self._places.of(tensor), self._marks.of(tensor)
        if many is not None:
            self._places.put(out, many)
        if share is not None:
            self._marks.put(out, share)

    def _mark_places(self, func: Any, args: Any, out: Tensor) -> None:
        target, dim, index, number = args[:4]
        if index in self._places and number == 1:
            self._marks.put(out, Fraction(index.size(dim), target.size(dim)))

    def _compare(self, func: Any, args: Any, out: Tensor) -> None:
        one, other = args[0], args[1]
        share, many = self._marks.of(one), self._places.of(one)
        is_known = type(other) is int or isinstance(other, Tensor) and self._values(other) is not None
        if share is not None and (func, other) in _IS_ONE:
            self._marks.put(out, share)
        elif many and func in (aten.eq.Tensor, aten.eq.Scalar) and is_known:
            self._marks.put(out, Fraction(1, many))


_ROUTING_TRANSFERS: dict[Any, Callable[[UniformRouting, Any, Any, Any], Tensor | None]] = {
    aten.bincount.default: UniformRouting._bincount,
    aten.histc.default: UniformRouting._histogram,
    **dict.fromkeys(_SUMS, UniformRouting._sum),
    **{getattr(aten, name).default: UniformRouting._add for name in ("scatter_add", "index_add")},
    **{getattr(aten, name).default: UniformRouting._add for name in ("scatter_add_", "index_add_")},
    **dict.fromkeys((aten.any.default, aten.any.dim, aten.any.dims), UniformRouting._any),
    **dict.fromkeys(_ARG_EXTREMES, UniformRouting._choose),
    **{getattr(aten, name).default: UniformRouting._keep for name in ("_to_copy", "clone", "index_select")},
    **{getattr(aten, name).default: UniformRouting._keep for name in ("cat", "stack", "_unsafe_view")},
    aten.index.Tensor: UniformRouting._keep,
    **dict.fromkeys((aten.scatter.value, aten.scatter_.value), UniformRouting._mark_places),
    **dict.fromkeys((aten.eq.Tensor, aten.eq.Scalar, aten.gt.Scalar, aten.ne.Scalar), UniformRouting._compare),
}
ROUTED_OPERATORS = _ROUTING_TRANSFERS.keys()


def _even_counts(count: int, over: Tensor) -> Tensor | None:
    if not 0 < over.numel() <= 1 << 16:
        return None
    share, left = divmod(count, over.numel())
    return (torch.arange(over.numel()) < left).add(share).to(over.dtype).view(over.shape)


DEFAULT_NUMBER = 1.0
_VALUE_KEEPING_OPERATORS = {
    *(aten.any.default, aten.any.dim, aten.any.dims, aten.all.default, aten.all.dim, aten.all.dims),
    *(aten._is_all_true.default, aten._is_any_true.default),
    *(aten.cat.default, aten.stack.default, aten.index.Tensor, aten.index_select.default, aten.clone.default),
    *(aten._to_copy.default, aten.copy_.default),
    *(aten.min.default, aten.amin.default),
}
_SELECTIONS = {
    *(aten.cat.default, aten.stack.default, aten.index.Tensor, aten.index_select.default, aten.clone.default),
    *(aten._to_copy.default, aten.gather.default),
}
"""Operators whose results have no other numbers than their first argument."""
INTEGER_ARITHMETIC: dict[Any, Callable[[Any, Any], Any]] = {
    aten.add.Tensor: operator.add,
    aten.sub.Tensor: operator.sub,
    aten.mul.Tensor: operator.mul,
}
"""Operators that preserve a default value where all of it is whole."""
_COMPARISONS: dict[Any, Callable[[Any, Any], bool]] = {
    getattr(getattr(aten, name), overload): getattr(operator, name)
    for name in ("lt", "le", "gt", "ge", "eq", "ne")
    for overload in ("Tensor", "Scalar")
}
_EQUALITIES = {func for func, compare in _COMPARISONS.items() if compare in (operator.eq, operator.ne)}
_JOINS: dict[Any, Callable[[Any], bool]] = {
    **dict.fromkeys((aten.bitwise_or.Tensor, aten.bitwise_or_.Tensor), any),
    **dict.fromkeys((aten.logical_or.default, aten.logical_or_.default), any),
    **dict.fromkeys((aten.bitwise_and.Tensor, aten.bitwise_and_.Tensor), all),
    **dict.fromkeys((aten.logical_and.default, aten.logical_and_.default), all),
}
_NOT = {aten.logical_not.default, aten.bitwise_not.default}
_DIFFERENCES = {aten.bitwise_xor.Tensor, aten.logical_xor.default}
_PRODUCTS = {aten.cumprod.default, aten.prod.default, aten.prod.dim_int}
"""Operators that preserve a default value of 0 or 1."""


class DefaultValues:
    """Default values of conditions and whole numbers that are not computed."""

    def __init__(self, values_of: Callable[[Tensor], Tensor | None]) -> None:
        """`values_of` returns the values of a host or device tensor, or None."""
        self._values_of = values_of
        self._defaults: ByStorage[int] = ByStorage()
        self._greatest: ByStorage[int] = ByStorage()
        """The greatest number that may be in a tensor of whole numbers that are not computed."""
        self.borders = MarkedStorages()
        """Borders of masks: a mask that is true everywhere has none."""

    def of(self, tensor: Tensor) -> int | None:
        return self._defaults.of(tensor)

    def copy(self, tensor: Tensor, copied: Tensor) -> None:
        number = self.of(tensor)
        if number is not None:
            self._defaults.put(copied, number)

    def follow(self, func: Any, args: Any, out: Any) -> None:
        """Update defaults after an operator on values that are not computed."""
        if func in _SELECTIONS and _is_integer(out):
            most = [self._greatest_in(tensor) for tensor in tensors_of(args[:1])]
            known = [number for number in most if number is not None]
            if known and len(known) == len(most):
                self._greatest.put(out, max(known))
        elif func in _WHOLE_DRAWS:
            self._greatest.put(out, args[0 if func in _FROM_ZERO else 1] - 1)
        transfer = _DEFAULT_TRANSFERS.get(func) if isinstance(out, Tensor) else None
        number = None if transfer is None else transfer(self, func, args, out)
        if number is not None:
            self._defaults.put(out, number)

    def _count(self, func: Any, args: Any, out: Tensor) -> int | None:
        tensor = args[0]
        if not out.numel():
            return None
        each = tensor.numel() // out.numel()
        if tensor.dtype is torch.bool:
            return int(each)
        number = self.of(tensor) if _is_integer(tensor) else None
        return None if number is None else number * each

    def _compare(self, func: Any, args: Any, out: Tensor) -> int | None:
        one, other = map(self._number, args[:2])
        if func in _EQUALITIES and all(map(_is_integer, args[:2])) and None in (one, other):
            return int(_COMPARISONS[func](0, 1))
        if self._values_of(args[0]) is None and _is_integer(args[0]) and one is None:
            # As its `.item()` counts where it is compared.
            one = int(DEFAULT_NUMBER)
        return None if one is None or other is None else int(_COMPARISONS[func](one, other))

    def _differ(self, func: Any, args: Any, out: Tensor) -> int | None:
        if len(set(map(_storage_key, args[:2]))) != 1 or out.dtype is not torch.bool:
            return None
        self.borders.add(out)
        return 0

    def _negate(self, func: Any, args: Any, out: Tensor) -> int | None:
        number = self.of(args[0]) if out.dtype is torch.bool else None
        return None if number is None else int(not number)

    def _join(self, func: Any, args: Any, out: Tensor) -> int | None:
        answers = [self._truth(arg) for arg in args[:2]] if self._defaults and out.dtype is torch.bool else [None]
        return None if None in answers else int(_JOINS[func](answers))

    def _calculate(self, func: Any, args: Any, out: Tensor) -> int | None:
        if not self._defaults or not _is_integer(out):
            return None
        one, other = map(self._number, args[:2])
        return INTEGER_ARITHMETIC[func](one, other) if type(one) is int and type(other) is int else None

    def _keep(self, func: Any, args: Any, out: Tensor) -> int | None:
        if not self._defaults or out.is_floating_point():
            return None
        return min((number for number in map(self.of, tensors_of(args)) if number is not None), default=None)

    def _maximum(self, func: Any, args: Any, out: Tensor) -> int | None:
        """Return the greatest number that may be there, because what counts labels needs no more places."""
        most = self._greatest_in(args[0])
        return self._keep(func, args, out) if most is None else most

    def _greatest_in(self, tensor: Tensor) -> int | None:
        values = self._values_of(tensor) if _is_integer(tensor) else None
        return self._greatest.of(tensor) if values is None or not values.numel() else int(values.max())

    def _multiply(self, func: Any, args: Any, out: Tensor) -> int | None:
        return self._keep(func, args, out) if self.of(args[0]) in (0, 1) else None

    def _truth(self, value: Any) -> bool | None:
        """Return the truth of equal values, or of their default; None if there is neither."""
        values = self._values_of(value)
        if values is None:
            number = self.of(value)
            return None if number is None else bool(number)
        return bool(values.all()) if bool(values.all()) == bool(values.any()) else None

    def _number(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        values = self._values_of(value)
        if values is not None:
            return values.reshape(-1)[0].item() if values.numel() == 1 else None
        return DEFAULT_NUMBER if value.is_floating_point() else self.of(value)


_DEFAULT_TRANSFERS: dict[Any, Callable[[DefaultValues, Any, Any, Tensor], int | None]] = {
    **dict.fromkeys(_VALUE_KEEPING_OPERATORS, DefaultValues._keep),
    **dict.fromkeys((aten.max.default, aten.amax.default), DefaultValues._maximum),
    **dict.fromkeys(_PRODUCTS, DefaultValues._multiply),
    **dict.fromkeys(_SUMS, DefaultValues._count),
    **dict.fromkeys(_COMPARISONS, DefaultValues._compare),
    **dict.fromkeys(_NOT, DefaultValues._negate),
    **dict.fromkeys(_DIFFERENCES, DefaultValues._differ),
    **dict.fromkeys(_JOINS, DefaultValues._join),
    **dict.fromkeys(INTEGER_ARITHMETIC, DefaultValues._calculate),
}


def has_default(func: Any) -> bool:
    return func in _DEFAULT_TRANSFERS or func in _SELECTIONS or func in _WHOLE_DRAWS


def _is_integer(value: Any) -> bool:
    if isinstance(value, Tensor):
        return not (value.is_floating_point() or value.is_complex() or value.dtype is torch.bool)
    return type(value) is int
