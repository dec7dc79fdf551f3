"""Pools of their own: CUDA graphs, MemPools, checkpoints."""

from __future__ import annotations

import pytest

from memviz.allocator.private_pools import (
    begin_allocate_to_pool,
    checkpoint,
    create_pool,
    end_allocate_to_pool,
    release_pool,
    restore,
)
from memviz.errors import UsageError
from tests.allocator.driver import Driver, MiB, blocks_of

GRAPH = (1, 0)
MEMPOOL = (0, 1)


def in_pool(run: Driver, pool: tuple[int, int]) -> list[int]:
    heads = [head for head in run.allocator.segments.values() if head.pool.owner.id == pool]
    return [sum(block.size for block in blocks_of(head) if block.mapped) for head in heads]


def test_fact_27_a_pool_with_its_own_allocator_does_not_expand():
    run = Driver("expandable_segments:True")
    create_pool(run.allocator, MEMPOOL, has_own_allocator=True)
    inside, outside = run.malloc(MiB, pool=MEMPOOL), run.malloc(MiB)
    assert (inside.expandable, outside.expandable is not None) == (None, True)
    assert len(run.allocator.segments) == 2


@pytest.mark.parametrize(("settings", "segments"), [("", 4), ("expandable_segments:True", 2)])
def test_fact_28_a_pool_keeps_its_segments_until_its_graph_is_gone(settings, segments):
    run = Driver(settings)
    begin_allocate_to_pool(run.allocator, GRAPH)
    live = [run.malloc(512)]
    for _ in range(10):
        run.free(*live[1:])
        live[1:] = [run.malloc(20 * MiB) for _ in range(3)]
    end_allocate_to_pool(run.allocator, GRAPH)
    assert len(in_pool(run, GRAPH)) == segments
    run.free(*live)
    run.allocator.empty_cache()
    assert len(in_pool(run, GRAPH)) == segments
    release_pool(run.allocator, GRAPH)
    run.allocator.empty_cache()
    assert (run.reserved, run.allocator.private_pools) == (0, {})


def test_fact_29_blocks_of_a_graph_drop_one_by_one():
    run = Driver()
    outputs = [run.malloc(size * MiB, pool=GRAPH) for size in (2, 2, 20)]
    left = []
    for output in outputs:
        run.free(output)
        left.append(sum(block.allocated for block in outputs))
    assert left == [2, 1, 0]


def test_fact_30_a_mempool_is_counted_apart():
    run = Driver()
    begin_allocate_to_pool(run.allocator, MEMPOOL)
    inside = run.malloc(MiB)
    end_allocate_to_pool(run.allocator, MEMPOOL)
    run.free(inside)
    outside = [run.malloc(MiB) for _ in range(2)]
    assert len(run.allocator.segments) == 2
    assert run.stat("active_bytes.all.current") == sum(block.size for block in outside) == 2_097_152


@pytest.mark.parametrize("settings", ["", "expandable_segments:True"])
def test_fact_31_a_checkpoint_brings_back_every_block(settings):
    run = Driver(settings)
    blocks = [run.malloc(size, pool=GRAPH) for size in (700, 5 * MiB, 512, 3 * MiB, 30 * MiB)]
    run.free(blocks[1])
    before, reserved = checkpoint(run.allocator, GRAPH), run.reserved
    run.free(blocks[0], blocks[3])
    run.malloc(7 * MiB, pool=GRAPH)
    restore(run.allocator, before)
    assert (checkpoint(run.allocator, GRAPH), run.reserved) == (before, reserved)


def test_only_matching_streams_go_to_a_pool():
    run = Driver()
    begin_allocate_to_pool(run.allocator, GRAPH, lambda stream: stream == 7)
    assert [run.malloc(1, stream=stream).pool.owner.id for stream in (0, 7)] == [(0, 0), GRAPH]


def test_the_pool_begun_last_is_asked_first():
    run = Driver()
    begin_allocate_to_pool(run.allocator, GRAPH)
    begin_allocate_to_pool(run.allocator, MEMPOOL)
    assert run.malloc(1).pool.owner.id == MEMPOOL
    end_allocate_to_pool(run.allocator, MEMPOOL)
    assert run.malloc(1).pool.owner.id == GRAPH


def test_beginning_twice_and_ending_what_never_began_are_refused():
    run = Driver()
    begin_allocate_to_pool(run.allocator, GRAPH)
    with pytest.raises(UsageError, match="already recording"):
        begin_allocate_to_pool(run.allocator, GRAPH)
    with pytest.raises(UsageError, match="not currently recording"):
        end_allocate_to_pool(run.allocator, MEMPOOL)


def test_a_pool_offered_for_it_helps_out_before_anything_is_released():
    run = Driver(card=100 * MiB)
    create_pool(run.allocator, MEMPOOL).use_on_oom = True
    inside = run.malloc(60 * MiB, pool=MEMPOOL)
    run.free(inside)
    assert run.malloc(50 * MiB).pool.owner.id == MEMPOOL
    assert run.stat("num_alloc_retries") == 0


def test_a_pool_that_does_not_split_hands_out_whole_segments():
    run = Driver()
    create_pool(run.allocator, MEMPOOL).split = False
    assert run.malloc(512, pool=MEMPOOL).size == 2 * MiB


def test_a_free_within_a_capture_waits_for_its_end():
    run = Driver()
    block = run.malloc(MiB)
    begin_allocate_to_pool(run.allocator, GRAPH, lambda stream: stream == 7)
    run.allocator.record_stream(block, 7)
    run.free(block)
    run.malloc(512)
    assert block.in_use
    end_allocate_to_pool(run.allocator, GRAPH)
    run.malloc(512)
    assert not block.in_use
