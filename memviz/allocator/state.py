"""State that all parts of the allocator share: device memory, pools, and the step by which a block becomes free.

The driver chooses real addresses. Here they grow from a fixed start, so that the same requests land in the same places;
a replay supplies the recorded ones (`RecordedDevice`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from memviz.allocator.blocks import (
    DEFAULT_POOL,
    Block,
    BlockPool,
    ExpandableSegment,
    PendingFrees,
    PoolId,
    PoolPair,
    merge,
)
from memviz.allocator.settings import Settings
from memviz.allocator.statistics import Statistics
from memviz.trace.model import Action
from memviz.trace.rounding import MiB

_FIRST_ADDRESS = 0x7F0000000000
_GRANULE = 2 * MiB
_UPPER_HALF = 1 << 62
"""Some devices hand out addresses up there, far from where ours begin."""
_UNKNOWN_CARD = 1 << 40
"""Address space for an expandable segment is reserved by the card's size; without one, more than any has."""


class AllocationFailed(Exception):
    """PyTorch would raise OutOfMemoryError here. The figures are those after everything was tried."""

    def __init__(self, *, requested: int, asked_of_device: int, allocated: int, reserved: int) -> None:
        self.requested = requested
        self.asked_of_device = asked_of_device
        """The figure of PyTorch's message after "Tried to allocate"."""
        self.allocated = allocated
        self.reserved = reserved
        super().__init__(
            f"Tried to allocate {asked_of_device} bytes for a request of {requested}, "
            f"with {allocated} allocated and {reserved} reserved."
        )


class DeviceMemory:
    """`memory` is what this process can have of it, in bytes; None is without limit."""

    def __init__(self, memory: int | None = None, *, total: int | None = None) -> None:
        self.memory = memory
        self.total = memory if total is None else total
        """The card's whole size, of which memory fractions and address space are counted."""
        self.in_use = 0
        self._next_address = _FIRST_ADDRESS

    @property
    def free_bytes(self) -> int:
        return max(0, self.memory - self.in_use) if self.memory is not None else 0

    @property
    def card_bytes(self) -> int:
        return _UNKNOWN_CARD if self.total is None else self.total

    def malloc(self, size: int) -> int | None:
        """cudaMalloc: an address, or None where there is not enough left."""
        if not self.map(size):
            return None
        return self._new_range(size)

    def free(self, size: int) -> None:
        self.in_use -= size

    def reserve(self, size: int) -> tuple[int, int]:
        """Address space alone costs nothing: where it begins, and how much it is."""
        return self._new_range(size), size

    def map(self, size: int) -> bool:
        """Puts memory behind reserved addresses: all of it or nothing."""
        if self.memory is not None and self.in_use + size > self.memory:
            return False
        self.in_use += size
        return True

    def begin_after(self, addresses: Iterable[int]) -> None:
        """Give out addresses above these from now on, with room for what expands below."""
        highest = max((address for address in addresses if address < _UPPER_HALF), default=0)
        self._next_address = max(self._next_address, (highest + 2 * self.card_bytes) & -_GRANULE)

    def _new_range(self, size: int) -> int:
        address = self._next_address
        self._next_address += (size + _GRANULE - 1) & -_GRANULE
        return address


Record = Callable[[Action, int, int, int, PoolId], None]
"""Called for everything that PyTorch would write into the history: action, address, size, stream, pool."""


def unrecorded(action: Action, address: int, size: int, stream: int, pool: PoolId) -> None:
    pass


@dataclass
class SegmentRequest:
    """A malloc that no cached block could serve."""

    pool: BlockPool
    stream: int
    requested: int
    size: int
    asked_of_device: int


class AllocatorState:
    """State of one device's allocator. Sizes and addresses are bytes, streams are handles."""

    limit: int | None = None
    """Limit of reserved bytes, where the settings allow only a fraction of the card."""

    def __init__(self, settings: Settings, device: DeviceMemory, record: Record, statistics: Statistics) -> None:
        self.settings = settings
        self.device = device
        self.record = record
        self.statistics = statistics
        self.default_pool = PoolPair(DEFAULT_POOL)
        self.private_pools: dict[PoolId, PoolPair] = {}
        self.pending = PendingFrees(self.complete_free)
        self.segments: dict[int, Block] = {}
        """First block of each segment, by the segment's address."""
        self.expandable_segments: list[ExpandableSegment] = []
        self.expandable_begins: list[int] = []
        """Their addresses in order, and those of some that are gone."""

    def complete_free(self, block: Block) -> None:
        """Merges the block with its free neighbours and caches what comes of it."""
        pool = block.pool
        self.record(Action.FREE_COMPLETED, block.address, block.requested, block.stream, pool.owner.id)
        self.statistics.free_completed(pool.kind, block.size, block.requested)
        block.in_use = False
        freed = block.size
        merged, merges = merge(block)
        if merged.expandable is None:
            if merged.prev is not None or merged.next is not None:
                self.statistics.split_cached(pool, 1 - merges, freed)
            elif merges:
                self.statistics.split_cached(pool, -merges, freed - merged.size)
        pool.add(merged)
