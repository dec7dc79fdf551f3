"""What operators give, worked out once for the same shapes.

On tensors without data a result follows from shapes, types and plain numbers alone, and a model asks for the same
ones in layer after layer. torch works most of them out in Python, which takes ten times as long as to remember them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any

import torch
from torch import Tensor

from memviz.runner.predict.arguments import PLAIN_TENSORS, tensors_of
from memviz.runner.predict.named_devices import META

_PLAIN_VALUES = (
    *(int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format),
    torch.Size,
)
_MOST = 1 << 14
"""Of a program that never asks for the same twice; then all is forgotten."""
Shapes = tuple[Hashable, ...]
Make = Callable[[Any], Any]
"""From the arguments."""


def shapes_of(args: Any, kwargs: Any) -> Shapes | None:
    """All that a result without data can depend on; None where that is not sure, or nothing lies on the device."""
    parts: list[Hashable] = [torch.get_default_dtype()]
    if not _add(parts, args):
        return None
    for name, value in kwargs.items():
        parts.append(name)
        if not _add(parts, (value,)):
            return None
    return tuple(parts)


def _add(parts: list[Hashable], values: Iterable[Any]) -> bool:
    for value in values:
        kind = type(value)
        if kind in PLAIN_TENSORS:
            if not value.is_meta or value.layout is not torch.strided or value.is_complex() or value.is_neg():
                return False
            parts += (value.shape, value.stride(), value.storage_offset(), value.dtype)
        elif kind is list or kind is tuple:
            parts.append((kind, len(value)))
            if not _add(parts, value):
                return False
        elif kind in _PLAIN_VALUES:
            # 1, 1.0 and True are equal, and make different types.
            parts.append((kind, value))
        else:
            return False
    return True


class KnownResults:
    """Of one operator."""

    def __init__(self) -> None:
        self._known: dict[Shapes, Make | None] = {}

    def of(self, func: Any, args: Any, kwargs: Any, shapes: Shapes, run: Callable[[Any, Any, Any], Any]) -> Any:
        """`run` gives it where it is not known yet."""
        make = self._known.get(shapes)
        if make is not None:
            return make(args)
        out = run(func, args, kwargs)
        if shapes not in self._known:
            if len(self._known) >= _MOST:
                self._known.clear()
            self._known[shapes] = _maker(out, args, kwargs)
        return out


def _maker(out: Any, args: Any, kwargs: Any) -> Make | None:
    """How to make such a result anew; None where it is more than new tensors, each with its memory to itself.

    What is written in place is the argument as it was, as no operator comes here that changes shapes.
    """
    if out is None:
        return _nothing
    if args and out is args[0]:
        return _first
    taken = {tensor.untyped_storage()._cdata for tensor in tensors_of((args, kwargs))}
    if type(out) is Tensor:
        return _maker_of_one(out, taken)
    if type(out) not in (tuple, list):
        return None
    makers: list[Make | None] = []
    for item in out:
        makers.append(_maker_of_one(item, taken) if type(item) is Tensor else _same(item))
        if makers[-1] is None:
            return None
    kind, known = type(out), [make for make in makers if make is not None]
    return lambda args: kind([make(args) for make in known])


def _nothing(args: Any) -> None:
    return None


def _first(args: Any) -> Any:
    return args[0]


def _same(item: Any) -> Make | None:
    return (lambda args: item) if type(item) in (int, float, bool, type(None)) else None


def _maker_of_one(tensor: Tensor, taken: set[int]) -> Make | None:
    if not tensor.is_meta or tensor.layout is not torch.strided or tensor.is_complex() or tensor.is_neg():
        return None
    storage = tensor.untyped_storage()
    if storage._cdata in taken or tensor.requires_grad or tensor.storage_offset():
        return None
    taken.add(storage._cdata)
    size, stride, dtype = tensor.shape, tensor.stride(), tensor.dtype

    def make(args: Any) -> Tensor:
        return torch.empty_strided(size, stride, dtype=dtype, device=META)

    return make if make(()).untyped_storage().nbytes() == storage.nbytes() else None
