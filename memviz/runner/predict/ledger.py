"""Every storage that comes and goes, as malloc and free of the allocator, in the program's own order.

A storage is freed when its last owner lets go of it, be that a tensor, a view or the autograd graph. Its weak
reference tells the moment, exactly and at once, as a card's allocator would learn it.
"""

from __future__ import annotations

import weakref
from array import array
from collections.abc import Callable
from threading import RLock
from typing import TYPE_CHECKING

from memviz.allocator.blocks import AllocationFailed, Block, DeviceMemory, PoolId
from memviz.allocator.caching import CachingAllocator
from memviz.allocator.history import ModelHistory
from memviz.allocator.settings import Settings
from memviz.trace.model import NO_STACK, Action

if TYPE_CHECKING:
    import torch

_USERS_CODE = -1
"""The cause of what no allocation caused, such as emptying the cache."""
_DEFAULT_STREAM = 0
Place = tuple[int, PoolId | None]
"""A stream's handle, and the pool that memory comes from; None is the default one."""


class LiveAllocation:
    __slots__ = ("block", "number", "requested", "storage")

    def __init__(self, number: int, requested: int, block: Block) -> None:
        self.number = number
        """Counts all allocations of the run."""
        self.requested = requested
        self.block = block
        self.storage: weakref.ref[torch.UntypedStorage] | None = None


class _Watched(weakref.ref["torch.UntypedStorage"]):
    __slots__ = ("key",)
    key: int


class Ledger:
    """`number_of_stack` is asked once for each allocation and each free."""

    def __init__(
        self, settings: Settings, number_of_stack: Callable[[], int], device: DeviceMemory | None = None
    ) -> None:
        self.history = ModelHistory()
        self.allocator = CachingAllocator(settings, DeviceMemory() if device is None else device, self.history.add)
        self.live: dict[int, LiveAllocation] = {}
        """Live allocations by the address of the storage's C++ object, which is unique while the storage lives."""
        self.count = 0
        self.rounded = array("q")
        """Bytes of the block that each allocation got, by its number; 0 where it failed."""
        self.stacks = array("i")
        """Stack of each event of the history."""
        self.times = array("q")
        self.emptied: list[int] = []
        """Numbers of the events before which the program emptied the cache."""
        self.now = 0
        """Counts events and marks: there is no other clock on a card that is not there."""
        self.freed: Callable[[LiveAllocation], None] = lambda allocation: None
        self.place: Callable[[], Place] = lambda: (_DEFAULT_STREAM, None)
        """Stream and memory pool of the next allocation."""
        self.first_used: Callable[[], None] | None = None
        """Called once, before the first allocation."""
        self.out_of_memory: Callable[[AllocationFailed], BaseException] = lambda failure: failure
        """Builds the error that the program receives."""
        self.closed = False
        self.lock = RLock()
        """Threads of the program take turns; a free may come in the middle of what its own thread does here."""
        self._stack = number_of_stack
        self._waiting: dict[int, int] = {}
        """Allocations whose free is not complete, by address."""

    def knows(self, storage: torch.UntypedStorage) -> LiveAllocation | None:
        return self.live.get(storage._cdata)

    def take(self, storage: torch.UntypedStorage, stack: int) -> LiveAllocation | None:
        """Memory for a storage; for zero bytes PyTorch asks nobody."""
        requested = storage.nbytes()
        if requested == 0:
            return None
        allocation = self.malloc(requested, stack)
        key = storage._cdata
        watched = _Watched(storage, self._gone)
        watched.key = key
        allocation.storage = watched
        self.live[key] = allocation
        return allocation

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
            if failure is None:
                block.cause = number
                self.rounded.append(block.size)
            else:
                self.rounded.append(0)
            self._date(stack)
        if failure is not None:
            raise self.out_of_memory(failure)
        return LiveAllocation(number, requested, block)

    def free(self, allocation: LiveAllocation, stack: int = NO_STACK) -> None:
        with self.lock:
            self.history.now = allocation.number
            if allocation.block.streams_used:
                self._waiting[allocation.block.address] = allocation.number
                self.allocator.record = self._record_while_frees_wait
            self.allocator.free(allocation.block)
            self._date(stack)
        self.freed(allocation)

    def replace(self, storage: torch.UntypedStorage, stack: int) -> LiveAllocation | None:
        """A storage that was resized: new memory first, then the old is let go, as it is copied between them."""
        old = self.live.get(storage._cdata)
        new = self.take(storage, stack)
        if new is None:
            self.live.pop(storage._cdata, None)
        if old is not None:
            self.free(old, stack)
        return new

    def used_by(self, storage: torch.UntypedStorage, stream: int) -> None:
        """Its free has to wait for this stream too."""
        allocation = self.knows(storage)
        if allocation is not None:
            self.allocator.record_stream(allocation.block, stream)

    def empty_cache(self) -> None:
        with self.lock:
            self.history.now = _USERS_CODE
            self.emptied.append(len(self.history))
            self.allocator.empty_cache()
            self._date(self._stack())

    def note(self, action: Action, size: int) -> None:
        """An event that moves no memory."""
        with self.lock:
            self.history.now = _USERS_CODE
            self.history.add(action, 0, size, _DEFAULT_STREAM, (0, 0))
            self._date(NO_STACK)

    def mark(self) -> int:
        """A moment between two events."""
        self.now += 1
        return self.now

    def _record_while_frees_wait(self, action: Action, address: int, size: int, stream: int, pool: PoolId) -> None:
        history = self.history
        if action is Action.FREE_COMPLETED and address in self._waiting:
            # It belongs to the allocation that was freed, whatever goes on when it completes.
            now, history.now = history.now, self._waiting.pop(address)
            history.add(action, address, size, stream, pool)
            history.now = now
            if not self._waiting:
                self.allocator.record = history.add
        else:
            history.add(action, address, size, stream, pool)

    def _gone(self, watched: weakref.ref[torch.UntypedStorage]) -> None:
        if self.closed:
            return
        allocation = self.live.get(watched.key)  # type: ignore[attr-defined]
        if allocation is not None and allocation.storage is watched:
            del self.live[watched.key]  # type: ignore[attr-defined]
            self.free(allocation, self._stack())

    def _date(self, stack: int) -> None:
        for _ in range(len(self.history) - len(self.times)):
            self.now += 1
            self.times.append(self.now)
            self.stacks.append(stack)
