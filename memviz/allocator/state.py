"""What all parts of the allocator share, and the one step that all of them end in: a block becomes free."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from memviz.allocator.blocks import DEFAULT_POOL, Block, BlockPool, ExpandableSegment, PoolId, PoolPair, merge
from memviz.allocator.device import Device
from memviz.allocator.pending import PendingFrees
from memviz.allocator.settings import Settings
from memviz.allocator.statistics import Statistics
from memviz.trace.model import Action

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
    expands: bool


class AllocatorState:
    """Of one device. Sizes and addresses are bytes, streams are handles."""

    limit: int | None = None
    """Of reserved bytes, where the settings allow only a fraction of the card."""

    def __init__(self, settings: Settings, device: Device, record: Record, statistics: Statistics) -> None:
        self.settings = settings
        self.device = device
        self.record = record
        self.statistics = statistics
        self.default_pool = PoolPair(DEFAULT_POOL)
        self.private_pools: dict[PoolId, PoolPair] = {}
        self.captures: list[tuple[PoolId, Callable[[int], bool]]] = []
        """Pools that allocations are directed to now, and for which streams; the newest is asked first."""
        self.pending = PendingFrees(self.captures, self.complete_free)
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
