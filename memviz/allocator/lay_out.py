"""Puts a start layout into an allocator: as it was recorded, or as other settings would have placed it."""

from __future__ import annotations

from collections.abc import Iterable

from memviz.allocator.address_spaces import AddressSpaces, Group, ranges_by_group
from memviz.allocator.blocks import Block, BlockPool, ExpandableSegment
from memviz.allocator.caching import CachingAllocator
from memviz.allocator.expandable import add_expandable
from memviz.allocator.start_layout import StartBlock, StartLayout, StartSegment
from memviz.trace.rounding import SMALL_SEGMENT

FIRST_START_CAUSE = -2
"""`Block.cause` of the layout's blocks: this, and downward by one each."""


def lay_out_as_recorded(allocator: CachingAllocator, layout: StartLayout, spaces: AddressSpaces) -> dict[int, Block]:
    """The live blocks, by address. `spaces` is how far the segments that expand can grow."""
    live: dict[int, Block] = {}
    for segment in layout.segments:
        if not segment.is_expandable:
            pool = _pool(allocator, segment)
            head = allocator.add_segment(segment.address, segment.size, segment.stream, pool)
            allocator.device.map(segment.size)
            pool.add(head)
            _fill(head, segment.blocks, live)
    for group, ranges in ranges_by_group(layout).items():
        _lay_out_expandable(allocator, ranges, _space(allocator, spaces, group, ranges), live)
    return _counted(allocator, layout, live)


def _space(
    allocator: CachingAllocator, spaces: AddressSpaces, group: Group, ranges: list[StartSegment]
) -> ExpandableSegment:
    begin = spaces.at_start[group]
    if begin in allocator.segments:
        # Only in a damaged file can another segment be there.
        begin = ranges[0].address
    page = SMALL_SEGMENT if group[2] else allocator.settings.large_segment_size
    reserve = allocator.settings.reserve_bytes(allocator.device.card_bytes)
    used = ranges[-1].end - begin
    return ExpandableSegment(begin, max(spaces.size(begin, reserve) // page, -(-used // page)) * page, page)


def _lay_out_expandable(
    allocator: CachingAllocator, ranges: list[StartSegment], space: ExpandableSegment, live: dict[int, Block]
) -> None:
    pool = _pool(allocator, ranges[0])
    block = add_expandable(allocator, space, ranges[0].stream, pool)
    for segment in ranges:
        pool.remove_unmapped(block)
        if block.address < segment.address:
            before, block = block, block.cut(segment.address - block.address)
            pool.add_unmapped(before)
        rest = block.cut(segment.size) if segment.size < block.size else None
        block.mapped = True
        allocator.device.map(segment.size)
        allocator.statistics.reserved_bytes.increase(pool.kind, segment.size)
        pool.add(block)
        _fill(block, segment.blocks, live)
        if rest is not None:
            pool.add_unmapped(rest)
            block = rest


def _fill(free: Block, blocks: Iterable[StartBlock], live: dict[int, Block]) -> None:
    """Cuts live blocks out of a free one; what is left between them stays free."""
    pool = free.pool
    pool.remove(free)
    rest: Block | None = free
    for wanted in blocks:
        assert rest is not None
        if rest.address < wanted.address:
            before, rest = rest, rest.cut(wanted.address - rest.address)
            pool.add(before)
        behind = rest.cut(wanted.size) if wanted.size < rest.size else None
        live[wanted.address] = rest
        rest.in_use = True
        rest = behind
    if rest is not None:
        pool.add(rest)


def _counted(allocator: CachingAllocator, layout: StartLayout, live: dict[int, Block]) -> dict[int, Block]:
    statistics = allocator.statistics
    for number, wanted in enumerate(layout.blocks):
        block = live[wanted.address]
        block.allocated = True
        block.requested = wanted.requested
        block.cause = FIRST_START_CAUSE - number
        statistics.handed_out(block.pool.kind, block.size, block.requested)
        _wait_if_asked(allocator, block, wanted)
    for head in allocator.segments.values():
        _count_split(allocator, head)
    return live


def _count_split(allocator: CachingAllocator, head: Block) -> None:
    block: Block | None = head if head.expandable is None else None
    while block is not None:
        if not block.in_use and block.is_split:
            allocator.statistics.split_cached(block.pool, 1, block.size)
        block = block.next


def lay_out_afresh(allocator: CachingAllocator, layout: StartLayout) -> dict[int, Block]:
    """As if what was live had just been allocated in order of address, under the allocator's own settings."""
    live: dict[int, Block] = {}
    number = 0
    for segment in layout.segments:
        for wanted in segment.blocks:
            block = allocator.malloc(wanted.requested or 1, segment.stream, segment.pool)
            block.cause = FIRST_START_CAUSE - number
            live[wanted.address] = block
            number += 1
            _wait_if_asked(allocator, block, wanted)
    return live


def _wait_if_asked(allocator: CachingAllocator, block: Block, wanted: StartBlock) -> None:
    if wanted.is_waiting:
        allocator.request_free(block)
        allocator.pending.hold(block)


def _pool(allocator: CachingAllocator, segment: StartSegment) -> BlockPool:
    pair = allocator.pool(segment.pool)
    return pair.small if segment.is_small else pair.large
