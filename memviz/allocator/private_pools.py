"""Pools of their own for CUDA graphs and MemPools: directing allocations there, and letting go of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from memviz.allocator.blocks import DEFAULT_POOL, Block, PoolId, PoolPair
from memviz.allocator.caching import CachingAllocator
from memviz.errors import UsageError

Matches = Callable[[int], bool]


def create_pool(allocator: CachingAllocator, pool_id: PoolId, *, has_own_allocator: bool = False) -> PoolPair:
    """Or one user more of a pool that is there."""
    pair = allocator.private_pools.get(pool_id)
    if pair is None:
        pair = allocator.private_pools[pool_id] = PoolPair(pool_id, has_own_allocator=has_own_allocator)
    else:
        pair.use_count += 1
    return pair


def begin_allocate_to_pool(allocator: CachingAllocator, pool_id: PoolId, matches: Matches | None = None) -> None:
    """From now on requests of the matching streams go to this pool: a capture, or `use_mem_pool`."""
    if pool_id == DEFAULT_POOL or any(each == pool_id for each, _ in allocator.captures):
        raise UsageError("beginAllocateToPool: already recording to mempool_id")
    create_pool(allocator, pool_id)
    allocator.captures.append((pool_id, matches or _every_stream))


def end_allocate_to_pool(allocator: CachingAllocator, pool_id: PoolId) -> None:
    kept = [each for each in allocator.captures if each[0] != pool_id]
    if len(kept) == len(allocator.captures):
        raise UsageError("endAllocatePool: not currently recording to mempool_id")
    allocator.captures[:] = kept


def release_pool(allocator: CachingAllocator, pool_id: PoolId) -> None:
    """One user less. Without any, the pool's cached segments go back at the next release."""
    allocator.private_pools[pool_id].use_count -= 1


@dataclass(frozen=True)
class BlockState:
    address: int
    size: int
    requested: int
    allocated: bool


@dataclass(frozen=True)
class Checkpoint:
    """How a pool was laid out: per segment, its blocks in order."""

    pool: PoolId
    segments: tuple[tuple[BlockState, ...], ...]


def checkpoint(allocator: CachingAllocator, pool_id: PoolId) -> Checkpoint:
    heads = _heads(allocator, pool_id)
    return Checkpoint(pool_id, tuple(tuple(_state(block) for block in _mapped(head)) for head in heads))


def restore(allocator: CachingAllocator, state: Checkpoint) -> dict[int, Block]:
    """Frees what the pool holds and lays it out as it was; the live blocks, by address."""
    for head in _heads(allocator, state.pool):
        for block in [each for each in _mapped(head) if each.allocated]:
            allocator.free(block)
    live: dict[int, Block] = {}
    for segment in state.segments:
        live.update(_lay_out(allocator, allocator.segments[segment[0].address], segment))
    return live


def _lay_out(allocator: CachingAllocator, head: Block, segment: tuple[BlockState, ...]) -> dict[int, Block]:
    """Hands out every block of the segment, then frees those that were free: as PyTorch does it."""
    made, block = [], head
    for state in segment:
        block.pool.remove(block)
        made.append(allocator.hand_out_exactly(block, state.size, state.requested or state.size))
        if block.next is not None:
            block = block.next
    for block, state in zip(made, segment, strict=True):
        if not state.allocated:
            allocator.free(block)
    return {block.address: block for block in made if block.allocated}


def _heads(allocator: CachingAllocator, pool_id: PoolId) -> list[Block]:
    return [head for head in allocator.segments.values() if head.pool.owner.id == pool_id]


def _mapped(head: Block) -> list[Block]:
    blocks, block = [], head
    while True:
        if block.mapped:
            blocks.append(block)
        if block.next is None:
            return blocks
        block = block.next


def _state(block: Block) -> BlockState:
    return BlockState(block.address, block.size, block.requested if block.in_use else 0, block.allocated)


def _every_stream(stream: int) -> bool:
    return True
