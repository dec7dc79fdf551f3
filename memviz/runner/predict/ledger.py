"""Every storage that comes and goes, as malloc and free of the allocator, in the program's own order.

A storage is freed when its last owner lets go of it, be that a tensor, a view or the autograd graph. Its weak
reference tells the moment, exactly and at once, as a card's allocator would learn it.
"""

from __future__ import annotations

import weakref
from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING

from memviz.allocator.blocks import Block
from memviz.allocator.caching import CachingAllocator
from memviz.allocator.device import Device
from memviz.allocator.history import History
from memviz.allocator.settings import Settings
from memviz.trace.model import NO_STACK

if TYPE_CHECKING:
    import torch

_USERS_CODE = -1
"""The cause of what no allocation caused, such as emptying the cache."""


class Allocation:
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

    def __init__(self, settings: Settings, number_of_stack: Callable[[], int]) -> None:
        self.history = History()
        self.allocator = CachingAllocator(settings, Device(), self.history.add)
        self.live: dict[int, Allocation] = {}
        """By the address of the storage's C++ object, which is its own as long as it lives."""
        self.count = 0
        self.stacks = array("i")
        """Of each event of the history."""
        self.times = array("q")
        self.now = 0
        """Counts events and marks: there is no other clock on a card that is not there."""
        self.freed: Callable[[Allocation], None] = lambda allocation: None
        self.closed = False
        self._stack = number_of_stack

    def knows(self, storage: torch.UntypedStorage) -> Allocation | None:
        return self.live.get(storage._cdata)

    def take(self, storage: torch.UntypedStorage, stack: int) -> Allocation | None:
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

    def malloc(self, requested: int, stack: int) -> Allocation:
        self.history.now = number = self.count
        self.count += 1
        block = self.allocator.malloc(requested)
        block.cause = number
        self._date(stack)
        return Allocation(number, requested, block)

    def free(self, allocation: Allocation, stack: int = NO_STACK) -> None:
        self.history.now = allocation.number
        self.allocator.free(allocation.block)
        self._date(stack)
        self.freed(allocation)

    def replace(self, storage: torch.UntypedStorage, stack: int) -> Allocation | None:
        """A storage that was resized: new memory first, then the old is let go, as it is copied between them."""
        old = self.live.pop(storage._cdata, None)
        new = self.take(storage, stack)
        if old is not None:
            self.free(old, stack)
        return new

    def empty_cache(self) -> None:
        self.history.now = _USERS_CODE
        self.allocator.empty_cache()
        self._date(self._stack())

    def mark(self) -> int:
        """A moment between two events."""
        self.now += 1
        return self.now

    def _gone(self, watched: weakref.ref[torch.UntypedStorage]) -> None:
        if self.closed:
            return
        allocation = self.live.pop(watched.key, None)  # type: ignore[attr-defined]
        if allocation is not None:
            self.free(allocation, self._stack())

    def _date(self, stack: int) -> None:
        for _ in range(len(self.history) - len(self.times)):
            self.now += 1
            self.times.append(self.now)
            self.stacks.append(stack)
