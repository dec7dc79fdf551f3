"""Memory of a step on meta tensors, the bytes that PyTorch would request operator by operator, and predicted runs."""

import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from memviz.allocator.caching import CachingAllocator
from memviz.runner.execute import predict
from memviz.runner.plan import plan_of
from memviz.runner.request import Request

GiB = 1 << 30


def predicted(workload: str, settings: Mapping[str, str], *chosen: Any, **more: Any) -> Any:
    """A run on the predicted device, whose outputs are not checked."""
    return predict(plan_of(Request(workload, settings, chosen, numerics=False, **more)), lambda _: None)


class Memory(TorchDispatchMode):
    """Track every storage that operators allocate on the device; earlier tensors count from their first use."""

    def __init__(self, device: str = "meta") -> None:
        super().__init__()
        self.device = device
        self.allocator = CachingAllocator()
        self.known: set[int] = set()
        self.operators: list[str] = []

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operators.append(operator.overloadpacket.__name__)
        self.note(args)
        result = operator(*args, **(kwargs or {}))
        self.note(result)
        return result

    def note(self, tree: Any) -> None:
        for tree_leave in tree_leaves(tree):
            if isinstance(tree_leave, torch.Tensor) and tree_leave.device.type == self.device:
                self._note(tree_leave.untyped_storage())

    def _note(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self.known or not storage.nbytes():
            return
        self.known.add(key)
        block = self.allocator.malloc(storage.nbytes())

        def freed() -> None:
            self.known.discard(key)
            self.allocator.free(block)

        weakref.finalize(storage, freed)

    @property
    def allocated(self) -> int:
        return self.allocator.statistics.allocated

    @property
    def peak_allocated(self) -> int:
        return self.allocator.statistics.peak_allocated

    @property
    def peak_reserved(self) -> int:
        return self.allocator.statistics.peak_reserved
