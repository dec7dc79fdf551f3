"""What is known of tensors that torch does not keep: by storage, so that views know it, and for as long as it lives."""

from __future__ import annotations

import weakref
from typing import Generic, TypeVar

import torch
from torch import Tensor

Known = TypeVar("Known")


class _Ref(weakref.ref["torch.UntypedStorage"]):
    __slots__ = ("key",)
    key: int


class ByStorage(Generic[Known]):
    def __init__(self) -> None:
        self._known: dict[int, tuple[_Ref, Known]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, tensor: Tensor) -> bool:
        return _key(tensor) in self._known

    def of(self, tensor: Tensor) -> Known | None:
        known = self._known.get(_key(tensor))
        return None if known is None else known[1]

    def put(self, tensor: Tensor, known: Known) -> None:
        storage = tensor.untyped_storage()
        ref = _Ref(storage, self._gone)
        ref.key = storage._cdata
        self._known[ref.key] = ref, known

    def _gone(self, ref: weakref.ref[torch.UntypedStorage]) -> None:
        assert isinstance(ref, _Ref)
        known = self._known.get(ref.key)
        if known is not None and known[0] is ref:
            del self._known[ref.key]


class _StorageRef(weakref.ref["torch.UntypedStorage"]):
    __slots__ = ("key", "size")
    key: int
    size: int


class MarkedStorages:
    """Of which something is known that torch does not keep: their values are unknown, or they count as pinned.

    By the address of the storage's C++ object, for as long as the storage lives; so views are marked with it.
    """

    def __init__(self) -> None:
        self._refs: dict[int, _StorageRef] = {}
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
        ref = _StorageRef(storage, self._gone)
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


def _key(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata) if tensor.layout is torch.strided else 0
