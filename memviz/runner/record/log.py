"""Log of a running program, laid over its history: each allocation's category, module and phase."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from memviz.trace.model import (
    Action,
    Annotations,
    Bools,
    Category,
    DeviceTrace,
    Events,
    HolderKind,
    Holders,
    Ints8,
    Labels,
    Phase,
    Stage,
    Trace,
)
from memviz.trace.reserved import CUBLAS_WORKSPACE_BYTES


@dataclass(frozen=True)
class Counts:
    allocs: int
    frees: int


def counts_of(api: Any, device: int | None) -> Counts | None:
    """None where torch has no such figures: XPU counts bytes only."""
    figures = api.memory.memory_stats_as_nested_dict(device)
    if not figures:
        return Counts(0, 0)
    try:
        every = figures["allocation"]["all"]
        return Counts(int(every["allocated"]), int(every["freed"]))
    except (KeyError, TypeError):
        return None


def event_indices(events: Events, end: Counts, moments: Sequence[Counts]) -> Ints8:
    """For each noted moment, how many events came before it; 0 where the buffer no longer has them."""
    allocs = np.array([moment.allocs for moment in moments], dtype=np.int64)
    frees = np.array([moment.frees for moment in moments], dtype=np.int64)
    after_alloc = _event_index(events.action == Action.ALLOC, end.allocs - allocs)
    after_free = _event_index(events.action == Action.FREE_REQUESTED, end.frees - frees)
    return np.maximum(after_alloc, after_free)


def _event_index(hit: Bools, still_to_come: Ints8) -> Ints8:
    """Right behind the last of the hits that had happened by then."""
    behind = np.append(0, np.flatnonzero(hit) + 1)
    # A program that resets its statistics can have moments after the end.
    return np.asarray(behind[np.clip(len(behind) - 1 - still_to_come, 0, len(behind) - 1)], dtype=np.int64)


def comparable(moments: Sequence[Counts], end: Counts) -> slice:
    """Those in the same count as the end: after the last time the program reset its figures, and not later."""
    first, last = 0, len(moments)
    for row in range(1, len(moments)):
        if moments[row].allocs < moments[row - 1].allocs or moments[row].frees < moments[row - 1].frees:
            first = row
    while last > first and (moments[last - 1].allocs > end.allocs or moments[last - 1].frees > end.frees):
        last -= 1
    return slice(first, last)


PHASES = {"forward": Phase.FORWARD, "backward": Phase.BACKWARD, "optimizer step": Phase.STEP}
"""Phases by annotation name. Any other annotation surrounds phases and is none."""


@dataclass(frozen=True)
class Mark:
    counts: Counts
    phase: Phase
    module: str
    span: int
    """Grows with every phase that begins or ends, so that two forwards in a row stay two."""
    again: int
    """The same for a module's forward within a backward, when a checkpoint computes again; 0 is none."""
    depth: int = 0
    """How many modules are entered and not left."""


@dataclass(frozen=True)
class TensorSeen:
    """A tensor that was there, by the address of its storage."""

    counts: Counts | None
    address: int
    category: Category
    module: str


@dataclass(frozen=True)
class HolderSeen:
    """A holder of the storage at an address, at one moment."""

    counts: Counts | None
    address: int
    kind: HolderKind
    owner: str
    chain: str
    place: str


_Seen = TypeVar("_Seen", TensorSeen, HolderSeen)
_MOST_HOLDERS = 1_000_000


@dataclass(frozen=True)
class AnnotationEnd:
    counts: Counts
    time_us: int
    name: str
    stage: Stage


