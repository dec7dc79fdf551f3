"""Giving cached memory back to the device: on request, by age, or because there is none left."""

from __future__ import annotations

from memviz.allocator.blocks import Block, BlockPool
from memviz.allocator.expandable import unmap_block
from memviz.allocator.state import AllocatorState, SegmentRequest
from memviz.trace.model import Action


def release_segment(allocator: AllocatorState, block: Block) -> None:
    """A cached block that is a whole segment goes back."""
    pool, statistics, most = block.pool, allocator.statistics, allocator.settings.max_split_size
    statistics.num_device_free += 1
    allocator.record(Action.SEGMENT_FREE, block.address, block.size, block.stream, pool.owner.id)
    allocator.device.free(block.size)
    pool.owner.segments -= 1
    statistics.segment.decrease(pool.kind, 1)
    statistics.reserved_bytes.decrease(pool.kind, block.size)
    if most is not None and block.size >= most:
        statistics.oversize_segments.decrease(pool.kind, 1)
    pool.remove(block)
    del allocator.segments[block.address]


def collect_garbage(allocator: AllocatorState) -> None:
    """Frees what has lain unused longest until reserved memory is below its threshold."""
    assert allocator.limit is not None
    threshold = int(allocator.settings.garbage_collection_threshold * allocator.limit)
    target = allocator.statistics.reserved - threshold
    pool = allocator.default_pool.large
    ages = {block: pool.age - block.age_at_insertion for block in pool.free_blocks() if not block.is_split}
    reclaimed, freed_any = 0, True
    while reclaimed < target and freed_any and ages:
        average = sum(ages.values()) / len(ages)
        old = [block for block, age in ages.items() if age >= average and block.expandable is None]
        # A pass is finished even beyond the target, so that the next one is not due at once.
        for block in old:
            del ages[block]
            reclaimed += block.size
            release_segment(allocator, block)
        freed_any = bool(old)


def release_enough(allocator: AllocatorState, request: SegmentRequest) -> bool:
    """With `max_split_size` set: frees oversize blocks of the stream, only as many as the request needs."""
    least = allocator.settings.max_split_size
    free = request.pool.free.get(request.stream)
    if least is None or free is None:
        return False
    wanted = max(request.size, least)
    place = free.first_of_at_least(wanted)
    if place < len(free.blocks) and free.blocks[place].expandable is None:
        release_segment(allocator, free.blocks[place])
        return True
    released = 0
    for block in reversed(free.blocks[:place]):
        if released >= wanted or block.size < least:
            break
        if block.expandable is None:
            released += block.size
            release_segment(allocator, block)
    return released >= wanted


def release_cached(allocator: AllocatorState) -> None:
    """`empty_cache`: waits for the other streams, then frees every whole segment and every whole page."""
    allocator.statistics.num_sync_all_streams += 1
    allocator.pending.synchronize()
    _release_blocks(allocator, allocator.default_pool.large)
    _release_blocks(allocator, allocator.default_pool.small)
    for pair in list(allocator.private_pools.values()):
        if pair.use_count:
            continue
        _release_blocks(allocator, pair.small)
        _release_blocks(allocator, pair.large)
        if not pair.segments:
            del allocator.private_pools[pair.id]


def _release_blocks(allocator: AllocatorState, pool: BlockPool) -> None:
    blocks = pool.free_blocks()
    for block in blocks:
        if block.expandable is None and not block.is_split:
            release_segment(allocator, block)
    # Unmapping changes the lists, so it comes after them.
    for block in blocks:
        # Most free blocks are smaller than a page, and a recording may empty the cache at every other event.
        if block.expandable is not None and block.size >= block.expandable.page:
            unmap_block(allocator, block)
