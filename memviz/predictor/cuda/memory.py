"""Memory functions of `torch.cuda`: statistics, limits, out-of-memory errors and the recorded history.

Programs catch torch's out-of-memory error, read it and go on. On a card everything that the failed operator made is
freed before that, so the predictor's own frames are removed from the error. `_record_memory_history` and
`_dump_snapshot` write the files that the card would have written.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch

from memviz.allocator.blocks import AllocationFailed
from memviz.allocator.caching import CachingAllocator
from memviz.allocator.event_replay import ModelHistory
from memviz.allocator.replayer import CardMemory
from memviz.allocator.settings import Settings
from memviz.predictor.cards import KnownCard
from memviz.predictor.compat import Patches
from memviz.predictor.cuda.machine import NamedDevices
from memviz.predictor.ledger import HistoryPart, Ledger, LiveAllocation
from memviz.predictor.outputs import real_file
from memviz.predictor.position import quoted_line_of_caller
from memviz.predictor.recorder import AllocationRecorder
from memviz.trace.model import ACTION_NAMES, Action, Category, Ints8, Trace
from memviz.trace.write import snapshot_dict, write_pickle

OutOfMemoryError: type[RuntimeError] = torch.OutOfMemoryError
Observer = Callable[[int, int, int, int], Any]
"""Device, bytes wanted, bytes the program may have, bytes free."""


@dataclass(frozen=True)
class PretendedOutOfMemory:
    """One allocation that failed, whether or not the program went on."""

    event: int
    where: str
    requested_bytes: int
    asked_bytes: int
    """Requested bytes after rounding: torch's "tried to allocate"."""
    allocated_bytes: int
    reserved_bytes: int
    card: int = 0


class OutOfMemoryReport:
    """Record failed allocations, notify observers and build torch's error."""

    def __init__(self, card: CardMemory) -> None:
        self.failures: list[PretendedOutOfMemory] = []
        self.observers: list[Observer] = []
        self._card = card

    def free_bytes(self, allocator: CachingAllocator) -> int:
        return max(0, self._card.usable_bytes - allocator.statistics.reserved)

    def note(self, failure: AllocationFailed, ledger: Ledger) -> None:
        sizes = failure.requested, failure.asked_of_device, failure.allocated, failure.reserved
        event = len(ledger.history) - 1
        self.failures.append(PretendedOutOfMemory(event, quoted_line_of_caller(), *sizes, ledger.card))

    def error_for(self, failure: AllocationFailed, ledger: Ledger) -> BaseException:
        number, card, free = ledger.card, self._card, self.free_bytes(ledger.allocator)
        limit = ledger.allocator.limit
        requested, allocated, reserved = failure.asked_of_device, failure.allocated, failure.reserved
        self.note(failure, ledger)
        for observer in self.observers:
            observer(number, requested, card.total_bytes if limit is None else limit, free)
        allowed, in_use = "" if limit is None else f"{size_text(limit)} allowed; ", card.overhead_bytes + reserved
        # Programs search for torch's own words.
        return OutOfMemoryError(
            f"CUDA out of memory. Tried to allocate {size_text(requested)}. "
            f"GPU {number} has a total capacity of {size_text(card.total_bytes)} of which {size_text(free)} is free. "
            f"Including non-PyTorch memory, this process has {size_text(in_use)} memory in use. "
            f"{allowed}Of the allocated memory {size_text(allocated)} is allocated by PyTorch, "
            f"and {size_text(reserved - allocated)} is reserved by PyTorch but unallocated."
        )


def size_text(count: int) -> str:
    """Format a size as torch's messages do."""
    for size, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count > size:
            return f"{count / size:.2f} {unit}"
    return f"{count} bytes"


def without_own_frames(error: BaseException) -> BaseException:
    """Return the error without anything that keeps the operator's tensors alive."""
    error.__context__ = error.__cause__ = None
    return error.with_traceback(None)


class MemoryDevice(Protocol):
    card: KnownCard
    recorder: AllocationRecorder
    settings: Settings

    def memory_stats(self, card: int = 0) -> dict[str, int]: ...

    def reset_peak(self, card: int = 0) -> None: ...

    def empty_cache(self) -> None: ...

    def set_allocator_settings(self, text: str) -> None: ...

    def change_settings(self, settings: Settings, card: int | None = None) -> None: ...


