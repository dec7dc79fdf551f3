"""Dropout, seen and made comparable.

A change that draws the same random numbers for the same tensors is compared with dropout as it is. One that draws
them in another order may be right all the same, and then no two outputs are alike. So there dropout is a factor
instead: what would be kept with probability 1 - p is multiplied by 1 - p. That is the same for a whole tensor and for
its slices, in whatever order, and another for another p, for a dropout left out, and for one too many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

_ATTENTION = "scaled_dot_product_attention"
_PLACES = {
    F: ("dropout", "alpha_dropout", "dropout1d", "dropout2d", "dropout3d", "feature_alpha_dropout", _ATTENTION),
    torch: ("dropout", "dropout_", "alpha_dropout", "alpha_dropout_", "feature_dropout", "feature_dropout_"),
}
_Drop = Callable[..., Tensor]


@dataclass(frozen=True)
class Dropped:
    """One call that drops something."""

    within_attention: bool
    """There each kernel draws in an order of its own."""
    shape: tuple[int, ...]
    p: float


@contextmanager
def watched() -> Iterator[list[Dropped]]:
    """What is dropped inside, in order."""
    found: list[Dropped] = []

    def watch(plain: _Drop, is_attention: bool) -> _Drop:
        def call(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            p = _attention_p(args, kwargs) if is_attention else _p(args, kwargs)
            if p:
                found.append(Dropped(is_attention, tuple(x.shape), p))
            return plain(x, *args, **kwargs)

        return call

    with _replaced(watch):
        yield found


@contextmanager
def as_a_factor() -> Iterator[None]:
    def factor(plain: _Drop, is_attention: bool) -> _Drop:
        def attention(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            p = _attention_p(args, kwargs)
            given = [*args[:3], 0.0, *args[4:]] if len(args) > 3 else args
            output = plain(x, *given, **(kwargs | {"dropout_p": 0.0} if "dropout_p" in kwargs else kwargs))
            return output * (1 - p) if p else output

        def drop(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            p = _p(args, kwargs)
            in_place = kwargs.get("inplace", len(args) > 2 and args[2]) or getattr(plain, "__name__", "")[-1:] == "_"
            return x.mul_(1 - p) if in_place else x * (1 - p) if p else x

        return attention if is_attention else drop

    with _replaced(factor):
        yield


@contextmanager
def _replaced(make: Callable[[_Drop, bool], _Drop]) -> Iterator[None]:
    with ExitStack() as undo:
        for place, names in _PLACES.items():
            for name in names:
                plain = getattr(place, name)
                undo.callback(setattr, place, name, plain)
                setattr(place, name, _in_order(make(plain, name == _ATTENTION)))
        yield


def _in_order(function: _Drop) -> _Drop:
    """Libraries may give the first argument by its name, too."""

    def call(*args: Any, **kwargs: Any) -> Tensor:
        first = next((name for name in ("query", "input") if name in kwargs), None)
        return function(*args, **kwargs) if args or first is None else function(kwargs.pop(first), **kwargs)

    return call


def _p(args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    """Of (p, training); nothing where it does not train."""
    p = args[0] if args else kwargs.get("p", 0.5)
    trains = args[1] if len(args) > 1 else kwargs.get("training", kwargs.get("train", True))
    return float(p) if trains else 0.0


def _attention_p(args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    """Of (key, value, mask, p)."""
    return float(args[3] if len(args) > 3 else kwargs.get("dropout_p", 0.0))
