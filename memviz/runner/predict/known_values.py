"""Values that are known of tensors on the pretended device: they lie on the host, beside the tensor's place.

Masks, lengths, schedules, indices, seeds: what is small and made of known values keeps them, so that a program which
looks finds what a card would show it. A large tensor keeps them only where all its elements are alike. What depends
on values that nobody computes, or is drawn at random on the card, has none.

They are kept by storage, so every view sees them, and what is written through one is seen through all.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from math import inf
from typing import Any

import torch
from torch import Tensor

from memviz.runner.predict.arguments import draws, fills_its_storage, is_on_device, tensors_of, with_each, written_by

aten = torch.ops.aten
MOST_BYTES = 1 << 20
"""Largest floating-point tensor whose values are kept."""
_MOST_BYTES_OF_INDICES = 1 << 22
_MOST_ELEMENTS = 1 << 22
"""That an operator may run through, views of few values that are spread over many included."""
_MOST_SPELLED_OUT = 1 << 12
"""Elements that are all alike; of more the number is kept alone, until some of them differ."""
_HOST = torch.device("cpu")
_FROM_ZERO = {aten.randint.default, aten.randint.generator}
_WHOLE_DRAWS = _FROM_ZERO | {aten.randint.low, aten.randint.low_generator}
_MOST_DRAWN = 256
"""Elements: offsets, lengths and steps, and not whole batches of tokens."""
_DRAWN = "small whole numbers that are drawn on the card are drawn on the host instead, from seed 0"
_FINITE = "numbers that nobody computes are taken to be finite"
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
_SHAPE_COUNTS = ("empty_like", "zeros_like", "ones_like", "full_like", "new_empty", "new_zeros", "new_ones", "new_full")
"""Values of the argument do not."""
_EMPTY = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")


_QUESTIONS = {
    *(aten.isnan.default, aten.isinf.default, aten.eq.Tensor, aten.ne.Tensor, aten.eq.Scalar, aten.ne.Scalar),
}
"""About numbers, with an answer where these are finite."""


def says_of_unknown(func: Any) -> bool:
    """Return whether a result may have known values where the arguments have none."""
    named = func.overloadpacket.__name__ in _SHAPE_COUNTS
    return named or draws(func) or func in _FILL_ALL or func in _ABSORBING or func in _QUESTIONS


class _Entry(weakref.ref["torch.UntypedStorage"]):
    """Values of one storage: its bytes on the host, or the number that all elements equal."""

    __slots__ = ("bytes", "key", "number", "reason")
    key: int
    bytes: torch.UntypedStorage | None
    number: Tensor | None
    reason: str
    """Why the values are known though nobody computed them; empty where somebody did."""


class KnownValues:
    def __init__(self, is_unknown_on_host: Callable[[Any], bool]) -> None:
        self._entries: dict[int, _Entry] = {}
        self._is_unknown_on_host = is_unknown_on_host
        self._draws = torch.Generator().manual_seed(0)

    def __contains__(self, tensor: Tensor) -> bool:
        return _key(tensor) in self._entries

    def of(self, tensor: Tensor) -> Tensor | None:
        """The values of a tensor of the device, where it has some: its twin on the host."""
        entry = self._entries.get(_key(tensor))
        return None if entry is None else _twin(entry, tensor)

    def reason(self, tensor: Tensor) -> str:
        entry = self._entries.get(_key(tensor))
        return "" if entry is None else entry.reason

    def put(self, tensor: Tensor, values: Tensor, reason: str = "") -> None:
        """Store the values of a tensor that has its storage to itself."""
        storage = torch.zeros(tensor.untyped_storage().nbytes(), dtype=torch.uint8, device=_HOST).untyped_storage()
        entry = self._enter(tensor, reason)
        entry.bytes = storage
        twin = _twin(entry, tensor)
        assert twin is not None
        twin.copy_(values)

    def put_all_alike(self, tensor: Tensor, number: Any, reason: str = "") -> None:
        if _is_small(tensor) and tensor.numel() <= _MOST_SPELLED_OUT:
            self.put(tensor, torch.full(tensor.shape, number, dtype=tensor.dtype), reason)
        else:
            self._enter(tensor, reason).number = torch.tensor(number, dtype=tensor.dtype)

    def forget(self, tensor: Tensor) -> None:
        self._entries.pop(_key(tensor), None)

    def _enter(self, tensor: Tensor, reason: str) -> _Entry:
        storage = tensor.untyped_storage()
        entry = _Entry(storage, self._gone)
        entry.key, entry.bytes, entry.number, entry.reason = storage._cdata, None, None, reason
        self._entries[entry.key] = entry
        return entry

    def _gone(self, entry: weakref.ref[torch.UntypedStorage]) -> None:
        assert isinstance(entry, _Entry)
        if self._entries.get(entry.key) is entry:
            del self._entries[entry.key]

    def is_unknown_first(self, args: Any) -> bool:
        """Quickly: whether the first argument is a tensor of the device that nobody knows. Often it is."""
        return bool(args) and is_on_device(args[0]) and _key(args[0]) not in self._entries

    def forget_written(self, func: Any, args: Any, kwargs: Any) -> None:
        self._forget_written(func, args, kwargs, True)

    def all_known(self, args: Any, kwargs: Any) -> bool:
        return all(map(self.is_known, tensors_of((args, kwargs))))

    def is_known(self, tensor: Tensor) -> bool:
        if tensor.is_meta:
            return _key(tensor) in self._entries
        return not self._is_unknown_on_host(tensor)

    def reads(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The host's result of an operator whose answer, or the size of it, lies in the values."""
        return func(*self._twins(args), **_on_host(self._twins(kwargs)))

    def on_device(self, result: Any, reason: str) -> Any:
        """Return device tensors with the shapes and values of a result computed on the host."""
        if isinstance(result, list | tuple):
            return type(result)(self.on_device(item, reason) for item in result)
        if not isinstance(result, Tensor):
            return result
        made = torch.empty_strided(result.shape, result.stride(), dtype=result.dtype, device="meta")
        if _is_small(made):
            self.put(made, result, reason)
        return made

    def reason_of(self, args: Any, kwargs: Any) -> str:
        return next(filter(None, map(self.reason, (t for t in tensors_of((args, kwargs)) if t.is_meta))), "")

    def follow(self, func: Any, args: Any, kwargs: Any, out: Any, *, writes: bool) -> None:
        """After an operator ran without values: those of what it made and wrote, as far as they are known."""
        if func in _WHOLE_DRAWS and out.is_meta and 0 < out.numel() <= _MOST_DRAWN:
            low, high = (0, args[0]) if func in _FROM_ZERO else args[:2]
            values = torch.randint(low, high, tuple(out.shape), dtype=out.dtype, generator=self._draws)
            return self.put(out, values, _DRAWN)
        if draws(func):
            return self._forget_written(func, args, kwargs, writes)
        if not self.all_known(args, kwargs) and not self._only_shapes_count(func, args, kwargs, writes):
            self._forget_written(func, args, kwargs, writes)
            return self._assume(func, args, out)
        try:
            if writes:
                self._write(func, args, kwargs)
            else:
                self._make(func, args, kwargs, out)
        except (RuntimeError, IndexError, TypeError, ValueError):
            # The host has no such kernel, or an index is out of bounds there, as it would be on a card.
            self._forget_written(func, args, kwargs, writes)

    def _only_shapes_count(self, func: Any, args: Any, kwargs: Any, writes: bool) -> bool:
        if writes:
            return func in _FILL_ALL and fills_its_storage(args[0]) and self.all_known(args[1:], kwargs)
        return func.overloadpacket.__name__ in _SHAPE_COUNTS

    def _make(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        new = [tensor for tensor in tensors_of(out) if tensor.is_meta and not self._shares(tensor, args)]
        if not new:
            return
        reason = self.reason_of(args, kwargs)
        if len(new) == 1 and new[0].numel() > _MOST_SPELLED_OUT:
            one = self._alike(func, args, kwargs)
            if one is None and _is_small(new[0]) and func.overloadpacket.__name__ in _EMPTY:
                one = 0
            if one is not None:
                return self.put_all_alike(new[0], one, reason)
        few = all(tensor.numel() <= _MOST_ELEMENTS for tensor in tensors_of((args, kwargs)))
        if few and all(map(_is_small, new)):
            results = tensors_of(self._result(func, args, kwargs))
            for made, values in zip(tensors_of(out), results, strict=True):
                if made.is_meta and not self._shares(made, args):
                    self.put(made, values, reason)
        elif len(new) == 1 and (one := self._alike(func, args, kwargs)) is not None:
            self.put_all_alike(new[0], one, reason)

    def _result(self, func: Any, args: Any, kwargs: Any) -> Any:
        if func.overloadpacket.__name__ in _SHAPE_COUNTS:
            like = args[0]
            args = (torch.empty_strided(like.shape, like.stride(), dtype=like.dtype), *args[1:])
        return self.reads(func, args, kwargs)

    def _shares(self, tensor: Tensor, args: Any) -> bool:
        key = _key(tensor)
        return any(other.is_meta and _key(other) == key for other in tensors_of(args))

    def _write(self, func: Any, args: Any, kwargs: Any) -> None:
        target = args[0]
        if not isinstance(target, Tensor):
            # Lists: values in them are rarely asked for.
            return self._forget_written(func, args, kwargs, True)
        if not target.is_meta:
            # The host has computed it: to do so again would add, turn or scale twice.
            return
        if not _is_small_storage(target):
            number = self._alike(func, args, kwargs) if fills_its_storage(target) else None
            self.forget(target)
            if number is not None:
                self.put_all_alike(target, number, self.reason_of(args[1:], kwargs))
            return
        reason = self.reason_of(args, kwargs)
        if target.numel() > _MOST_SPELLED_OUT and fills_its_storage(target):
            number = self._alike(func, args, kwargs)
            if number is not None:
                return self.put_all_alike(target, number, reason)
        if _key(target) not in self._entries:
            self.put(target, torch.zeros((), dtype=target.dtype))
        elif self._stays_alike(func, args):
            return
        else:
            self._spell_out(target)
        if sum(tensor.numel() for tensor in tensors_of((args, kwargs))) > _MOST_ELEMENTS:
            return self._forget_written(func, args, kwargs, True)
        self.reads(func, args, kwargs)
        if reason:
            self._entries[_key(target)].reason = reason

    def _stays_alike(self, func: Any, args: Any) -> bool:
        """The same number is written again, into a part."""
        entry = self._entries[_key(args[0])]
        if entry.number is None or func not in _FILL_ALL or func is aten.zero_.default:
            return entry.number is not None and func is aten.zero_.default and not entry.number.item()
        number = self._number(args[1]) if isinstance(args[1], Tensor) else torch.tensor(args[1])
        return number is not None and bool(number == entry.number)

    def _spell_out(self, tensor: Tensor) -> None:
        """Write out elements that were stored as a single number."""
        entry = self._entries[_key(tensor)]
        if entry.number is None:
            return
        number, entry.number = entry.number, None
        entry.bytes = torch.zeros(tensor.untyped_storage().nbytes(), dtype=torch.uint8, device=_HOST).untyped_storage()
        torch.empty(0, dtype=number.dtype, device=_HOST).set_(entry.bytes).fill_(number)

    def _alike(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The number that all elements of the result are, where that follows from arguments of which it is true."""
        name = func.overloadpacket.__name__
        if name in ("zeros", "zeros_like", "new_zeros", "zero_"):
            return 0
        if name in ("ones", "ones_like", "new_ones"):
            return 1
        if name in ("full", "full_like", "new_full", "fill_"):
            number = args[1] if name != "new_full" else args[2]
            return self._single(number)
        pointwise = torch.Tag.pointwise in func.tags or func in (aten._to_copy.default, aten.copy_.default)
        if not pointwise and func not in _UNIFORM_REDUCTIONS and name != "clone":
            return None
        tensors = list(tensors_of((args, kwargs)))
        numbers = [number for number in map(self._number, tensors) if number is not None]
        if not numbers or len(numbers) < len(tensors):
            return None
        rest = iter(numbers)
        ones = with_each(lambda tensor: next(rest).expand([1] * tensor.dim()).clone(), (args, kwargs))
        result: Tensor = func(*ones[0], **_on_host(ones[1]))
        return result.reshape(-1)[0].item() if isinstance(result, Tensor) else None

    def _single(self, number: Any) -> Any:
        if not isinstance(number, Tensor):
            return number
        values = self.of(number) if number.is_meta else number
        return None if values is None else values.item()

    def _number(self, tensor: Tensor) -> Tensor | None:
        if not tensor.is_meta:
            return tensor.reshape(()) if tensor.numel() == 1 else None
        entry = self._entries.get(_key(tensor))
        if entry is None:
            return None
        if entry.number is not None:
            return entry.number if entry.number.dtype == tensor.dtype else None
        twin = _twin(entry, tensor)
        return twin.reshape(()) if twin is not None and twin.numel() == 1 else None

    def _assume(self, func: Any, args: Any, out: Any) -> None:
        """Assume that unknown numbers are finite."""
        if self._is_absorbed(func, args, out):
            return
        if not isinstance(out, Tensor) or not out.is_meta:
            return
        number = _if_finite(func, args)
        if number is not None:
            self.put_all_alike(out, number, _FINITE)

    def _is_absorbed(self, func: Any, args: Any, out: Any) -> bool:
        """True or anything is true, false and anything is false, and zero times a whole number is zero."""
        absorbing = _ABSORBING.get(func)
        if absorbing is None or out.is_floating_point() or out.is_complex():
            return False
        if absorbing and out.dtype is not torch.bool:
            return False
        for tensor in args[:2]:
            values = self.of(tensor) if isinstance(tensor, Tensor) and tensor.is_meta else None
            if values is not None and values.shape == out.shape and bool((values == absorbing).all()):
                self.put_all_alike(out, absorbing, self.reason(tensor))
                return True
        return False

    def _forget_written(self, func: Any, args: Any, kwargs: Any, writes: bool) -> None:
        if not writes or not self._entries:
            return
        for tensor in written_by(func, args, kwargs):
            if tensor.is_meta:
                self.forget(tensor)

    def _twins(self, value: Any) -> Any:
        return with_each(lambda tensor: self.of(tensor) if tensor.is_meta else tensor, value)


def _if_finite(func: Any, args: Any) -> bool | None:
    """Return the answer of a test on numbers that are finite, or None."""
    if func in (aten.isnan.default, aten.isinf.default):
        return False
    if func in (aten.eq.Tensor, aten.ne.Tensor) and args[0] is args[1]:
        return bool(func is aten.eq.Tensor)
    if func in (aten.eq.Scalar, aten.ne.Scalar) and args[1] in (inf, -inf):
        return bool(func is aten.ne.Scalar)
    return None


def _key(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata) if tensor.layout is torch.strided else 0


def _twin(entry: _Entry, tensor: Tensor) -> Tensor | None:
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
