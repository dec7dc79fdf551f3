"""What an allocator holds at the end, as a Trace has it: segments, and the blocks that tile them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from memviz.allocator.blocks import Block, PoolId
from memviz.allocator.caching import CachingAllocator
from memviz.trace.model import NO_STACK, Blocks, Ints8, Segments, State

NOTHING = -1
"""In place of what a block was handed out for, where it is free."""


def final_state(
    allocator: CachingAllocator, *, pool: Callable[[PoolId], int], stream: Callable[[int], int]
) -> tuple[Segments, Blocks, Ints8]:
    """Without stacks, and with what each block was handed out for. `pool` and `stream` give the Trace's numbers."""
    segments: list[tuple[int, ...]] = []
    blocks: list[tuple[int, ...]] = []
    for _, head in sorted(allocator.segments.items()):
        for run in _mapped_runs(head):
            first, size = run[0], sum(block.size for block in run)
            kind = (not first.pool.is_small, first.expandable is not None)
            segments.append((first.address, size, stream(first.stream), pool(first.pool.owner.id), *kind))
            blocks.extend((len(segments) - 1, *_block_row(block)) for block in run)
    return _segments(segments), *_blocks(blocks)


def _mapped_runs(head: Block) -> Iterator[list[Block]]:
    """One for a plain segment; of a segment that expands, one for each contiguous mapped range."""
    run: list[Block] = []
    block: Block | None = head
    while block is not None:
        if block.mapped:
            run.append(block)
        elif run:
            yield run
            run = []
        block = block.next
    if run:
        yield run


def _block_row(block: Block) -> tuple[int, int, int, int, int]:
    if not block.in_use:
        return block.address, block.size, 0, State.INACTIVE, NOTHING
    state = State.ACTIVE_ALLOCATED if block.allocated else State.ACTIVE_PENDING_FREE
    return block.address, block.size, block.requested, state, block.cause


def _segments(rows: list[tuple[int, ...]]) -> Segments:
    address, size, stream, pool, large, expands = _columns(rows, 6)
    return Segments(
        address=address,
        size=size,
        stream=stream.astype(np.int32),
        pool=pool.astype(np.int32),
        is_large=large.astype(np.bool_),
        is_expandable=expands.astype(np.bool_),
        stack=np.full(len(address), NO_STACK, dtype=np.int32),
    )


def _blocks(rows: list[tuple[int, ...]]) -> tuple[Blocks, Ints8]:
    segment, address, size, requested, state, cause = _columns(rows, 6)
    blocks = Blocks(
        segment=segment.astype(np.int32),
        address=address,
        size=size,
        requested=requested,
        state=state.astype(np.uint8),
        stack=np.full(len(address), NO_STACK, dtype=np.int32),
    )
    return blocks, cause


def _columns(rows: list[tuple[int, ...]], count: int) -> list[Ints8]:
    """Addresses of 2**63 and above come out as the Trace keeps them; numbers below zero stay themselves."""
    return [np.array([row[i] & 0xFFFFFFFFFFFFFFFF for row in rows], np.uint64).view(np.int64) for i in range(count)]
