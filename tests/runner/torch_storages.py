"""Torch on the CPU as if on the fake GPU: every storage is an allocation at the storage's own address."""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from tests.runner.fake_gpu import FakeGpu


@contextmanager
def watching_torch(gpu: FakeGpu) -> Iterator[None]:
    with _Storages(gpu):
        yield


class _Storages(TorchDispatchMode):
    """Every storage that torch makes on the processor, from its first operator to its end."""

    def __init__(self, gpu: FakeGpu) -> None:
        super().__init__()
        self.gpu = gpu

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for each in tree_iter(out):
            if isinstance(each, torch.Tensor) and each.untyped_storage().nbytes():
                self._meet(each.untyped_storage())
        return out

    def _meet(self, storage: Any) -> None:
        address = storage.data_ptr()
        if address not in self.gpu.adopted:
            self.gpu.adopt(address, storage.nbytes())
            weakref.finalize(storage, self.gpu.let_go, address)