@dataclass
class Log:
    counts: Callable[[], Counts | None]
    clock_us: Callable[[], int] = field(default=lambda: time.time_ns() // 1000)
    marks: list[Mark] = field(default_factory=list)
    tensors_seen: list[TensorSeen] = field(default_factory=list)
    annotations: list[AnnotationEnd] = field(default_factory=list)
    holders: list[HolderSeen] = field(default_factory=list)
    _held: set[int] = field(default_factory=set)
    """Addresses that had a holder when that was last looked at."""
    holders_cut: int = 0
    """Moments at which the search for holders was ended by its time limit."""
    holder_seconds: float = 60.0
    """Time left for finding holders: a program that tries sizes until one fits runs out of memory many times."""
    annotated: Callable[[str, Stage], None] = field(default=lambda name, stage: None)
    """Called after each begin and end of an annotation."""
    phase: Phase = Phase.UNKNOWN
    _modules: list[str] = field(default_factory=list)
    _span: int = 0
    _again: int = 0

    @contextmanager
    def during(self, name: str) -> Iterator[None]:
        before = self.phase
        self.begin(name, PHASES.get(name, before))
        try:
            yield
        finally:
            self.end(name, before)

    def begin(self, name: str, phase: Phase) -> None:
        self._annotate(name, Stage.START)
        self._turn_to(phase)

    def end(self, name: str, back_to: Phase = Phase.UNKNOWN) -> None:
        self._turn_to(back_to)
        self._annotate(name, Stage.END)

    def enter(self, module: str) -> None:
        if not self._modules and self.phase == Phase.BACKWARD:
            self._again += 1
        self._modules.append(module)
        self._mark()

    def leave(self) -> None:
        if self._modules:
            self._modules.pop()
            self._mark()

    def see(self, address: int, category: Category, module: str, counts: Counts | None) -> None:
        self.tensors_seen.append(TensorSeen(counts, address, category, module))

    def hold(self, holders: Mapping[int, Any], outside: Any = None) -> None:
        """Keep the holder of each address at this moment; `outside` is that of addresses that have none any more.

        Those may be free as well: readers of the log know which addresses are allocated.
        """
        counts = self.counts()
        lost = self._held - holders.keys() if outside is not None else ()
        seen = chain(holders.items(), ((address, outside) for address in lost))
        for address, holder in islice(seen, max(_MOST_HOLDERS - len(self.holders), 0)):
            self.holders.append(HolderSeen(counts, address, holder.kind, holder.owner, holder.chain, holder.place))
        self._held = set(holders) if outside is not None else self._held | holders.keys()

    def _turn_to(self, phase: Phase) -> None:
        if phase != self.phase:
            self.phase = phase
            self._span += 1
            self._mark()

    def _mark(self) -> None:
        counts = self.counts()
        if counts is not None:
            module = self._modules[-1] if self._modules else ""
            again = self._again if module and self.phase == Phase.BACKWARD else 0
            self.marks.append(Mark(counts, self.phase, module, self._span, again, len(self._modules)))

    def _annotate(self, name: str, stage: Stage) -> None:
        counts = self.counts()
        if counts is not None:
            self.annotations.append(AnnotationEnd(counts, self.clock_us(), name, stage))
        self.annotated(name, stage)


_LAST_WORD = (Category.OUTPUT, Category.INPUT, Category.OPTIMIZER_STATE, Category.GRADIENT, Category.PARAMETER)
"""Precedence of categories: a tensor seen as several of them gets the last."""


def labelled(trace: Trace, number: int, log: Log, end: Counts | None) -> Trace:
    """The trace with the log's labels and annotations on one of its GPUs."""
    numbers = {text: number for number, text in enumerate(trace.strings)}

    def names(text: str) -> int:
        return numbers.setdefault(text, len(numbers))

    devices = tuple(
        _with_labels(device, log, end, names) if (device.kind, device.device) == ("gpu", number) else device
        for device in trace.devices
    )
    return replace(trace, devices=devices, strings=tuple(numbers))


_Names = Callable[[str], int]
"""Number of a text among the trace's, to which labels add their own."""


def _with_labels(device: DeviceTrace, log: Log, end: Counts | None, names: _Names) -> DeviceTrace:
    events = device.events
    labels = _Columns(device, names)
    marks = log.marks[comparable([mark.counts for mark in log.marks], end)] if end else []
    spans = None
    if end and marks:
        spans = _PhaseSpans(marks, event_indices(events, end, [mark.counts for mark in marks]), len(events))
        labels.say_when(spans)
    tensors_seen, at = _placed(log.tensors_seen, events, end)
    order = sorted(range(len(at)), key=lambda row: _LAST_WORD.index(tensors_seen[row].category))
    labels.say_what([tensors_seen[row] for row in order], at[np.array(order, dtype=np.int64)])
    if spans is not None:
        labels.say_the_rest(spans)
    return replace(
        device,
        annotations=_annotations(device, log, end, names),
        event_labels=Labels(labels.category, labels.module, labels.phase),
        block_labels=labels.of_blocks(),
        holders=_holders(log.holders, events, end, names),
    )


def _holders(seen: Sequence[HolderSeen], events: Events, end: Counts | None, names: _Names) -> Holders | None:
    entries, at = _placed(seen, events, end)
    if not entries:
        return None
    order = np.argsort(at, kind="stable")
    in_order = ((at[row], entries[row]) for row in order.tolist())
    rows = [
        (event, one.address, one.kind, names(one.owner), names(one.chain), names(one.place)) for event, one in in_order
    ]
    return Holders.typed(*zip(*rows, strict=True))


def _placed(seen: Sequence[_Seen], events: Events, end: Counts | None) -> tuple[list[_Seen], Ints8]:
    """Return what was seen, and how many events came before each.

    Without counts only what was seen last can be placed: at the end.
    """
    counted = [one.counts for one in seen if one.counts is not None]
    if end is None or len(counted) < len(seen):
        entries = [one for one in seen if one.counts == seen[-1].counts]
        return entries, np.full(len(entries), len(events), dtype=np.int64)
    part = comparable(counted, end)
    return list(seen[part]), event_indices(events, end, counted[part])


class _PhaseSpans:
    """Events at which phases and modules begin and end."""

    def __init__(self, marks: Sequence[Mark], at: Ints8, count: int) -> None:
        self.at = at
        self.phase = np.array([Phase.UNKNOWN, *(mark.phase for mark in marks)], dtype=np.uint8)
        self.module = ["", *(mark.module for mark in marks)]
        self.span = np.array([0, *(mark.span for mark in marks)], dtype=np.int64)
        self.again = np.array([0, *(mark.again for mark in marks)], dtype=np.int64)
        self.depth = np.array([0, *(mark.depth for mark in marks)], dtype=np.int64)
        self.call_end = _call_ends(self.depth, at, count)
        self.span_end = _ends_of_runs(self.span, at, count)
        self.again_end = _ends_of_runs(self.again, at, count)
        self.has_backward = bool((self.phase == Phase.BACKWARD).any())

    def mark_of(self, events: Ints8) -> Ints8:
        """Row of the last mark before each event; 0 is before all of them."""
        return np.asarray(np.searchsorted(self.at, events, side="right"), dtype=np.int64)


def _ends_of_runs(serial: Ints8, at: Ints8, count: int) -> Ints8:
    """For each row, where the stretch of rows with its serial number ends."""
    begins = np.flatnonzero(np.diff(serial, prepend=-1))
    ends = np.append(at[begins[1:] - 1], count)
    return np.asarray(np.repeat(ends, np.diff(np.append(begins, len(serial)))), dtype=np.int64)


def _call_ends(depth: Ints8, at: Ints8, count: int) -> Ints8:
    """For each row, where the call ends of the module that is the innermost there: fewer are entered then."""
    ends = np.full(len(depth), count, dtype=np.int64)
    open_rows: list[int] = []
    for row, deep in enumerate(depth.tolist()):
        while open_rows and depth[open_rows[-1]] > deep:
            ends[open_rows.pop()] = at[row - 1]
        open_rows.append(row)
    return ends


class _Columns:
    """Labels in the making, one row per event."""

    def __init__(self, device: DeviceTrace, names: _Names) -> None:
        self.device = device
        self.names = names
        count = len(device.events)
        self.category = np.zeros(count, dtype=np.uint8)
        self.module = np.zeros(count, dtype=np.int32)
        self.phase = np.zeros(count, dtype=np.uint8)
        self.allocs = np.flatnonzero(device.events.action == Action.ALLOC)
        self.runs = EventsByAddress(device.events)
        self.block_category = np.zeros(len(device.blocks), dtype=np.uint8)
        self.block_module = np.zeros(len(device.blocks), dtype=np.int32)
        self.row_of_block = {address: row for row, address in enumerate(device.blocks.address.tolist())}

    def say_when(self, spans: _PhaseSpans) -> None:
        mark = spans.mark_of(self.allocs)
        self.phase[self.allocs] = spans.phase[mark]
        self.module[self.allocs] = np.array([self.names(path) for path in spans.module], dtype=np.int32)[mark]

    def say_what(self, tensors_seen: Sequence[TensorSeen], at: Ints8) -> None:
        addresses = np.array([tensor.address for tensor in tensors_seen], dtype=np.int64)
        for tensor, event in zip(tensors_seen, self.runs.last_alloc(addresses, at).tolist(), strict=True):
            module = self.names(tensor.module)
            if event >= 0:
                self.category[event] = tensor.category
                self.module[event] = module or self.module[event]
                continue
            row = self.row_of_block.get(tensor.address)
            if row is not None:
                self.block_category[row], self.block_module[row] = tensor.category, module

    def say_the_rest(self, spans: _PhaseSpans) -> None:
        rest = self.allocs[self.category[self.allocs] == Category.UNKNOWN]
        never_freed = self.runs.next_free(rest) == len(self.category)
        # Made within the first matrix product, whichever phase that is in; no tensor of the program's.
        rest = rest[(self.device.events.size[rest] != CUBLAS_WORKSPACE_BYTES) | ~never_freed]
        mark = spans.mark_of(rest)
        phase, again = spans.phase[mark], spans.again[mark] > 0
        ends = np.where(again, spans.again_end[mark], spans.span_end[mark])
        freed = self.runs.next_free(rest)
        handed_on = (spans.depth[mark] > 0) & (again | (phase == Phase.FORWARD)) & (freed >= spans.call_end[mark])
        in_product = (freed < ends) & ~handed_on
        labelled = ~in_product & (again | (phase == Phase.FORWARD) & (spans.has_backward | handed_on & (freed < ends)))
        self.category[rest[in_product & (phase != Phase.UNKNOWN)]] = Category.TEMPORARY
        self.category[rest[labelled]] = Category.ACTIVATION

    def of_blocks(self) -> Labels:
        """A block's label is that of its allocation, where that is among the events."""
        blocks, phase = self.device.blocks, np.zeros(len(self.device.blocks), dtype=np.uint8)
        event = self.runs.last_alloc(blocks.address, np.full(len(blocks), len(self.device.events), dtype=np.int64))
        has_alloc = (event >= 0) & (blocks.state != 0)
        self.block_category[has_alloc] = self.category[event[has_alloc]]
        self.block_module[has_alloc] = self.module[event[has_alloc]]
        phase[has_alloc] = self.phase[event[has_alloc]]
        self.block_category[blocks.state == 0] = Category.UNKNOWN
        return Labels(self.block_category, self.block_module, phase)


class EventsByAddress:
    """Allocs and frees in order of address, then time: an address is used again and again."""

    def __init__(self, events: Events) -> None:
        self.count = len(events)
        self.known = np.unique(events.address)
        self.allocs = self._sort_keys(events, Action.ALLOC)
        self.frees = self._sort_keys(events, Action.FREE_REQUESTED)
        self.address = events.address

    def _sort_keys(self, events: Events, action: Action) -> Ints8:
        rows = np.flatnonzero(events.action == action)
        return np.sort(self._sort_key(events.address[rows], rows))

    def _sort_key(self, address: Ints8, event: npt.NDArray[Any]) -> Ints8:
        return np.asarray(np.searchsorted(self.known, address) * (self.count + 1) + event, dtype=np.int64)

    def last_alloc(self, address: Ints8, before: Ints8) -> Ints8:
        """The last alloc at each address among the first `before` events, or -1."""
        if not len(self.allocs):
            return np.full(len(address), -1, dtype=np.int64)
        row = np.searchsorted(self.allocs, self._sort_key(address, before), side="left") - 1
        event = self.allocs[np.maximum(row, 0)] % (self.count + 1)
        fits = (row >= 0) & (self.address[event] == address)
        return np.where(fits, event, -1)

    def next_free(self, allocs: Ints8) -> Ints8:
        """Return the index of the free request of each alloc, or the number of events."""
        row = np.searchsorted(self.frees, self._sort_key(self.address[allocs], allocs), side="right")
        if not len(self.frees):
            return np.full(len(allocs), self.count, dtype=np.int64)
        event = self.frees[np.minimum(row, len(self.frees) - 1)] % (self.count + 1)
        fits = (row < len(self.frees)) & (self.address[event] == self.address[allocs])
        return np.where(fits, event, self.count)


def _annotations(device: DeviceTrace, log: Log, end: Counts | None, names: _Names) -> Annotations:
    """Merge torch's annotations and the log's by time; the log's are placed by their allocation counts."""
    entries = log.annotations[comparable([entry.counts for entry in log.annotations], end)] if end else []
    if end is None or not entries:
        return device.annotations
    at = event_indices(device.events, end, [entry.counts for entry in entries])
    time_us = np.array([entry.time_us for entry in entries], dtype=np.int64)
    times = device.events.time_us
    if len(times) and times.any():
        before = np.where(at > 0, times[np.maximum(at - 1, 0)], time_us)
        after = np.where(at < len(times), times[np.minimum(at, len(times) - 1)], time_us)
        time_us = np.clip(time_us, before, np.maximum(before, after))
    own = Annotations(
        name=np.array([names(entry.name) for entry in entries], dtype=np.int32),
        stage=np.array([entry.stage for entry in entries], dtype=np.uint8),
        time_us=np.maximum.accumulate(time_us),
    )
    # A device that is pretended names phases by itself, as far as it sees them; the log has them all.
    rows = device.annotations
    stays = ~(np.isin(rows.name, [names(phase) for phase in PHASES]) & (not device.is_timed))
    both = {name: np.concatenate([column[stays], getattr(own, name)]) for name, column in rows.columns()}
    return Annotations(**both).select(np.argsort(both["time_us"], kind="stable"))
