"""Segments that grow: address space is reserved once, memory is put behind it page by page."""

from __future__ import annotations

from bisect import insort

from memviz.allocator.blocks import Block, BlockPool, ExpandableSegment, merge
from memviz.allocator.state import AllocatorState, SegmentRequest
from memviz.trace.model import Action
from memviz.trace.rounding import SMALL_SEGMENT


def allocate_expandable(allocator: AllocatorState, request: SegmentRequest) -> Block | None:
    """None is out of memory; pieces that were mapped on the way stay mapped, as cached memory."""
    block = _find(allocator, request)
    if block is None:
        return None
    if not block.mapped:
        block = map_block(allocator, block, min(block.size, request.size))
    while block is not None and block.size < request.size:
        unmapped = block.next
        assert unmapped is not None
        block = map_block(allocator, unmapped, min(request.size - block.size, unmapped.size))
    if block is not None:
        block.pool.remove(block)
    return block


def _find(allocator: AllocatorState, request: SegmentRequest) -> Block | None:
    """The lowest run of free and unmapped blocks that is long enough, else a new segment."""
    for unmapped in request.pool.unmapped.get(request.stream, []):
        before = unmapped.prev
        start = before if before is not None and not before.in_use else unmapped
        if _run_is_long_enough(start, request.size):
            return start
    page = SMALL_SEGMENT if request.pool.is_small else allocator.settings.large_segment_size
    reserve = allocator.settings.reserve_bytes(allocator.device.card_bytes)
    size = (reserve + page - 1) // page * page
    if size < request.size:
        return None
    address, size = allocator.device.reserve(size)
    segment = ExpandableSegment(address, size // page * page, page)
    if segment.size < request.size:
        return None
    return add_expandable(allocator, segment, request.stream, request.pool)


def add_expandable(allocator: AllocatorState, segment: ExpandableSegment, stream: int, pool: BlockPool) -> Block:
    allocator.expandable_segments.append(segment)
    insort(allocator.expandable_begins, segment.address)
    block = allocator.segments[segment.address] = Block(segment.address, segment.size, stream, pool)
    block.mapped = False
    block.expandable = segment
    pool.owner.segments += 1
    pool.add_unmapped(block)
    return block


def _run_is_long_enough(start: Block, size: int) -> bool:
    run_bytes, block = 0, start
    while run_bytes < size:
        run_bytes += block.size
        if run_bytes >= size:
            break
        if block.next is None or block.next.in_use:
            return False
        block = block.next
    return True


def map_block(allocator: AllocatorState, block: Block, size: int) -> Block | None:
    """Puts whole pages behind the start of an unmapped block; the free block that comes of it."""
    segment, pool, address = block.expandable, block.pool, block.address
    assert segment is not None
    size = segment.pages_around(size)
    if not allocator.device.map(size):
        return None
    pool.remove_unmapped(block)
    if size < block.size:
        rest = block.cut(size)
        pool.add_unmapped(rest)
    block.mapped = True
    merged, _ = merge(block)
    pool.add(merged)
    allocator.statistics.reserved_bytes.increase(pool.kind, size)
    allocator.statistics.num_device_alloc += 1
    allocator.record(Action.SEGMENT_MAP, address, size, block.stream, pool.owner.id)
    return merged


def unmap_block(allocator: AllocatorState, block: Block) -> None:
    """Gives back the whole pages inside a free block; what is left at either side stays cached."""
    segment = block.expandable
    assert segment is not None
    first, last = segment.whole_pages(block.address, block.end)
    if first < last:
        unmap_range(allocator, block, first, last)


def unmap_range(allocator: AllocatorState, block: Block, first: int, last: int) -> None:
    pool = block.pool
    pool.remove(block)
    if block.address < first:
        before, block = block, block.cut(first - block.address)
        pool.add(before)
    if block.end > last:
        pool.add(block.cut(last - block.address))
    block.mapped = False
    merged, _ = merge(block)
    pool.add_unmapped(merged)
    allocator.device.free(last - first)
    allocator.statistics.reserved_bytes.decrease(pool.kind, last - first)
    allocator.statistics.num_device_free += 1
    allocator.record(Action.SEGMENT_UNMAP, first, last - first, block.stream, pool.owner.id)
    if not merged.is_split:
        _drop(allocator, merged)


def _drop(allocator: AllocatorState, block: Block) -> None:
    """Nothing is mapped any more, so the address space goes back too."""
    assert block.expandable is not None
    block.pool.remove_unmapped(block)
    block.pool.owner.segments -= 1
    allocator.expandable_segments.remove(block.expandable)
    del allocator.segments[block.address]
