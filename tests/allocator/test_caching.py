"""The caching allocator's rules, each from PyTorch's source, its tests or a reproduction."""

import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memviz.allocator.blocks import AllocationFailed, AscendingAddresses, Block, DeviceMemory, LinuxAddresses
from memviz.allocator.caching import CachingAllocator, rounding, segment_size
from memviz.allocator.settings import parse_settings
from memviz.errors import UsageError
from memviz.trace.reserved import round_sizes
from tests.allocator.driver import Driver, GiB, MiB
from tests.allocator.programs import SETTINGS, programs, take

EXPANDABLE = "expandable_segments:True"
GRAPH, MEMPOOL = (1, 0), (0, 1)


def limited(settings: str, limit: int) -> Driver:
    """A memory limit by fraction, on a card without any of its own."""
    run = Driver()
    run.allocator.device.total = 2 * limit
    change_settings(run, settings)
    return run


def change_settings(run: Driver, settings: str) -> None:
    run.allocator.set_settings(parse_settings(f"{settings},per_process_memory_fraction:0.5"))


# -- sizes

divisions = st.tuples(*[st.sampled_from([0, 1, 2, 4, 8, 64])] * 16)
sizes = st.integers(1, 4096) | st.integers(1, 1 << 40) | st.integers(9, 40).map(lambda power: 1 << power)


@given(divisions, sizes)
def test_requests_round_alike_alone_and_in_columns(table, size):
    assert rounding(table)(size) == int(round_sizes(np.array([size]), table)[0])


@pytest.mark.parametrize(
    ("settings", "requested", "rounded"),
    [
        ("", 311 * 411 * 4, 511_488),
        ("", 622 * 411 * 4, 1_022_976),
        *(("roundup_power2_divisions:4", 84 * MiB, 96 * MiB), ("roundup_power2_divisions:4", 1200, 1536)),
        *(("roundup_power2_divisions:4", 400 * MiB, 448 * MiB), ("roundup_power2_divisions:4", 600 * MiB, 640 * MiB)),
        ("roundup_power2_divisions:[64:8,128:2,256:2,512:2,1024:1,>:1]", 84 * MiB, 88 * MiB),
        ("roundup_power2_divisions:[64:8,128:2,256:2,512:2,1024:1,>:1]", 400 * MiB, 512 * MiB),
    ],
)
def test_requests_are_rounded_by_the_settings(settings, requested, rounded):
    assert rounding(parse_settings(settings).roundup_power2_divisions)(requested) == rounded


@pytest.mark.parametrize(
    ("rounded", "segment"),
    [(512, 2), (MiB, 2), (MiB + 512, 20), (10 * MiB - 512, 20), (10 * MiB, 10), (21 * MiB, 22), (22 * MiB, 22)],
)
def test_a_segment_is_shared_or_made_to_measure(rounded, segment):
    assert segment_size(rounded) == segment * MiB
    assert segment_size(5 * MiB, 32 * MiB) == 32 * MiB


