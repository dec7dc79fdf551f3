"""`torch.cuda.memory._record_memory_history` and what it leaves: the files that the card would have written."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from memviz.runner.predict.ledger import Ledger
from memviz.runner.predict.predicted_trace import KeptTrace
from memviz.runner.predict.torch_patches import Patches
from memviz.trace.formats.write_snapshot import snapshot_dict, write_pickle
from memviz.trace.model import ACTION_NAMES, Action, Ints8, Trace

_LEVELS = (None, "state", "alloc", "all")
"""What has a stack: nothing, what is live, what was allocated too, and what was freed."""
_ALL_POOLS = (0, 0)
_FREES = frozenset({Action.FREE_REQUESTED, Action.FREE_COMPLETED})
_GIVEN_BACK = frozenset({Action.SEGMENT_FREE, Action.SEGMENT_UNMAP})


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
        if context not in _LEVELS:
            raise RuntimeError(f"expected context to be 'state', 'alloc', 'all', or None, but got {context!r}")
        if stacks not in ("python", "all"):
            raise RuntimeError("expected stacks to be 'python', or 'all'")
        most = max_entries if enabled == "all" else 1
        skipped = next((names for names in rest if isinstance(names, list)), [])
        self._skipped = frozenset(ACTION_NAMES[name] for name in skipped if name in ACTION_NAMES)
        self._switch(
            enabled is not None, _LEVELS.index(context), stacks == "python", most, clear=bool(rest[:1] and rest[0])
        )

    def record_as_it_was(
        self, enabled: bool, of_live: bool, max_entries: int, of_allocations: bool, native: bool, *rest: Any
    ) -> None:
        level = _LEVELS.index("alloc") if of_allocations else _LEVELS.index("state") if of_live else 0
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
        if self._level < _LEVELS.index("alloc"):
            return frozenset()
        return frozenset(Action) - (frozenset() if self._level == _LEVELS.index("all") else _FREES | _GIVEN_BACK)

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
        """Of `torch._C`."""
        return {
            "_cuda_record_memory_history": self.record,
            "_cuda_record_memory_history_legacy": self.record_as_it_was,
            "_cuda_memorySnapshot": self.snapshot,
            "_cuda_isHistoryEnabled": lambda: self._is_on,
        }


def peaks_within(ledger: Ledger, events: Ints8) -> tuple[int, int, int]:
    """Of requested, allocated and reserved bytes, with what was there when the first of these events came."""
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
