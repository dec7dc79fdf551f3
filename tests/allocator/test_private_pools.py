"""Private pools: CUDA graphs and MemPools."""

from __future__ import annotations

import pytest

from tests.allocator.driver import Driver, MiB, blocks_of

GRAPH = (1, 0)
MEMPOOL = (0, 1)


def in_pool(run: Driver, pool: tuple[int, int]) -> list[int]:
    heads = [head for head in run.allocator.segments.values() if head.pool.owner.id == pool]
    return [sum(block.size for block in blocks_of(head) if block.mapped) for head in heads]


@pytest.mark.parametrize(("settings", "segments"), [("", 4), ("expandable_segments:True", 2)])
def test_fact_28_a_pool_keeps_its_segments_until_its_graph_is_gone(settings, segments):
    run = Driver(settings)
    live = [run.malloc(512, pool=GRAPH)]
    for _ in range(10):
        run.free(*live[1:])
        live[1:] = [run.malloc(20 * MiB, pool=GRAPH) for _ in range(3)]
    assert len(in_pool(run, GRAPH)) == segments
    run.free(*live)
    run.allocator.empty_cache()
    assert len(in_pool(run, GRAPH)) == segments
    run.allocator.private_pools[GRAPH].use_count = 0
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
    run.free(run.malloc(MiB, pool=MEMPOOL))
    outside = [run.malloc(MiB) for _ in range(2)]
    assert len(run.allocator.segments) == 2
    assert run.stat("active_bytes.all.current") == sum(block.size for block in outside) == 2_097_152