@pytest.mark.parametrize(
    ("requests", "allocated", "segments"),
    [
        ([1], 512, [2]),
        ([512] * 1000, 512_000, [2]),
        ([MiB, MiB], 2 * MiB, [2]),
        ([MiB, MiB, 1], 2 * MiB + 512, [2, 2]),
        ([MiB + 1], 1_049_088, [20]),
        # A rest of at most 1 MiB is handed out with its block.
        ([MiB + 1, 6 * MiB, 6 * MiB, 6 * MiB], 20_971_520, [20]),
        ([MiB + 1, 6 * MiB, 6 * MiB, 6 * MiB, 3 * MiB // 2], 20_971_520 + 3 * MiB // 2, [20, 20]),
        ([10 * MiB - 512], 10 * MiB - 512, [20]),
        ([11 * MiB], 12 * MiB, [12]),
        ([128 * 128 * 4] * 4, 4 * 65_536, [2]),
        # cuBLAS workspaces.
        *(([8_519_680], 8_519_680, [20]), ([32 * MiB], 32 * MiB, [32])),
    ],
)
def test_requests_share_segments(requests, allocated, segments):
    run = Driver()
    for size in requests:
        run.malloc(size)
    assert (run.allocated, run.segments) == (allocated, [size * MiB for size in segments])


# -- best fit, splitting, merging


@pytest.mark.parametrize(
    ("settings", "cached", "request_size", "size"),
    [
        ("", 100 * MiB, 99 * MiB, 100 * MiB),
        ("", 100 * MiB, 99 * MiB - 512, 99 * MiB - 512),
        ("", 11 * MiB, 10.5 * MiB, 11_010_048),
        # An oversize block serves a request of nearly its size only.
        ("max_split_size_mb:128", 216 * MiB, 200 * MiB, 216 * MiB),
    ],
)
def test_a_cached_block_is_split_only_if_more_than_a_mebibyte_is_left(settings, cached, request_size, size):
    run = Driver(settings)
    run.cached(cached)
    assert (run.malloc(request_size).size, len(run.segments)) == (size, 1)


@pytest.mark.parametrize(("cached", "request_size"), [(220, 200), (200, 50)])
def test_an_oversize_block_does_not_serve_much_smaller_requests(cached, request_size):
    run = Driver("max_split_size_mb:128")
    run.cached(cached * MiB)
    run.malloc(request_size * MiB)
    assert run.segments == [cached * MiB, request_size * MiB]


def test_two_small_blocks_tile_where_a_larger_one_was():
    run = Driver()
    start = run.cached(622 * 411 * 4).address
    first, second = run.malloc(310 * 410 * 4), run.malloc(311 * 411 * 4)
    assert [first.address - start, second.address - start] == [0, 508_416]
    assert (second.requested, second.size, run.segments) == (511_284, 511_488, [2 * MiB])


def test_the_smallest_block_that_fits_is_taken_and_among_equals_the_lowest_address():
    run = Driver()
    held = [run.malloc(size * MiB) for size in (40, 20, 30, 20)]
    run.free(*reversed(held))
    # The driver of Linux puts the second of the two below the first.
    assert run.malloc(18 * MiB).address == held[3].address < held[1].address
    assert run.malloc(20 * MiB).address == held[1].address


def test_memory_stays_with_its_stream():
    run = Driver()
    run.cached(20 * MiB)
    run.malloc(20 * MiB, stream=7)
    assert run.segments == [20 * MiB, 20 * MiB]


def test_a_free_block_merges_with_both_neighbours():
    run = Driver()
    blocks = [run.malloc(4 * MiB) for _ in range(5)]
    run.free(blocks[1], blocks[3], blocks[2])
    assert run.malloc(12 * MiB).address == blocks[1].address
    assert run.stat("inactive_split.all.current") == 0


def test_settings_without_the_key_end_the_rounding():
    run = Driver("roundup_power2_divisions:4")
    run.allocator.set_settings(parse_settings("expandable_segments:False"))
    assert run.malloc(84 * MiB).size == 84 * MiB


# -- frees that wait for other streams


def test_a_block_used_by_another_stream_waits_for_it():
    run = Driver()
    block = run.malloc(20 * MiB)
    run.allocator.record_stream(block, 7)
    run.free(block)
    assert (run.allocated, run.stat("active_bytes.all.current")) == (0, 20 * MiB)
    assert run.malloc(20 * MiB).address != block.address
    run.allocator.pending.finish(7)
    assert run.malloc(20 * MiB).address == block.address
    assert run.since("free_completed") == [("free_completed", 20 * MiB)]


@pytest.mark.parametrize(
    ("streams", "finished", "waits"), [([0], [], False), ([7, 8], [8], True), ([7, 8], [8, 7], False)]
)
def test_it_waits_for_the_last_of_the_other_streams(streams, finished, waits):
    run = Driver()
    block = run.malloc(MiB)
    for stream in streams:
        run.allocator.record_stream(block, stream)
    run.free(block)
    for stream in finished:
        run.allocator.pending.finish(stream)
        run.malloc(512)
    assert block.in_use == waits


def test_a_stream_may_be_known_to_have_come_only_so_far():
    run = Driver()
    first, second = run.malloc(20 * MiB), run.malloc(20 * MiB)
    pending = run.allocator.pending
    for block in (first, second):
        run.allocator.record_stream(block, 7)
    run.free(first)
    assert pending.count_waits(7) == 1
    run.free(second)
    pending.finish(7, 1)
    # To hear of it again changes nothing.
    pending.finish(7, 1)
    run.malloc(512)
    assert (first.in_use, second.in_use, pending.count_waits(7)) == (False, True, 2)
    pending.finish(7, 2)
    run.malloc(512)
    assert not second.in_use and pending.count_waits(7) == 2


def test_running_out_waits_for_other_streams_first():
    run = Driver(card=100 * MiB)
    block = run.malloc(60 * MiB)
    run.allocator.record_stream(block, 7)
    run.free(block)
    run.since()
    run.malloc(80 * MiB)
    assert [action for action, _ in run.since()] == ["free_completed", "segment_free", "segment_alloc", "alloc"]
    assert run.stat("num_sync_all_streams") == 1


# -- running out


def test_the_ladder_ends_with_what_it_knows():
    run = Driver(card=100 * MiB)
    run.malloc(30 * MiB)
    run.cached(40 * MiB)
    with pytest.raises(AllocationFailed) as caught:
        run.malloc(80 * MiB + 1)
    error = caught.value
    assert (error.requested, error.asked_of_device) == (80 * MiB + 1, 82 * MiB)
    assert (error.allocated, error.reserved) == (30 * MiB, 30 * MiB)
    assert run.since("oom") == [("oom", 80 * MiB + 512)]
    assert (run.stat("num_ooms"), run.stat("num_alloc_retries")) == (1, 1)


def test_a_split_segment_cannot_go_back():
    run = Driver(card=100 * MiB)
    blocks = [run.malloc(40 * MiB), run.malloc(40 * MiB)]
    run.free(*blocks)
    held = run.malloc(4 * MiB)
    with pytest.raises(AllocationFailed) as caught:
        run.malloc(90 * MiB)
    assert (caught.value.reserved, held.size) == (40 * MiB, 4 * MiB)


@pytest.mark.parametrize(("request_size", "released"), [(70, [100]), (200, [120, 100])])
def test_with_a_split_limit_only_as_many_oversize_blocks_go_as_are_needed(request_size, released):
    """One that is large enough, or several from the largest down."""
    run = Driver("max_split_size_mb:40", card=300 * MiB)
    run.free(*[run.malloc(size * MiB) for size in (60, 100, 120 if len(released) > 1 else 100)])
    run.since()
    run.malloc(request_size * MiB)
    assert run.since("segment_free") == [("segment_free", size * MiB) for size in released]
    assert run.stat("num_alloc_retries") == 0


@pytest.mark.parametrize("settings", ["", "max_split_size_mb:1024"])
def test_a_request_beyond_an_exbibyte_is_not_even_tried(settings):
    run = Driver(settings, card=80 * GiB)
    with pytest.raises(AllocationFailed) as caught:
        run.malloc(800_000_000 * GiB)
    assert (caught.value.asked_of_device, run.stat("num_ooms")) == (800_000_000 * GiB, 1)
    run.since()
    with pytest.raises(AllocationFailed):
        run.malloc(8_000_000_000 * GiB)
    assert (run.history, run.stat("num_ooms")) == ([], 1)


def test_a_fraction_limits_what_is_reserved():
    run = limited("expandable_segments:False", 10 * GiB)
    held = run.malloc(1)
    run.free(run.malloc(int(20 * GiB * 0.499) - run.reserved))
    run.allocator.empty_cache()
    with pytest.raises(AllocationFailed):
        run.malloc(10 * GiB)
    run.free(held)
    run.malloc(10 * GiB)
    with pytest.raises(UsageError, match="give the size of the card"):
        CachingAllocator(parse_settings("per_process_memory_fraction:0.5"), DeviceMemory())


def test_an_early_refusal_skips_the_ladder():
    run = limited("throw_on_cudamalloc_oom:True", 100 * MiB)
    run.cached(60 * MiB)
    with pytest.raises(AllocationFailed) as caught:
        run.malloc(80 * MiB)
    assert (caught.value.reserved, run.stat("num_oom_rejections")) == (60 * MiB, 1)


def test_a_release_may_need_segments_of_both_kinds():
    run = limited("max_split_size_mb:40", 120 * MiB)
    blocks = [run.malloc(40 * MiB)]
    change_settings(run, f"max_split_size_mb:40,{EXPANDABLE}")
    blocks.append(run.malloc(40 * MiB))
    change_settings(run, "max_split_size_mb:40")
    blocks.append(run.malloc(40 * MiB))
    with pytest.raises(AllocationFailed):
        run.malloc(40 * MiB)
    run.free(*blocks)
    run.malloc(120 * MiB)
    assert run.reserved == 120 * MiB


def test_garbage_collection_frees_what_lay_longest():
    run = limited("garbage_collection_threshold:0.5", 200 * MiB)
    run.cached(50 * MiB)
    for _ in range(4):
        run.cached(60 * MiB)
    run.since()
    run.malloc(90 * MiB)
    assert run.since("segment_free") == [("segment_free", 50 * MiB)]


def test_garbage_collection_leaves_expandable_blocks_alone():
    run = limited("garbage_collection_threshold:0.5", 120 * MiB)
    blocks = [run.malloc(40 * MiB)]
    change_settings(run, f"garbage_collection_threshold:0.5,{EXPANDABLE}")
    blocks.append(run.malloc(40 * MiB))
    run.free(*blocks)
    run.since()
    run.malloc(80 * MiB)
    released = [("segment_free", 40 * MiB), ("segment_map", 40 * MiB)]
    assert run.since("segment_free", "segment_unmap", "segment_map") == released


# -- segments that expand


def test_expandable_segments_grow_and_shrink_by_pages():
    run = Driver(EXPANDABLE)
    run.malloc(1)
    run.malloc(MiB + 1)
    assert run.since("segment_map") == [("segment_map", 2 * MiB), ("segment_map", 20 * MiB)]
    large = run.malloc(30 * MiB)
    assert (run.since("segment_map"), run.reserved) == ([("segment_map", 20 * MiB)], 42 * MiB)
    run.free(large)
    run.allocator.empty_cache()
    assert (run.since("segment_unmap"), run.reserved) == ([("segment_unmap", 20 * MiB)], 22 * MiB)
    assert run.stat("segment.all.current") == 0


@pytest.mark.parametrize(
    ("settings", "count", "size", "step", "reserved"),
    [
        *(("", 5, 12, 0, 60), (EXPANDABLE, 5, 12, 0, 60), ("", 15, 2, 0, 40), (EXPANDABLE, 15, 2, 0, 40)),
        # Sizes that grow step by step, each freed before the next.
        *(("", 4, 100, 1, 306), (EXPANDABLE, 4, 100, 1, 120)),
    ],
)
def test_expanding_saves_where_sizes_grow(settings, count, size, step, reserved):
    run = Driver(settings)
    for number in range(count):
        block = run.malloc((size + number * step) * MiB)
        if step:
            run.free(block)
    assert run.reserved == reserved * MiB


def test_a_block_at_the_growing_end_is_used_last():
    run = Driver(EXPANDABLE)
    blocks = [run.malloc(8 * MiB) for _ in range(2)]
    middle, end = run.malloc(6 * MiB), run.malloc(3 * MiB)
    run.free(middle)
    assert run.malloc(4 * MiB).address == middle.address
    assert blocks[0].address < middle.address < end.address


def test_switched_off_expandable_blocks_are_left_alone():
    run = Driver(EXPANDABLE)
    run.cached(20 * MiB)
    run.allocator.set_settings(parse_settings(""))
    assert run.malloc(10 * MiB).expandable is None


def test_gaps_of_address_space_are_filled_and_stay_where_memory_runs_out():
    run = Driver(EXPANDABLE, card=100 * MiB)
    first, second = run.malloc(40 * MiB), run.malloc(40 * MiB)
    run.free(first)
    run.allocator.empty_cache()
    assert (run.reserved, second.size) == (40 * MiB, 40 * MiB)
    held = run.malloc(20 * MiB)
    assert held.address == first.address
    with pytest.raises(AllocationFailed):
        run.malloc(80 * MiB)
    assert run.reserved == 60 * MiB
    run.free(held)
    assert run.malloc(18 * MiB).address == first.address


def test_a_request_beyond_the_reserved_address_space_fails():
    run = Driver(f"{EXPANDABLE},expandable_segments_reserve:1G", card=80 * GiB)
    with pytest.raises(AllocationFailed):
        run.malloc(2 * GiB)


# -- private pools


def in_pool(run: Driver, pool: tuple[int, int]) -> list[int]:
    heads = [head for head in run.allocator.segments.values() if head.pool.owner.id == pool]
    return [sum(block.size for block in head.chain() if block.mapped) for head in heads]


@pytest.mark.parametrize(("settings", "segments"), [("", 4), (EXPANDABLE, 2)])
def test_a_pool_keeps_its_segments_until_its_graph_is_gone(settings, segments):
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


def test_a_mempool_is_counted_apart():
    run = Driver()
    run.free(run.malloc(MiB, pool=MEMPOOL))
    outside = [run.malloc(MiB) for _ in range(2)]
    assert len(run.allocator.segments) == 2
    assert run.stat("active_bytes.all.current") == sum(block.size for block in outside) == 2_097_152


# -- statistics


def test_statistics_count_requests_and_can_start_anew():
    run = Driver()
    run.cached(100 * MiB - 512)
    assert run.stat("requested_bytes.all.allocated") == 100 * MiB - 512
    assert run.stat("active_bytes.all.allocated") == run.stat("active_bytes.all.freed") == 100 * MiB
    statistics = run.allocator.statistics
    statistics.reset_peak()
    statistics.reset_accumulated()
    assert (run.stat("allocated_bytes.all.peak"), run.stat("reserved_bytes.large_pool.peak")) == (0, 100 * MiB)
    assert (run.stat("allocated_bytes.all.allocated"), run.stat("num_device_alloc")) == (0, 0)


def test_oversize_blocks_are_counted():
    run = Driver("max_split_size_mb:40")
    block = run.malloc(50 * MiB)
    assert (run.stat("oversize_allocations.current"), run.stat("oversize_segments.current")) == (1, 1)
    run.free(block)
    run.allocator.empty_cache()
    assert (run.stat("oversize_allocations.freed"), run.stat("oversize_segments.freed")) == (1, 1)


# -- addresses of segments


def test_linux_takes_chunks_of_32_mib_from_above_and_fills_the_newest_first():
    space = LinuxAddresses()
    top = space.take(20 * MiB) + 32 * MiB
    below = [(top - address) // MiB for address in map(space.take, (20 * MiB, 2 * MiB, 70 * MiB, 20 * MiB, 12 * MiB))]
    # The newest chunk has 26 MiB left for the 20, and then 6; the second has 10, and the first has 12.
    assert below == [64, 44, 160, 90, 12]


def test_linux_gives_an_empty_chunk_back_and_takes_the_highest_gap_that_is_larger():
    space = LinuxAddresses()
    held = [space.take(32 * MiB) for _ in range(4)]
    space.give_back(held[1], 32 * MiB)
    # A gap of the same size is passed over, as the driver does.
    assert space.take(32 * MiB) == held[3] - 32 * MiB
    space.give_back(held[2], 32 * MiB)
    assert space.take(32 * MiB) == held[1]


@given(st.lists(st.tuples(st.integers(1, 60), st.booleans(), st.integers(0, 1000)), max_size=80))
def test_addresses_in_use_never_overlap(steps: list[tuple[int, bool, int]]):
    for space in (LinuxAddresses(), AscendingAddresses()):
        held: list[tuple[int, int]] = []
        for pages, frees, which in steps:
            if frees and held:
                space.give_back(*held.pop(which % len(held)))
                continue
            size = 2 * pages * MiB
            address = space.take(size)
            assert all(address + size <= other or other + other_size <= address for other, other_size in held)
            held.append((address, size))


def check(allocator: CachingAllocator) -> None:
    blocks = [block for head in allocator.segments.values() for block in head.chain()]
    check_tiling(allocator)
    check_lists(allocator, blocks)
    check_statistics(allocator, [block for block in blocks if block.mapped])


def check_tiling(allocator: CachingAllocator) -> None:
    for address, head in allocator.segments.items():
        blocks = list(head.chain())
        assert head.address == address and head.prev is None
        for before, after in pairwise(blocks):
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
    assert not any(block.mapped for head in run.allocator.segments.values() for block in head.chain())


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
