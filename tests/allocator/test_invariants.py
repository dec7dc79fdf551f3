"""Invariants of the allocator after every step of a random program, and the fuzz of PyTorch's own tests."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memviz.allocator.blocks import Block
from memviz.allocator.caching import CachingAllocator
from tests.allocator.driver import Driver, MiB, blocks_of
from tests.allocator.programs import SETTINGS, programs, take


def check(allocator: CachingAllocator) -> None:
    blocks = [block for head in allocator.segments.values() for block in blocks_of(head)]
    check_tiling(allocator)
    check_lists(allocator, blocks)
    check_statistics(allocator, [block for block in blocks if block.mapped])


def check_tiling(allocator: CachingAllocator) -> None:
    for address, head in allocator.segments.items():
        blocks = blocks_of(head)
        assert head.address == address and head.prev is None
        for before, after in zip(blocks, blocks[1:], strict=False):
            assert after.prev is before and before.end == after.address
            assert before.in_use or after.in_use or before.mapped != after.mapped, "two free neighbours"
        if head.expandable is not None:
            assert sum(block.size for block in blocks) == head.expandable.size


def check_lists(allocator: CachingAllocator, blocks: list[Block]) -> None:
    pools = [allocator.default_pool, *allocator.private_pools.values()]
    both = [pool for pair in pools for pool in (pair.small, pair.large)]
    free = [block for pool in both for block in pool.free_blocks()]
    unmapped = [block for pool in both for ranges in pool.unmapped.values() for block in ranges]
    assert {*free} == {block for block in blocks if block.mapped and not block.in_use}
    assert {*unmapped} == {block for block in blocks if not block.mapped}
    for pool in both:
        for stream, each in pool.free.items():
            places = [(block.size, block.address) for block in each.blocks]
            assert places == sorted(places)
            assert all(block.stream == stream and block.pool is pool for block in each.blocks)


def check_statistics(allocator: CachingAllocator, blocks: list[Block]) -> None:
    now = allocator.statistics.as_dict()
    free_parts = [b for b in blocks if not b.in_use and b.is_split and b.expandable is None]
    assert now["reserved_bytes.all.current"] == sum(b.size for b in blocks) == allocator.device.in_use
    assert now["allocated_bytes.all.current"] == sum(b.size for b in blocks if b.allocated)
    assert now["active_bytes.all.current"] == sum(b.size for b in blocks if b.in_use)
    assert now["requested_bytes.all.current"] == sum(b.requested for b in blocks if b.in_use)
    assert now["inactive_split_bytes.all.current"] == sum(b.size for b in free_parts)
    assert now["inactive_split.all.current"] == len(free_parts)
    assert now["allocated_bytes.all.current"] <= now["active_bytes.all.current"] <= now["reserved_bytes.all.current"]
    assert now["requested_bytes.all.current"] <= now["active_bytes.all.current"]
    for name in ("allocated_bytes", "active_bytes", "reserved_bytes", "inactive_split_bytes", "allocation"):
        for key in ("current", "allocated", "freed"):
            assert now[f"{name}.all.{key}"] == now[f"{name}.small_pool.{key}"] + now[f"{name}.large_pool.{key}"]
        assert now[f"{name}.all.current"] <= now[f"{name}.all.peak"]


def drain(run: Driver, live: list[Block]) -> None:
    run.free(*live)
    run.allocator.empty_cache()
    check(run.allocator)
    assert run.reserved == 0
    # Address space whose very first page found no memory stays reserved and empty, as in PyTorch.
    assert not any(block.mapped for head in run.allocator.segments.values() for block in blocks_of(head))


@given(st.sampled_from(SETTINGS), st.sampled_from([None, 90 * MiB]), programs)
def test_the_books_balance_after_every_step(text, card, program):
    run, live = Driver(text, card=card or 1000 * MiB), []
    for step in program:
        take(run, live, step)
        check(run.allocator)
    drain(run, live)


@pytest.mark.parametrize("text", SETTINGS)
def test_a_thousand_random_steps(text):
    """Sizes of 2 to 20 MiB; malloc, free and empty_cache in the proportion 1 : 1 : 0.1."""
    rnd, run, live = random.Random(0), Driver(text, card=2000 * MiB), []
    for number, action in enumerate(rnd.choices(["malloc", "free", "empty_cache"], [1, 1, 0.1], k=1_000)):
        take(run, live, (action, rnd.randint(2 * MiB, 20 * MiB), 0))
        if number % 100 == 0:
            check(run.allocator)
    drain(run, live)
