"""Copies between the host and the card of what is not one piece of memory: it is made one first.

One transfer serves where both sides lie alike, without gaps, and are of one type. Otherwise both are made contiguous.
The type changes on the host, or on the card where nobody waits for the copy (`copy_kernel_cuda` in torch's source).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from operator import mul
from typing import Any

import torch
from torch import Tensor

from memviz.runner.predict.cards import KnownCard

aten = torch.ops.aten


def of_new(args: Any, kwargs: Any, out: Any, card: KnownCard) -> Iterable[int]:
    """`tensor.to(device)`: what the card takes besides."""
    return _beside(out, args[0], waits=not kwargs.get("non_blocking"))


def of_written(args: Any, kwargs: Any, out: Any, card: KnownCard) -> Iterable[int]:
    """`tensor.copy_(other)`."""
    return _beside(args[0], args[1], waits=_waits(args, kwargs))


def of_lists(args: Any, kwargs: Any, out: Any, card: KnownCard) -> Iterator[tuple[int, ...]]:
    """`torch._foreach_copy_`: one after the other, where they cross."""
    for to, source in zip(args[0], args[1], strict=True):
        yield tuple(_beside(to, source, waits=_waits(args, kwargs)))


def _waits(args: Any, kwargs: Any) -> bool:
    return not (args[2] if len(args) > 2 else kwargs.get("non_blocking", False))


def _beside(to: Tensor, source: Tensor, *, waits: bool) -> Iterable[int]:
    if to.is_meta == source.is_meta or not to.numel() or _is_one_piece(to, source):
        return ()
    return _on_arrival(to, source, waits=waits) if to.is_meta else _on_leaving(to, source, waits=waits)


def _on_arrival(to: Tensor, source: Tensor, *, waits: bool) -> Iterable[int]:
    """What does not lie end to end here is first put down so; of the host's type where it changes here."""
    if not waits and to.dtype != source.dtype:
        return (to.numel() * source.element_size(),)
    return () if to.is_contiguous() else (to.numel() * to.element_size(),)


def _on_leaving(to: Tensor, source: Tensor, *, waits: bool) -> Iterable[int]:
    if not waits and to.dtype != source.dtype:
        source = torch.empty_like(source, dtype=to.dtype, device="meta")
        yield source.nbytes
    if source.shape != to.shape or not source.is_contiguous():
        yield to.numel() * source.element_size()


def _is_one_piece(to: Tensor, source: Tensor) -> bool:
    if to.dtype != source.dtype:
        return False
    if to.numel() == 1 or to.shape == source.shape and to.is_contiguous() and source.is_contiguous():
        return True
    return to.shape == source.shape and _steps(to) == _steps(source) and _has_no_gaps(to)


def _steps(tensor: Tensor) -> list[tuple[int, int]]:
    """How far apart its elements lie, and how many, along each dimension that has several."""
    return [(step, size) for step, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]


def _has_no_gaps(tensor: Tensor) -> bool:
    steps = sorted(_steps(tensor))
    return [step for step, _ in steps] == list(accumulate((size for _, size in steps[:-1]), mul, initial=1))


TEMPORARIES: dict[Any, Callable[..., Iterable[int | tuple[int, ...]]]] = {
    aten._to_copy: of_new,
    aten.copy_: of_written,
    aten._foreach_copy_: of_lists,
}
