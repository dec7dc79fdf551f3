"""The ledger: malloc and free of every storage, through the model of the allocator, and the trace of it.

A storage is freed when its last owner is gone: a tensor, a view or the autograd graph. Its weak reference notices
that at once, as on a card.
"""

from __future__ import annotations

import weakref
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from memviz.allocator.blocks import AllocationFailed, Block, DeviceMemory, PoolId
from memviz.allocator.caching import CachingAllocator
from memviz.allocator.event_replay import ModelHistory, final_state
from memviz.allocator.settings import Settings
from memviz.trace.intern import Interner
from memviz.trace.model import (
    NO_STACK,
    About,
    Action,
    Annotations,
    Blocks,
    Category,
    DeviceTrace,
    Events,
    Holders,
    HostBytes,
    Ints4,
    Ints8,
    Labels,
    Phase,
    Segments,
    Stage,
    Trace,
)

if TYPE_CHECKING:
    import torch

_USERS_CODE = -1
"""Cause of events without an allocation, such as emptying the cache."""
_DEFAULT_STREAM = 0
Place = tuple[int, PoolId | None]
"""A stream's handle, and the pool that memory comes from; None is the default one."""


@dataclass(slots=True, eq=False)
class LiveAllocation:
    number: int
    """Counts all allocations of the run."""
    requested: int
    block: Block
    storage: weakref.ref[torch.UntypedStorage] | None = None
    card: int = 0


class StorageRef(weakref.ref["torch.UntypedStorage"]):
    """A weak reference with the address of the storage's C++ object."""

    __slots__ = ("key",)
    key: int


class CardRecord:
    def __init__(self, settings: Settings, device: DeviceMemory) -> None:
        self.history = ModelHistory()
        self.allocator = CachingAllocator(settings, device, self.history.add)
        self.stacks = array("i")
        self.times = array("q")
        self.emptied: list[int] = []
        """Numbers of the events before which the program emptied the cache."""
        self.waiting: dict[int, int] = {}
        """Allocations whose free is not complete, by address."""


