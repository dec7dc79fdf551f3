"""Sums and gradients that torch would write into memory that is there, were nobody watching.

With a dispatch mode in force torch cannot rule out that a tensor is a subclass, so it works out of place where it
would otherwise do so in place: where the gradients of a tensor that was used twice meet, where attention by single
operators adds its mask, and where gradients of some entries are put among zeros. On a card no memory is taken
there, so none is here.
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
    same_kind = first.shape == second.shape and first.dtype == second.dtype
    if not same_kind or not _is_dense(first) or owners_of(first) != owners_of_a_lone_sum():
        return NotImplemented
    return first


def written(func: Any, args: Any, kwargs: Any) -> Any:
    """Fresh zeros that backward writes a gradient into, as the result; or NotImplemented.

    Only the nodes of torch that make such zeros themselves do it: what a program's own backward writes out of place
    takes memory on a card too.
    """
    zeros = args[0]
    if torch._C._current_graph_task_id() == -1 or torch.is_grad_enabled() or not zeros.is_meta:
        return NotImplemented
    node: Any = getattr(torch._C, "_current_autograd_node", lambda: None)()
    name = "" if node is None else node.name().rstrip("0123456789")
    return zeros if name in _WRITERS[func] else NotImplemented


_CHOICES = frozenset(
    f"{name}Backward" for name in ("Max", "Min", "Median", "Nanmedian", "Kthvalue", "Mode", "Sort", "Topk", "Aminmax")
)
_WRITERS = {
    aten.index_put.default: {"IndexBackward", "UnsafeIndexBackward"},
    aten.scatter.src: _CHOICES,
    aten.scatter_add.default: {"GatherBackward", "CummaxBackward", "CumminBackward"},
    aten.index_add.default: {"IndexSelectBackward"},
    aten.put.default: {"TakeBackward"},
    aten.masked_scatter.default: {"MaskedSelectBackward"},
}
"""Operators out of place, and the nodes that on a card write in place instead."""
WRITTEN = frozenset(_WRITERS)


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
    """Measure `owners_of` the first term when two gradients are added and nothing else refers to it."""
    probe = _Probe()
    with probe, torch.enable_grad():
        leaf = torch.empty(2, device="meta", requires_grad=True)
        once = leaf * 1
        total: Any = (once.sin() + once.cos()).sum()
        total.backward()
    return probe.owners


class _Probe(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.owners: tuple[int, int] | None = None
        self._watched: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is aten.add.Tensor and torch._C._current_graph_task_id() != -1:
            self.owners = owners_of(args[0])
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor):
            # As the ledger does, since that counts.
            self._watched.append(ref(out.untyped_storage()))
        return out