class MemoryFunctions:
    def __init__(self, device: MemoryDevice, named: NamedDevices, report: OutOfMemoryReport) -> None:
        self.device = device
        self.report = report
        self.workspaces = device.recorder.workspaces
        self.metadata = ""
        self._recorder = device.recorder
        self._ledger = device.recorder.ledger
        self._named = named
        self._raw: dict[int, LiveAllocation] = {}
        """Allocations of `caching_allocator_alloc`, by address."""

    def get_info(self, card: int = 0) -> tuple[int, int]:
        return self.report.free_bytes(self._ledger.cards[card].allocator), self.device.card.memory_bytes

    def stats(self, card: int = 0) -> dict[str, Any]:
        """Return the statistics, nested as torch's C++ function returns them."""
        nested: dict[str, Any] = {}
        for name, figure in self.device.memory_stats(card).items():
            *path, last = name.split(".")
            inner = nested
            for part in path:
                inner = inner.setdefault(part, {})
            inner[last] = figure
        nested["max_split_size"] = -1 if (most := self.device.settings.max_split_size) is None else most
        return nested

    def host_stats(self) -> dict[str, Any]:
        """Return statistics of pinned memory, all 0 because it is not counted."""
        nothing = dict.fromkeys(("current", "peak", "allocated", "freed"), 0)
        times = dict.fromkeys(("total", "max", "min", "count", "avg"), 0)
        counts = {"num_host_alloc": 0, "num_host_free": 0, "host_alloc_time": times, "host_free_time": times}
        kinds = ("allocations", "active_requests", "segments", "allocated_bytes", "active_bytes", "reserved_bytes")
        return {**dict.fromkeys(kinds, nothing), **counts}

    def set_fraction(self, fraction: float, device: int | None = None) -> None:
        card = self._named.card(device)
        memory = self._ledger.cards[card].allocator.device
        if memory.total is None:
            memory.total = self.device.card.memory_bytes
        self.device.change_settings(replace(self.device.settings, per_process_memory_fraction=fraction), card)

    def raw_alloc(self, size: int, stream: int) -> int:
        if size == 0:
            return 0
        with self._ledger.on(self._named.here.chosen):
            taken = self._recorder.allocate(Category.UNKNOWN, size, "caching_allocator_alloc", (stream, None))
        self._raw[taken.block.address] = taken
        return taken.block.address

    def raw_delete(self, address: int) -> None:
        taken = self._raw.pop(address, None)
        if taken is not None:
            self._ledger.free(taken)
        elif address:
            raise RuntimeError(f"invalid device pointer: {address:#x}")


_RELEASES = {Action.FREE_REQUESTED, Action.FREE_COMPLETED, Action.SEGMENT_FREE, Action.SEGMENT_UNMAP}
_ACTIONS_WITH_STACK: dict[str | None, frozenset[Action]] = {
    None: frozenset(),
    "state": frozenset(),
    "alloc": frozenset(Action) - _RELEASES,
    "all": frozenset(Action),
}
"""Actions by the `context` of `_record_memory_history`; "state" keeps stacks of live allocations only."""
_ALL_POOLS = (0, 0)
_STILL_OPEN = sys.maxsize


@dataclass(frozen=True)
class HistoryWindow:
    """One file that the program dumped, and the peaks within what it shows; for each card that has events there."""

    file: str
    events: int
    peak_requested_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int