class Ledger(CardRecord):
    """`stack_of_free` is called once for each free.

    What a `CardRecord` has is here that of the card that it has turned to; all else is of the whole process.
    """

    def __init__(
        self, settings: Settings, stack_of_free: Callable[[], int], devices: Sequence[DeviceMemory], interner: Interner
    ) -> None:
        self.cards = tuple(CardRecord(settings, device) for device in devices)
        self.turn_to(0)
        self.live: dict[int, LiveAllocation] = {}
        """Live allocations by the address of the storage's C++ object, which is unique while the storage lives."""
        self.count = 0
        self.rounded = array("q")
        """Bytes of the block that each allocation got, by its number; 0 where it failed."""
        self.now = 0
        """Counts events and marks: there is no other clock on a card that is not there."""
        self.freed: Callable[[LiveAllocation], None] = lambda allocation: None
        self.place: Callable[[], Place] = lambda: (_DEFAULT_STREAM, None)
        """Stream and memory pool of the next allocation."""
        self.first_used: Callable[[], None] | None = None
        """Called once, before the first allocation."""
        self.out_of_memory: Callable[[AllocationFailed], BaseException] = lambda failure: failure
        """Builds the error that the program receives."""
        self.goes_beyond_card: Callable[[AllocationFailed], bool] = lambda failure: False
        """Lift the limit of memory, and return whether it is lifted."""
        self.closed = False
        self.interner = interner
        """Its lock is that of the ledger too: with two, threads could wait for each other's."""
        self.stack_of_free = stack_of_free

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """Threads of the program take turns; a free may come in the middle of what its own thread does here."""
        return self.interner.lock

    def turn_to(self, card: int) -> None:
        """Let what follows concern this card."""
        self.card = card
        self.__dict__.update(vars(self.cards[card]))

    @contextmanager
    def on(self, card: int) -> Iterator[None]:
        with self.lock:
            before = self.card
            self.turn_to(card)
            try:
                yield
            finally:
                self.turn_to(before)

    def allocation_of(self, storage: torch.UntypedStorage) -> LiveAllocation | None:
        return self.live.get(storage._cdata)

    def take(self, storage: torch.UntypedStorage, stack: int) -> LiveAllocation | None:
        """Allocate memory for a storage; one of zero bytes has none."""
        requested = storage.nbytes()
        if requested == 0:
            return None
        allocation = self.malloc(requested, stack)
        self.own(storage, allocation)
        return allocation

    def own(self, storage: torch.UntypedStorage, allocation: LiveAllocation) -> None:
        """Let an allocation be freed with its storage."""
        key = storage._cdata
        watched = StorageRef(storage, self._gone)
        watched.key = key
        allocation.storage = watched
        self.live[key] = allocation

    def malloc(self, requested: int, stack: int, place: Place | None = None) -> LiveAllocation:
        if self.first_used is not None:
            first_used, self.first_used = self.first_used, None
            first_used()
        with self.lock:
            self.history.now = number = self.count
            self.count += 1
            failure = None
            try:
                block = self.allocator.malloc(requested, *(place or self.place()))
            except AllocationFailed as failed:
                failure = failed.with_traceback(None)
                if self.goes_beyond_card(failure):
                    block, failure = self.allocator.malloc(requested, *(place or self.place())), None
            if failure is None:
                block.cause = number
                self.rounded.append(block.size)
            else:
                self.rounded.append(0)
            self._note_time(stack)
        if failure is not None:
            raise self.out_of_memory(failure)
        return LiveAllocation(number, requested, block, None, self.card)

    def free(self, allocation: LiveAllocation, stack: int = NO_STACK) -> None:
        with self.lock:
            if allocation.card != self.card:
                with self.on(allocation.card):
                    self.free(allocation, stack)
                return
            self.history.now = allocation.number
            if allocation.block.streams_used:
                self.waiting[allocation.block.address] = allocation.number
                self.allocator.record = self._record_while_frees_wait
            self.allocator.free(allocation.block)
            self._note_time(stack)
        self.freed(allocation)

    def let_go(self, storage: torch.UntypedStorage, stack: int) -> None:
        """Free the allocation of a storage that lives on."""
        self.free(self.live.pop(storage._cdata), stack)

    def replace(self, storage: torch.UntypedStorage, stack: int) -> LiveAllocation | None:
        """Allocate new memory for a resized storage, then free the old, as torch copies between them."""
        old = self.live.get(storage._cdata)
        if old is not None and old.card != self.card:
            with self.on(old.card):
                return self.replace(storage, stack)
        new = self.take(storage, stack)
        if new is None:
            self.live.pop(storage._cdata, None)
        if old is not None:
            self.free(old, stack)
        return new

    def used_by(self, storage: torch.UntypedStorage, stream: int) -> None:
        """Let the free of a storage wait for another stream too."""
        allocation = self.allocation_of(storage)
        if allocation is not None:
            self.cards[allocation.card].allocator.record_stream(allocation.block, stream)

    def empty_cache(self) -> None:
        for card in range(len(self.cards)):
            with self.on(card):
                self.history.now = _USERS_CODE
                self.emptied.append(len(self.history))
                self.allocator.empty_cache()
                self._note_time(self.stack_of_free())

    def note(self, action: Action, size: int) -> None:
        """Record an event of card 0 that moves no memory."""
        with self.on(0):
            self.history.now = _USERS_CODE
            self.history.add(action, 0, size, _DEFAULT_STREAM, (0, 0))
            self._note_time(NO_STACK)

    def mark(self) -> int:
        """Return a time between two events."""
        self.now += 1
        return self.now

    def _record_while_frees_wait(self, action: Action, address: int, size: int, stream: int, pool: PoolId) -> None:
        history = self.history
        if action is Action.FREE_COMPLETED and address in self.waiting:
            # The event belongs to the freed allocation, not to the operator that runs when it completes.
            now, history.now = history.now, self.waiting.pop(address)
            history.add(action, address, size, stream, pool)
            history.now = now
            if not self.waiting:
                self.allocator.record = history.add
        else:
            history.add(action, address, size, stream, pool)

    def _gone(self, watched: weakref.ref[torch.UntypedStorage]) -> None:
        if self.closed:
            return
        allocation = self.live.get(watched.key)  # type: ignore[attr-defined]
        if allocation is not None and allocation.storage is watched:
            del self.live[watched.key]  # type: ignore[attr-defined]
            self.free(allocation, self.stack_of_free())

    def _note_time(self, stack: int) -> None:
        for _ in range(len(self.history.action) - len(self.times)):
            self.now += 1
            self.times.append(self.now)
            self.stacks.append(stack)


_UNKNOWN = int(Category.UNKNOWN)


