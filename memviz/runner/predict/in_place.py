"""Sums that torch would write into one of their terms, were nobody watching.

With a dispatch mode in force torch cannot rule out that a tensor is a subclass, so it adds out of place where it
would otherwise add in place: where the gradients of a tensor that was used twice meet, and where attention by
single operators adds its mask. On a card no memory is taken there, so none is here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from weakref import ref

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
_masks_meet: list[None] = []


@contextmanager
def adding_masks() -> Iterator[None]:
    _masks_meet.append(None)
    try:
        yield
    finally:
        _masks_meet.pop()


def add(func: Any, args: Any, kwargs: Any) -> Any:
    """The first term as the sum, or NotImplemented where memory is taken for it."""
    first, second = args[0], args[1]
    if kwargs or not isinstance(second, Tensor) or not first.is_meta or not second.is_meta:
        return NotImplemented
    if _masks_meet:
        fits = first.is_contiguous() and torch.result_type(first, second) == first.dtype
        return first.view(first.shape) if fits else NotImplemented
    if torch._C._current_graph_task_id() == -1 or torch.is_grad_enabled():
        return NotImplemented
    alike = first.shape == second.shape and first.dtype == second.dtype
    if not alike or not _is_dense(first) or owners_of(first) != owners_of_a_lone_sum():
        return NotImplemented
    return first


def _is_dense(tensor: Tensor) -> bool:
    """Every element has a place of its own and none lies idle between them, in whatever order."""
    if tensor.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def owners_of(tensor: Any) -> tuple[int, int] | None:
    """How often the tensor and its memory are referred to; None where torch does not say."""
    storages: Any = getattr(torch._C, "_storage_Use_Count", None)
    tensors: Any = getattr(tensor, "_use_count", None)
    if storages is None or tensors is None:
        return None
    return int(tensors()), int(storages(tensor.untyped_storage()._cdata))


@cache
def owners_of_a_lone_sum() -> tuple[int, int] | None:
    """Found by trying: `owners_of` the first term when two gradients meet and nothing else holds it."""
    probe = _Probe()
    with probe, torch.enable_grad():
        leaf = torch.empty(2, device="meta", requires_grad=True)
        once = leaf * 1
        total: Any = (once.sin() + once.cos()).sum()
        total.backward()
    return probe.found


class _Probe(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: tuple[int, int] | None = None
        self._watched: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is aten.add.Tensor and torch._C._current_graph_task_id() != -1:
            self.found = owners_of(args[0])
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor):
            # As the ledger does, since that counts.
            self._watched.append(ref(out.untyped_storage()))
        return out
