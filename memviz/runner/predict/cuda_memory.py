"""Functions of `torch.cuda` about memory: statistics, limits, out-of-memory errors and the recorded history.

Programs catch torch's out-of-memory error, read it and go on. On a card everything that the failed operator made is
freed before that, so the predictor's own frames are removed from the error. `_record_memory_history` and
`_dump_snapshot` write the files that the card would have written.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch

from memviz.allocator.blocks import AllocationFailed
from memviz.allocator.caching import CachingAllocator
from memviz.allocator.context import overhead_on
from memviz.allocator.replayer import CardMemory
from memviz.allocator.settings import Settings
from memviz.runner.predict.allocation_recorder import AllocationRecorder
from memviz.runner.predict.cards import KnownCard
from memviz.runner.predict.ledger import Ledger, LiveAllocation
from memviz.runner.predict.named_devices import NamedDevices
from memviz.runner.predict.predicted_trace import KeptTrace
from memviz.runner.predict.program_frames import line_of_caller
from memviz.runner.predict.torch_patches import Patches
from memviz.trace.model import ACTION_NAMES, Action, Category, Ints8, Trace
from memviz.trace.write import snapshot_dict, write_pickle

OutOfMemoryError: type[RuntimeError] = torch.OutOfMemoryError
Observer = Callable[[int, int, int, int], Any]
"""Device, bytes wanted, bytes the program may have, bytes free."""
_MAGNITUDES = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


@dataclass(frozen=True)
class PretendedOutOfMemory:
    """One allocation that failed, whether or not the program went on."""

    event: int
    """Index of the event in the history."""
    where: str
    """The line, as far as there is one."""
    requested_bytes: int
    asked_bytes: int
    """Bytes asked of the card, after rounding: torch's "tried to allocate"."""
    allocated_bytes: int
    reserved_bytes: int


class OutOfMemoryReport:
    """Record failed allocations, notify observers and build torch's error."""

    def __init__(self, card: CardMemory) -> None:
        self.failures: list[PretendedOutOfMemory] = []
        self.observers: list[Observer] = []
        self._card = card

    def free_bytes(self, allocator: CachingAllocator) -> int:
        """Return the free memory as the driver reports it."""
        return max(0, self._card.usable_bytes - allocator.statistics.reserved)

    def of(self, failure: AllocationFailed, allocator: CachingAllocator, event: int) -> BaseException:
        requested, free = failure.asked_of_device, self.free_bytes(allocator)
        allowed = self._card.total_bytes if allocator.limit is None else allocator.limit
        figures = (failure.requested, requested, failure.allocated, failure.reserved)
        self.failures.append(PretendedOutOfMemory(event, line_of_caller(), *figures))
        for observer in self.observers:
            observer(0, requested, allowed, free)
        return OutOfMemoryError(self._text(failure, free, allocator.limit))

    def _text(self, failure: AllocationFailed, free: int, limit: int | None) -> str:
        """In torch's order and with its words, because programs look for them."""
        card, allocated, reserved = self._card, failure.allocated, failure.reserved
        in_use = card.overhead_bytes + reserved
        allowed = "" if limit is None else f"{size_text(limit)} allowed; "
        return (
            f"CUDA out of memory. Tried to allocate {size_text(failure.asked_of_device)}. "
            f"GPU 0 has a total capacity of {size_text(card.total_bytes)} of which {size_text(free)} is free. "
            f"Including non-PyTorch memory, this process has {size_text(in_use)} memory in use. "
            f"{allowed}Of the allocated memory {size_text(allocated)} is allocated by PyTorch, "
            f"and {size_text(reserved - allocated)} is reserved by PyTorch but unallocated."
        )


def card_memory(card: KnownCard) -> CardMemory:
    """Return the card's total memory and the overhead of a process on it."""
    return CardMemory(card.memory_bytes, overhead_on(card.name))


def size_text(count: int) -> str:
    """Format a size as torch's messages do."""
    for size, unit in _MAGNITUDES:
        if count > size:
            return f"{count / size:.2f} {unit}"
    return f"{count} bytes"


def without_our_frames(error: BaseException) -> BaseException:
    """The error as it leaves an operator: nothing that the operator made or was given lives on in it."""
    error.__context__ = error.__cause__ = None
    return error.with_traceback(None)