class CategoryColumn:
    """Category of each allocation, by its number. Most categories are known only after the allocation.

    In the forward pass the free decides: an allocation freed within the module call that made it was temporary; one
    freed later is an activation. The same holds in backward for what a checkpoint recomputes.
    """

    def __init__(self) -> None:
        self.values = bytearray()
        self._undecided: dict[int, int] = {}
        """Allocations of the forward pass, with the module call that made each."""
        self._outside: set[int] = set()
        """Made outside of modules before a backward that may use them; what it does not free it did not keep."""

    def allocated(self, category: int, *, may_be_saved: bool, call: int) -> None:
        """Add the next allocation; `call` is that of the innermost module, 0 outside of all."""
        if may_be_saved:
            self._undecided[len(self.values)] = call
        self.values.append(category)

    def freed(self, number: int, open_calls: Sequence[int]) -> None:
        call = self._undecided.pop(number, 0)
        if number in self._outside and self.values[number] == _UNKNOWN:
            self.values[number] = Category.ACTIVATION
        self._outside.discard(number)
        if self.values[number] == _UNKNOWN:
            handed_on = call and call not in open_calls
            self.values[number] = Category.ACTIVATION if handed_on else Category.TEMPORARY

    def call_of(self, number: int) -> int:
        """Return the module call that made an allocation whose category is open, else 0."""
        return self._undecided.get(number, 0)

    def mark_saved(self) -> None:
        """Treat live allocations of the forward pass as saved for backward."""
        for number, call in self._undecided.items():
            if not call:
                self._outside.add(number)
            elif self.values[number] == _UNKNOWN:
                self.values[number] = Category.ACTIVATION
        self._undecided.clear()


@dataclass
class AllocationColumns:
    category: CategoryColumn = field(default_factory=CategoryColumn)
    module: array[int] = field(default_factory=lambda: array("i"))
    phase: bytearray = field(default_factory=bytearray)
    forward_stack: array[int] = field(default_factory=lambda: array("i"))
    rule: bytearray = field(default_factory=bytearray)
    """Rule of `evidence`, where more than a shape decides the size."""


PhaseMark = tuple[int, Stage, int]
"""Name of a phase, its beginning or end, and the time."""


@dataclass(frozen=True)
class HistoryPart:
    """Part of a run that one file shows: a history may start late, drop events and leave stacks out."""

    events: Ints8
    """Their places in the whole history."""
    stacks_of: frozenset[Action]
    """Kinds of events that have one."""
    recorded: Callable[[int], bool]
    """Return whether stacks were recorded at an allocation, by its number."""
    only_python: bool
    """Stacks without the frames of C++."""


def trace_of(
    ledger: Ledger,
    columns: AllocationColumns,
    marks: Sequence[PhaseMark],
    interner: Interner,
    *,
    settings: Any,
    about: About,
    parts: Sequence[HistoryPart] = (),
    holders: Callable[[int], Holders | None] = lambda card: None,
    host: Callable[[Ints8], HostBytes | None] = lambda times: None,
) -> Trace:
    """Return the trace of the whole run, or of the parts that a file of that moment shows, one for each card."""
    devices = []
    for card in range(len(ledger.cards)):
        with ledger.on(card):
            device = _device_trace(ledger, columns, marks, interner, parts[card] if parts else None)
        devices.append(replace(device, holders=holders(card), host=host(device.events.time_us)))
    return Trace(
        devices=tuple(devices),
        stacks=interner.frozen_stacks(),
        strings=tuple(interner.strings),
        streams=tuple(interner.streams),
        pools=tuple(interner.pools),
        other_actions=(),
        settings=settings,
        about=about,
    )


