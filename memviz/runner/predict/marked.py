"""Storages of which something is known that torch does not keep: their values are unknown, or they count as pinned."""

from __future__ import annotations

import weakref

import torch


class _Ref(weakref.ref["torch.UntypedStorage"]):
    __slots__ = ("key",)
    key: int


class Marked:
    """By the address of the storage's C++ object, for as long as the storage lives; so views are marked with it."""

    def __init__(self) -> None:
        self._refs: dict[int, _Ref] = {}

    def __len__(self) -> int:
        return len(self._refs)

    def __contains__(self, tensor: object) -> bool:
        if not self._refs or not isinstance(tensor, torch.Tensor) or tensor.is_meta:
            return False
        if tensor.layout is not torch.strided:
            return False
        return tensor.untyped_storage()._cdata in self._refs

    def has_storage(self, storage: torch.UntypedStorage) -> bool:
        return storage._cdata in self._refs

    def add(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        made = _Ref(storage, self._gone)
        made.key = storage._cdata
        self._refs[made.key] = made

    def remove(self, tensor: torch.Tensor) -> None:
        self._refs.pop(tensor.untyped_storage()._cdata, None)

    def _gone(self, ref: weakref.ref[torch.UntypedStorage]) -> None:
        self._refs.pop(ref.key, None)  # type: ignore[attr-defined]
