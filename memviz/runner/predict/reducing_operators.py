"""Which operators run ATen's reduction kernel, over what, and how many bytes a value of theirs has on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from memviz.runner.predict.cards import KnownCard
from memviz.runner.predict.reductions import Input, Values, buffers

aten = torch.ops.aten
Sizes = Iterable[int | tuple[int, ...]]
_HALVES = (torch.float16, torch.bfloat16)
_SINGLE, _PAIR, _INDEX = 4, 16, 8
_WIDE_HALVES_SINCE, _WIDE_SINGLES_SINCE = (2, 7), (2, 10)
"""Sums along memory read 8 elements at once; since when is estimated. It matters to rows of a few thousand."""
Kept = Callable[[Tensor, Tensor], Values]
"""Of an input as the kernel reads it, and the result."""


def temporaries_of(packet: Any, release: tuple[int, int]) -> Callable[[Any, Any, Any, KnownCard], Sizes] | None:
    if packet in (aten.sum, aten.nansum):
        return partial(_taken, partial(_summed, release))
    if packet in _LOSSES:
        return partial(_loss, release)
    if packet in (aten.max, aten.min):
        return _extreme
    kept = _KEPT.get(packet)
    return None if kept is None else partial(_taken, kept)


def _taken(kept: Kept, args: Any, kwargs: Any, out: Any, card: KnownCard) -> Sizes:
    """A copy in the result's type, if there is one, then what the kernel takes."""
    tensor = args[0]
    answer = out[0] if isinstance(out, tuple | list) else out
    given = args[1] if len(args) > 1 else kwargs.get("dim")
    dims = _dims(given)
    if dims is None or not isinstance(tensor, Tensor) or not tensor.numel() or not answer.numel():
        return
    if kept not in _OWN_TYPES and _is_copied(tensor.dtype, answer.dtype):
        tensor = torch.empty_like(tensor, dtype=answer.dtype)
        yield tensor.numel() * tensor.element_size()
    yield from buffers(_input(tensor), dims, kept(tensor, answer), card)


def _dims(given: Any) -> Sequence[int] | None:
    """Empty for all; None where the second argument makes it no reduction."""
    if isinstance(given, Tensor):
        return None
    if given is None or isinstance(given, bool | float):
        return ()
    return (given,) if isinstance(given, int) else tuple(given)


def _is_copied(before: torch.dtype, after: torch.dtype) -> bool:
    """Only halves are widened within the kernel."""
    return before != after and not (before in _HALVES and after == torch.float32)


def _input(tensor: Tensor) -> Input:
    offset = int(tensor.storage_offset())
    return Input(tensor.shape, tensor.stride(), offset, tensor.element_size())


def _opmath(tensor: Tensor) -> int:
    return _SINGLE if tensor.dtype in _HALVES else tensor.element_size()


def _added(tensor: Tensor, answer: Tensor, at_once: int = 4) -> Values:
    both_half = tensor.dtype in _HALVES and tensor.dtype == answer.dtype
    return Values(_opmath(tensor), answer.element_size(), not both_half, at_once)


def _summed(release: tuple[int, int], tensor: Tensor, answer: Tensor) -> Values:
    wide = tensor.element_size() == 2 and release >= _WIDE_HALVES_SINCE
    if tensor.dtype == torch.float32 and release >= _WIDE_SINGLES_SINCE:
        wide = tensor.numel() // answer.numel() % 1024 == 0
    return _added(tensor, answer, 8 if wide else 4)


def _compared(tensor: Tensor, answer: Tensor) -> Values:
    both_half = tensor.dtype in _HALVES and tensor.dtype == answer.dtype
    return Values(tensor.element_size(), answer.element_size(), not both_half)


def _with_place(tensor: Tensor, answer: Tensor) -> Values:
    """The value beside an index of 8 bytes, aligned."""
    return Values(_PAIR, answer.element_size(), accumulates_in_output=False)


def _spread(tensor: Tensor, answer: Tensor) -> Values:
    """Mean, sum of squares, and the count twice."""
    double = tensor.dtype == torch.float64
    return Values(32 if double else 16, answer.element_size(), accumulates_in_output=False, at_once=2)


def _extreme(args: Any, kwargs: Any, out: Any, card: KnownCard) -> Sizes:
    """Along a dimension places are kept too; over everything only the value."""
    return _taken(_with_place if isinstance(out, tuple | list) else _compared, args, kwargs, out, card)


def _loss(release: tuple[int, int], args: Any, kwargs: Any, out: Any, card: KnownCard) -> Sizes:
    """Losses that are one number: all of them are there for a moment before they are summed (read)."""
    one, other = args[0], args[1]
    if out.dim() or not isinstance(other, Tensor) or (one.dim() == 0 and other.dim() == 0):
        return
    losses = torch.empty(_together(one.shape, other.shape), dtype=out.dtype, device=one.device)
    yield losses.numel() * losses.element_size()
    yield from buffers(_input(losses), (), _summed(release, losses, out), card)


_together: Any = torch.broadcast_shapes
_LOSSES = {aten.mse_loss, aten.smooth_l1_loss, aten.huber_loss, aten.binary_cross_entropy}
_OWN_TYPES = (_compared, _with_place, _spread)
"""Of kernels whose result may have another type than what they read."""
_KEPT: dict[Any, Kept] = {
    aten.mean: _added,
    aten.prod: _added,
    aten.linalg_vector_norm: _added,
    **dict.fromkeys((aten.amax, aten.amin, aten.any, aten.all), _compared),
    **dict.fromkeys((aten.argmax, aten.argmin), _with_place),
    **dict.fromkeys((aten.var, aten.std, aten.var_mean, aten.std_mean), _spread),
}