def _device_trace(
    ledger: Ledger, columns: AllocationColumns, marks: Sequence[PhaseMark], interner: Interner, part: HistoryPart | None
) -> DeviceTrace:
    """Return the trace of the card that the ledger has turned to."""
    with ledger.lock:
        cause = ledger.history.causes()
        history, count = ledger.history, len(ledger.history)
        action = np.array(history.action, dtype=np.uint8)
        forward = np.full(count, NO_STACK, dtype=np.int32)
        allocs = action == Action.ALLOC
        forward[allocs] = np.array(columns.forward_stack, dtype=np.int32)[cause[allocs]]
        events = Events(
            action=action,
            address=np.array(history.address, dtype=np.uint64).view(np.int64),
            size=np.array(history.size, dtype=np.int64),
            stream=_codes(history.stream, interner.stream),
            time_us=np.array(ledger.times, dtype=np.int64),
            stack=np.array(ledger.stacks, dtype=np.int32),
            forward_stack=forward,
            context=np.zeros(count, dtype=np.int32),
            metadata=np.zeros(count, dtype=np.int32),
            pool=_codes(history.pool, interner.pool),
        )
        segments, blocks, block_cause = _final_state(ledger, interner, part)
    if part is not None:
        cause = cause[part.events]
        chosen = Events(**{name: column[part.events] for name, column in events.columns()})
        has_stack = np.isin(chosen.action, [int(action) for action in part.stacks_of])
        stack = np.where(has_stack, chosen.stack, NO_STACK).astype(np.int32)
        if part.only_python:
            stack = _without_native(stack, interner)
        events = replace(chosen, stack=stack, forward_stack=np.where(has_stack, chosen.forward_stack, NO_STACK))
    return DeviceTrace(
        device=ledger.card,
        kind="gpu",
        events=events,
        segments=segments,
        blocks=blocks,
        annotations=_annotations(marks, part, events),
        event_labels=_labels(columns, cause),
        block_labels=_labels(columns, block_cause),
        is_timed=False,
    )


def live_changes(action: Any, size: Any) -> Ints8:
    """Return by how much each event changes the live bytes that tensors requested."""
    return np.select([action == Action.ALLOC, action == Action.FREE_COMPLETED], [size, -size], 0)


def trains(trace: Trace) -> bool:
    """Return whether any event is in backward or an optimizer step."""
    labels = [device.event_labels for device in trace.devices]
    return any(one is not None and np.isin(one.phase, (Phase.BACKWARD, Phase.STEP)).any() for one in labels)


def _annotations(marks: Sequence[PhaseMark], part: HistoryPart | None, events: Events) -> Annotations:
    first = 0
    if part is not None:
        first = int(events.time_us[0]) if len(events) else np.iinfo(np.int64).max
    visible = [mark for mark in marks if mark[2] >= first]
    columns = np.array(visible, dtype=np.int64).reshape(-1, 3).T
    return Annotations(columns[0].astype(np.int32), columns[1].astype(np.uint8), columns[2])


def _without_native(stacks: Ints4, interner: Interner) -> Ints4:
    table = interner.frozen_stacks()
    shorter = {NO_STACK: NO_STACK}
    for stack in np.unique(stacks).tolist():
        if stack != NO_STACK:
            python = [frame for frame in table.of(stack).tolist() if table.frames.line[frame]]
            shorter[stack] = interner.stack_of(python) if python else NO_STACK
    return np.array([shorter[stack] for stack in stacks.tolist()], dtype=np.int32)


def _codes(values: Any, number: Any) -> Ints4:
    return np.fromiter((number(value) for value in values), dtype=np.int32, count=len(values))


def _labels(columns: AllocationColumns, cause: Ints8) -> Labels:
    has_cause = cause >= 0

    def label(values: Any, dtype: Any) -> Any:
        column = np.zeros(len(cause), dtype=dtype)
        column[has_cause] = np.array(values, dtype=dtype)[cause[has_cause]]
        return column

    return Labels(
        category=label(columns.category.values, np.uint8),
        module=label(columns.module, np.int32),
        phase=label(columns.phase, np.uint8),
    )


def _final_state(ledger: Ledger, interner: Interner, part: HistoryPart | None) -> tuple[Segments, Blocks, Ints8]:
    """Return segments and blocks with their stacks, and the allocation in each block."""
    segments, blocks, cause = final_state(ledger.allocator, pool=interner.pool, stream=interner.stream)
    shows: Callable[[int], bool] = (lambda number: True) if part is None else part.recorded
    history = ledger.history
    stack_by_segment, stack_of = {}, {}
    rows = zip(history.action, history.address, history.cause, ledger.stacks, strict=True)
    for action, address, number, stack in rows:
        if action == Action.ALLOC:
            stack_of[number] = stack
        elif action in (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP) and shows(number):
            stack_by_segment[address] = stack
    of_segments = np.array(
        [stack_by_segment.get(address, NO_STACK) for address in segments.address.tolist()], dtype=np.int32
    )
    numbers = cause.tolist()
    of_blocks = np.array([stack_of.get(n, NO_STACK) if shows(n) else NO_STACK for n in numbers], dtype=np.int32)
    if part is not None and part.only_python:
        of_segments, of_blocks = _without_native(of_segments, interner), _without_native(of_blocks, interner)
    return replace(segments, stack=of_segments), replace(blocks, stack=of_blocks), cause
