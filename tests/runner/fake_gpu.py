"""A fake GPU behind the names of `torch.cuda`: it counts, records and runs out of memory as torch does.

A test requests memory (`malloc`, `free`) from a small simulated allocator, or registers the storage of existing tensors
(`adopt`, `let_go`).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Any

from memviz.runner.measure.accelerator import Accelerator
from memviz.runner.record.memory_history import RecordedHistory
from tests.simulated_allocator import Allocator
from tests.traces import block, segment


class OutOfMemoryError(RuntimeError):
    """Stand-in for torch's error, without importing torch."""


class Moment:
    """Stand-in for torch.cuda.Event that reads the CPU clock."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.at = 0.0

    def record(self) -> None:
        self.at = time.perf_counter()

    def elapsed_time(self, later: Moment) -> float:
        return 1000 * (later.at - self.at)


class FakeGpu:
    """A stand-in for `torch.cuda` and `torch.cuda.memory` at once, which share most functions."""

    Event = Moment

    def __init__(self, *, limit: int | None = None, release: str = "2.13", is_used: bool = True) -> None:
        self.allocator = Allocator()
        self.limit = limit
        self.is_recording = False
        self.has_stacks = True
        self.max_entries = 0
        self.history: list[dict[str, Any]] = []
        self.allocs = self.frees = 0
        self.counts_of: dict[int, tuple[int, int]] = {}
        """Allocs and frees of other GPUs, set by a test."""
        self.adopted: dict[int, int] = {}
        self.observers: list[Callable[[int, int, int, int], None]] = []
        self.peaks = {"allocated": 0, "reserved": 0, "requested": 0}
        self.late_calls: list[Callable[[], None]] = []
        self.is_used = is_used
        self.refuses = ""
        """Error message of the driver when a process starts it; empty if it works."""
        self.before_snapshot: Callable[[], None] | None = None
        self._record_memory_history = _recorder(self, release)

    @property
    def memory(self) -> FakeGpu:
        return self

    @property
    def accelerator(self) -> Accelerator:
        return Accelerator(
            "cpu", self, self.observers.append, (("torch", "2.13.0"),), history_is_on=lambda: self.is_recording
        )

    def _lazy_call(self, call: Callable[[], None]) -> None:
        self.late_calls.append(call)
        if self.is_used:
            self.init()

    def init(self) -> None:
        if self.refuses:
            raise RuntimeError(self.refuses)
        self.is_used = True
        while self.late_calls:
            self.late_calls.pop(0)()

    def device_count(self) -> int:
        return 2

    def current_device(self) -> int:
        return 0

    def set_device(self, index: int) -> None:
        assert index == 0

    def synchronize(self) -> None:
        pass

    def get_device_name(self, _index: int) -> str:
        return "Fake GPU"

    def empty_cache(self) -> None:
        self.allocator.empty_cache()
        self._note()

    def reset_peak_memory_stats(self, _index: int) -> None:
        self.peaks = dict(self._now())

    def memory_stats_as_nested_dict(self, index: int | None = None) -> dict[str, Any]:
        if index:
            allocs, frees = self.counts_of.get(index, (0, 0))
            return {"allocation": {"all": {"allocated": allocs, "freed": frees}}}
        figures = {
            f"{name}_bytes": {"all": {"current": now, "peak": self.peaks[name]}} for name, now in self._now().items()
        }
        return {"allocation": {"all": {"allocated": self.allocs, "freed": self.frees}}, **figures}

    def _snapshot(self) -> dict[str, Any]:
        if self.before_snapshot is not None:
            self.before_snapshot()
        whole = self.allocator.snapshot()
        adopted = [segment(at, size, [block(at, size)]) for at, size in sorted(self.adopted.items())]
        traces = [self.history[-self.max_entries :]] if self.max_entries else [[]]
        return {**whole, "segments": [*whole["segments"], *adopted], "device_traces": traces}

    def switch(self, on: bool, *, max_entries: int = sys.maxsize, has_stacks: bool = True) -> None:
        self.is_recording, self.has_stacks = on, has_stacks
        self.max_entries = max_entries if on else 0
        if not on:
            self.history.clear()

    def malloc(self, size: int) -> int:
        if self.limit is not None and self._now()["allocated"] + size > self.limit:
            self._run_out(size)
        address = self.allocator.malloc(size)
        self.allocs += 1
        self._note()
        return address

    def _run_out(self, size: int) -> None:
        self._write({"action": "oom", "device_free": 0, "size": size, "stream": 0})
        for observer in self.observers:
            observer(0, size, self.limit or 0, 0)
        raise OutOfMemoryError(f"CUDA out of memory. Tried to allocate {size} bytes")

    def free(self, address: int) -> None:
        self.allocator.free(address)
        self.frees += 1
        self._note()

    def adopt(self, address: int, size: int) -> None:
        self.adopted[address] = size
        self.allocs += 1
        self._write({"action": "alloc", "addr": address, "size": size, "stream": 0})

    def let_go(self, address: int) -> None:
        size = self.adopted.pop(address)
        self.frees += 1
        for action in ("free_requested", "free_completed"):
            self._write({"action": action, "addr": address, "size": size, "stream": 0})

    def _note(self) -> None:
        """Record the small allocator's new events and update the peaks."""
        for event in self.allocator.events:
            self._write(event)
        self.allocator.events.clear()
        for name, now in self._now().items():
            self.peaks[name] = max(self.peaks[name], now)

    def _write(self, event: dict[str, Any]) -> None:
        if not self.is_recording:
            return
        stack = {"frames": [{"name": "train", "filename": "train.py", "line": 1}]} if self.has_stacks else {}
        self.history.append({**event, "time_us": time.time_ns() // 1000, **stack})

    def _now(self) -> dict[str, int]:
        blocks = [each for one in self.allocator.segments for each in one.blocks]
        return {
            "allocated": sum(each.size for each in blocks if each.state == "live"),
            "reserved": sum(each.size for each in blocks if each.state != "unmapped"),
            "requested": sum(each.requested for each in blocks if each.state == "live"),
        }


def started(gpu: FakeGpu, **more: Any) -> RecordedHistory:
    history = RecordedHistory(gpu.accelerator, **more)
    history.start()
    return history


class TorchsGpu(FakeGpu):
    """Torch's tensors of the processor are its own: they count, have a limit and are peaks."""

    def adopt(self, address: int, size: int) -> None:
        if self.limit is not None and self._now()["allocated"] + size > self.limit:
            self._run_out(size)
        super().adopt(address, size)
        self._note()

    def _now(self) -> dict[str, int]:
        adopted = sum(self.adopted.values())
        return {name: size + adopted for name, size in super()._now().items()}


_PARAMETERS = {
    "2.1": "enabled context stacks max_entries device",
    "2.13": "enabled context stacks max_entries device clear_history compile_context global_record_annotations "
    "skip_actions",
    "xpu": "enabled context stacks max_entries clear_history skip_actions",
}
"""Parameters of `_record_memory_history` in each release of torch: memviz reads its signature."""


def _recorder(gpu: FakeGpu, release: str) -> Callable[..., None]:
    signature = Signature([Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in _PARAMETERS[release].split()])

    def record(*args: Any, **more: Any) -> None:
        given = signature.bind_partial(*args, **more).arguments
        enabled, context = given.get("enabled", "all"), given.get("context", "all")
        assert enabled in (None, "state", "all") and context in (None, "state", "alloc", "all")
        assert given.get("stacks", "all") in ("python", "all")
        entries = given.get("max_entries", sys.maxsize)
        gpu.switch(enabled is not None, max_entries=entries, has_stacks=context is not None)

    vars(record)["__signature__"] = signature
    return record
