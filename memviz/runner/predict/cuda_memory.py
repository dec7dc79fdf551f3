"""What torch's Python asks of its C++ about the card's memory; the ledger answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import torch

from memviz.allocator.settings import Settings
from memviz.runner.predict.allocation_recorder import AllocationRecorder
from memviz.runner.predict.ledger import LiveAllocation
from memviz.runner.predict.named_devices import NamedDevices
from memviz.runner.predict.out_of_memory import OutOfMemoryReport
from memviz.runner.predict.torch_patches import Patches
from memviz.trace.model import Category

_HOST_KINDS = ("allocations", "active_requests", "segments", "allocated_bytes", "active_bytes", "reserved_bytes")


class OfDevice(Protocol):
    """What a predicted device does for programs about its memory."""

    settings: Settings

    def memory_stats(self) -> dict[str, int]: ...

    def reset_peak(self) -> None: ...

    def empty_cache(self) -> None: ...

    def set_allocator_settings(self, text: str) -> None: ...

    def change_settings(self, settings: Settings) -> None: ...


class CardMemoryCalls:
    def __init__(
        self, device: OfDevice, recorder: AllocationRecorder, named: NamedDevices, report: OutOfMemoryReport
    ) -> None:
        self._device = device
        self._recorder = recorder
        self._ledger = recorder.ledger
        self._named = named
        self._report = report
        self._total = recorder.card.memory_bytes
        self._by_hand: dict[int, LiveAllocation] = {}
        """Taken by `caching_allocator_alloc`, by address."""
        self._metadata = ""

    def get_info(self) -> tuple[int, int]:
        return self._report.free_bytes(self._ledger.allocator), self._total

    def stats(self, device: int = 0) -> dict[str, Any]:
        """Nested, as C++ hands it over."""
        self._named.check(device)
        nested: dict[str, Any] = {}
        for name, figure in self._device.memory_stats().items():
            *path, last = name.split(".")
            inner = nested
            for part in path:
                inner = inner.setdefault(part, {})
            inner[last] = figure
        nested["max_split_size"] = -1 if (most := self._device.settings.max_split_size) is None else most
        return nested

    def host_stats(self) -> dict[str, Any]:
        """Of pinned memory, which is not counted."""
        nothing = dict.fromkeys(("current", "peak", "allocated", "freed"), 0)
        times = dict.fromkeys(("total", "max", "min", "count", "avg"), 0)
        counts = {"num_host_alloc": 0, "num_host_free": 0, "host_alloc_time": times, "host_free_time": times}
        return {**{kind: nothing for kind in _HOST_KINDS}, **counts}

    def reset_peak(self, device: int = 0) -> None:
        self._named.check(device)
        self._device.reset_peak()

    def reset_accumulated(self, device: int = 0) -> None:
        self._named.check(device)
        self._ledger.allocator.statistics.reset_accumulated()

    def set_fraction(self, fraction: float, device: int = 0) -> None:
        self._named.check(device)
        memory = self._ledger.allocator.device
        if memory.total is None:
            memory.total = self._total
        self._device.change_settings(replace(self._device.settings, per_process_memory_fraction=fraction))

    def take_by_hand(self, size: int, stream: int) -> int:
        if size == 0:
            return 0
        with self._ledger.lock:
            taken = self._recorder.take_for(Category.UNKNOWN, size, "caching_allocator_alloc", (stream, None))
        self._by_hand[taken.block.address] = taken
        return taken.block.address

    def let_go_by_hand(self, address: int) -> None:
        taken = self._by_hand.pop(address, None)
        if taken is None and address:
            raise RuntimeError(f"invalid device pointer: {address:#x}")
        if taken is not None:
            self._ledger.free(taken)

    def set_metadata(self, text: str) -> None:
        self._metadata = text

    def functions(self) -> dict[str, Callable[..., Any]]:
        """Of `torch._C`."""
        device = self._device
        return {
            "_cuda_memoryStats": self.stats,
            "_cuda_hostMemoryStats": self.host_stats,
            "_cuda_resetPeakMemoryStats": self.reset_peak,
            "_cuda_resetAccumulatedMemoryStats": self.reset_accumulated,
            "_cuda_resetPeakHostMemoryStats": lambda: None,
            "_cuda_resetAccumulatedHostMemoryStats": lambda: None,
            "_cuda_emptyCache": device.empty_cache,
            "_host_emptyCache": lambda: None,
            "_cuda_setMemoryFraction": self.set_fraction,
            "_cuda_getMemoryFraction": lambda index: device.settings.per_process_memory_fraction,
            "_cuda_cudaCachingAllocator_raw_alloc": self.take_by_hand,
            "_cuda_cudaCachingAllocator_raw_delete": self.let_go_by_hand,
            "_cuda_cudaCachingAllocator_enable": lambda enabled: None,
            "_cuda_cudaCachingAllocator_is_enabled": lambda: True,
            "_cuda_cudaCachingAllocator_set_allocator_settings": device.set_allocator_settings,
            "_cuda_getAllocatorBackend": lambda: "native",
            "_cuda_setMemoryMetadata": self.set_metadata,
            "_cuda_getMemoryMetadata": lambda: self._metadata,
            **self._recorder.workspaces.functions(),
            "_cuda_attach_out_of_memory_observer": self._report.observers.append,
            "_accelerator_getDeviceStats": self.stats,
            "_accelerator_resetPeakStats": self.reset_peak,
            "_accelerator_resetAccumulatedStats": self.reset_accumulated,
            "_accelerator_getMemoryInfo": lambda index: self.get_info(),
            "_accelerator_isAllocatorInitialized": torch.cuda.is_initialized,
            "_accelerator_emptyCache": device.empty_cache,
            "_accelerator_emptyHostCache": lambda: None,
            "_accelerator_setAllocatorSettings": device.set_allocator_settings,
        }


def follow_memory(patches: Patches, calls: CardMemoryCalls, set_settings: Callable[[str], None]) -> None:
    for name, function in calls.functions().items():
        patches.put(torch._C, name, function)
    patches.replace(torch.cuda.memory, "_set_allocator_settings", set_settings)