class MemoryHistory:
    """The history that the program records itself, with the ranges of events and stacks that it covers."""

    def __init__(self, ledger: Ledger, trace_of: Callable[[Sequence[HistoryPart]], Trace]) -> None:
        self.windows: list[HistoryWindow] = []
        self._ledger = ledger
        self._trace_of = trace_of
        self.is_on = False
        self._with_stack: frozenset[Action] = frozenset()
        self._only_python = False
        self._most = 1
        self._skipped: frozenset[Action] = frozenset()
        self._recorded: tuple[list[range], ...] = tuple([] for _ in ledger.cards)
        """Places of events, for each card."""
        self._with_stacks: list[range] = []
        """Numbers of allocations."""

    def record(self, enabled: str | None, context: str | None, stacks: str, max_entries: int, *rest: Any) -> None:
        """`rest` differs between releases: whether to clear, and lately which actions to skip."""
        if enabled not in (None, "state", "all"):
            raise RuntimeError(f"expected state to be 'state', 'all', or None, but got {enabled!r}")
        if context not in _ACTIONS_WITH_STACK:
            raise RuntimeError(f"expected context to be 'state', 'alloc', 'all', or None, but got {context!r}")
        if stacks not in ("python", "all"):
            raise RuntimeError("expected stacks to be 'python', or 'all'")
        skipped = next((names for names in rest if isinstance(names, list)), [])
        self._skipped = frozenset(ACTION_NAMES[name] for name in skipped if name in ACTION_NAMES)
        events, number = [len(card.history) for card in self._ledger.cards], self._ledger.count
        for ranges, at in zip((*self._recorded, self._with_stacks), (*events, number), strict=True):
            if ranges:
                ranges[-1] = range(ranges[-1].start, min(at, ranges[-1].stop))
        self.is_on = enabled is not None
        for ranges, event in zip(self._recorded, events, strict=True):
            if (rest and rest[0]) or not self.is_on:
                ranges.clear()
            if self.is_on:
                ranges.append(range(event, _STILL_OPEN))
        if self.is_on and context is not None:
            self._with_stacks.append(range(number, _STILL_OPEN))
        self._with_stack, self._only_python = _ACTIONS_WITH_STACK[context], stacks == "python"
        self._most = max_entries if enabled == "all" else 1

    def record_legacy(
        self, enabled: bool, of_live: bool, max_entries: int, of_allocations: bool, native: bool, *rest: Any
    ) -> None:
        context = "alloc" if of_allocations else "state" if of_live else None
        self.record("all" if enabled else None, context, "all" if native else "python", max_entries, *rest[:1])

    def _parts(self) -> tuple[HistoryPart, ...]:
        recorded = zip(self._ledger.cards, self._recorded, strict=True)
        return tuple(self._part(card.history, ranges) for card, ranges in recorded)

    def _part(self, history: ModelHistory, recorded: Sequence[range]) -> HistoryPart:
        shown = [np.arange(part.start, min(part.stop, len(history))) for part in recorded]
        places = np.concatenate(shown) if shown else np.zeros(0, dtype=np.int64)
        if self._skipped:
            action = np.array(history.action, dtype=np.uint8)
            places = places[~np.isin(action[places], [int(skipped) for skipped in self._skipped])]
        ranges = list(self._with_stacks)
        return HistoryPart(
            places[max(0, len(places) - self._most) :],
            self._with_stack,
            lambda number: any(number in part for part in ranges),
            self._only_python,
        )

    def clock_us(self) -> int:
        """Return a time between two events, for annotations of the program."""
        return self._ledger.mark()

    def snapshot(self, pool: Any = None) -> dict[str, Any]:
        """Return a snapshot; late releases append to the two numbers of a pool whether to include the history."""
        made = {"external_annotations": [], **snapshot_dict(self._trace_of(self._parts()))}
        self._note_snapshot()
        chosen = _ALL_POOLS if pool is None else tuple(pool)[:2]
        if chosen != _ALL_POOLS:
            made["segments"] = [row for row in made["segments"] if tuple(row["segment_pool_id"]) == chosen]
        return made

    def dump(self, filename: Any = "dump_snapshot.pickle", augment_with_fx_traces: bool = False) -> None:
        parts = self._parts()
        with real_file(filename), open(filename, "wb") as file:
            write_pickle(self._trace_of(parts), file)
        for card, part in enumerate(parts):
            if card == 0 or len(part.events):
                peaks = peaks_within(self._ledger, card, part.events)
                self.windows.append(HistoryWindow(os.fspath(filename), len(part.events), *peaks))
        self._note_snapshot()

    def _note_snapshot(self) -> None:
        # torch records that a snapshot was taken.
        if self.is_on:
            self._ledger.note(Action.SNAPSHOT, self._ledger.cards[0].allocator.statistics.active_bytes.current[0])


def peaks_within(ledger: Ledger, card: int, events: Ints8) -> tuple[int, int, int]:
    """Return peaks of requested, allocated and reserved bytes, with what was live before the first of these events."""
    history = ledger.cards[card].history
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


def follow_memory(patches: Patches, device: MemoryDevice, history: MemoryHistory) -> None:
    memory: Any = torch.cuda.memory
    patches.replace(memory, "_set_allocator_settings", device.set_allocator_settings)
    patches.replace(memory, "_dump_snapshot", history.dump)
    patches.put(memory, "_pretended_clock_us", history.clock_us)