_HOST_KINDS = ("allocations", "active_requests", "segments", "allocated_bytes", "active_bytes", "reserved_bytes")


class MemoryDevice(Protocol):
    """Memory interface of a predicted device."""

    settings: Settings

    def memory_stats(self) -> dict[str, int]: ...

    def reset_peak(self) -> None: ...

    def empty_cache(self) -> None: ...

    def set_allocator_settings(self, text: str) -> None: ...

    def change_settings(self, settings: Settings) -> None: ...


class MemoryFunctions:
    def __init__(
        self, device: MemoryDevice, recorder: AllocationRecorder, named: NamedDevices, report: OutOfMemoryReport
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
        """Return statistics of pinned memory, all 0 because it is not counted."""
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
        """Replacements for functions of `torch._C`."""
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


def follow_memory(patches: Patches, calls: MemoryFunctions, set_settings: Callable[[str], None]) -> None:
    for name, function in calls.functions().items():
        patches.put(torch._C, name, function)
    patches.replace(torch.cuda.memory, "_set_allocator_settings", set_settings)


_STACK_LEVELS = (None, "state", "alloc", "all")
"""Levels of stack recording: none, live allocations, all allocations, frees too."""
_ALL_POOLS = (0, 0)
_FREE_ACTIONS = frozenset({Action.FREE_REQUESTED, Action.FREE_COMPLETED})
_RELEASE_ACTIONS = frozenset({Action.SEGMENT_FREE, Action.SEGMENT_UNMAP})


@dataclass(frozen=True)
class HistoryWindow:
    """One file that the program dumped, and the peaks within what it shows."""

    file: str
    events: int
    peak_requested_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int


class MemoryHistory:
    def __init__(self, ledger: Ledger, trace_of: Callable[[KeptTrace], Trace]) -> None:
        self.windows: list[HistoryWindow] = []
        self._ledger = ledger
        self._trace_of = trace_of
        self._is_on = False
        self._level = 0
        self._only_python = False
        self._most = 1
        self._skipped: frozenset[Action] = frozenset()
        self._since: list[tuple[int, int | None]] = []
        """From which event on it was recorded, and until which; None is still."""
        self._stacks_since: list[tuple[int, int | None]] = []
        """The same for stacks, in numbers of allocations."""

    def record(self, enabled: str | None, context: str | None, stacks: str, max_entries: int, *rest: Any) -> None:
        """`rest` differs between releases: whether to clear, and lately which actions to skip."""
        if enabled not in (None, "state", "all"):
            raise RuntimeError(f"expected state to be 'state', 'all', or None, but got {enabled!r}")
        if context not in _STACK_LEVELS:
            raise RuntimeError(f"expected context to be 'state', 'alloc', 'all', or None, but got {context!r}")
        if stacks not in ("python", "all"):
            raise RuntimeError("expected stacks to be 'python', or 'all'")
        most = max_entries if enabled == "all" else 1
        skipped = next((names for names in rest if isinstance(names, list)), [])
        self._skipped = frozenset(ACTION_NAMES[name] for name in skipped if name in ACTION_NAMES)
        self._switch(
            enabled is not None,
            _STACK_LEVELS.index(context),
            stacks == "python",
            most,
            clear=bool(rest[:1] and rest[0]),
        )

    def record_as_it_was(
        self, enabled: bool, of_live: bool, max_entries: int, of_allocations: bool, native: bool, *rest: Any
    ) -> None:
        level = _STACK_LEVELS.index("alloc") if of_allocations else _STACK_LEVELS.index("state") if of_live else 0
        self._skipped = frozenset()
        self._switch(enabled, level, not native, max_entries, clear=bool(rest[:1] and rest[0]))

    def _switch(self, is_on: bool, level: int, only_python: bool, most: int, *, clear: bool) -> None:
        event, number = len(self._ledger.history), self._ledger.count
        self._end(self._since, event)
        self._end(self._stacks_since, number)
        if clear or not is_on:
            self._since.clear()
        if is_on:
            self._since.append((event, None))
            if level:
                self._stacks_since.append((number, None))
        self._is_on, self._level, self._only_python, self._most = is_on, level, only_python, most

    @staticmethod
    def _end(ranges: list[tuple[int, int | None]], at: int) -> None:
        if ranges and ranges[-1][1] is None:
            ranges[-1] = ranges[-1][0], at

    def _kept(self) -> KeptTrace:
        history = self._ledger.history
        count = len(history)
        shown = [np.arange(first, count if end is None else end) for first, end in self._since]
        places = np.concatenate(shown) if shown else np.zeros(0, dtype=np.int64)
        if self._skipped:
            action = np.array(history.action, dtype=np.uint8)
            places = places[~np.isin(action[places], [int(skipped) for skipped in self._skipped])]
        ranges = list(self._stacks_since)

        def recorded(number: int) -> bool:
            return any(first <= number and (end is None or number < end) for first, end in ranges)

        return KeptTrace(places[max(0, len(places) - self._most) :], self._kinds(), recorded, self._only_python)

    def _kinds(self) -> frozenset[Action]:
        if self._level < _STACK_LEVELS.index("alloc"):
            return frozenset()
        return frozenset(Action) - (
            frozenset() if self._level == _STACK_LEVELS.index("all") else _FREE_ACTIONS | _RELEASE_ACTIONS
        )

    def clock_us(self) -> int:
        """For whoever notes beside it when something happened: a moment between two events."""
        return self._ledger.mark()

    def snapshot(self, pool: Any = None) -> dict[str, Any]:
        """The pool's two numbers are followed, in late releases, by whether to include the history."""
        made = {"external_annotations": [], **snapshot_dict(self._trace_of(self._kept()))}
        self._note()
        chosen = _ALL_POOLS if pool is None else tuple(pool)[:2]
        if chosen != _ALL_POOLS:
            made["segments"] = [row for row in made["segments"] if tuple(row["segment_pool_id"]) == chosen]
        return made

    def dump(self, filename: Any = "dump_snapshot.pickle", augment_with_fx_traces: bool = False) -> None:
        kept = self._kept()
        with open(filename, "wb") as file:
            write_pickle(self._trace_of(kept), file)
        self.windows.append(
            HistoryWindow(os.fspath(filename), len(kept.events), *peaks_within(self._ledger, kept.events))
        )
        self._note()

    def _note(self) -> None:
        """torch writes into its history that somebody looked."""
        if self._is_on:
            self._ledger.note(Action.SNAPSHOT, self._ledger.allocator.statistics.active_bytes.current[0])

    def functions(self) -> dict[str, Callable[..., Any]]:
        """Replacements for functions of `torch._C`."""
        return {
            "_cuda_record_memory_history": self.record,
            "_cuda_record_memory_history_legacy": self.record_as_it_was,
            "_cuda_memorySnapshot": self.snapshot,
            "_cuda_isHistoryEnabled": lambda: self._is_on,
        }


def peaks_within(ledger: Ledger, events: Ints8) -> tuple[int, int, int]:
    """Return peaks of requested, allocated and reserved bytes, with what was live before the first of these events."""
    history = ledger.history
    action, size = np.array(history.action, dtype=np.uint8), np.array(history.size, dtype=np.int64)
    rounded = np.array(ledger.rounded, dtype=np.int64)
    cause = history.causes()
    block = np.where(cause >= 0, rounded[np.maximum(cause, 0)], 0) if len(rounded) else np.zeros_like(size)

    def peak(amount: Ints8, more: tuple[Action, ...], less: tuple[Action, ...]) -> int:
        change = np.where(np.isin(action, more), amount, 0) - np.where(np.isin(action, less), amount, 0)
        level = np.concatenate([[0], np.cumsum(change)])
        first = int(events[0]) if len(events) else len(action)
        return int(level[first:].max())

    return (
        peak(size, (Action.ALLOC,), (Action.FREE_COMPLETED,)),
        peak(block, (Action.ALLOC,), (Action.FREE_REQUESTED,)),
        peak(size, (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP), (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)),
    )


def follow_history(patches: Patches, history: MemoryHistory) -> None:
    for name, function in history.functions().items():
        patches.put(torch._C, name, function)
    patches.replace(torch.cuda.memory, "_dump_snapshot", history.dump)
    patches.put(torch.cuda.memory, "_pretended_clock_us", history.clock_us)
