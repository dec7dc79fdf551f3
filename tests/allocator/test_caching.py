"""Best fit, splitting, merging, frees that wait, the ladder: where the numbered facts leave room."""

from __future__ import annotations

import pytest

from memviz.allocator.settings import parse_settings
from memviz.allocator.state import AllocationFailed
from tests.allocator.driver import Driver, GiB, MiB


def test_the_smallest_block_that_fits_is_taken():
    run = Driver()
    held = [run.malloc(size * MiB) for size in (40, 20, 30)]
    run.free(*held)
    assert run.malloc(18 * MiB).address == held[1].address


def test_among_equals_the_lowest_address_is_taken():
    run = Driver()
    held = [run.malloc(20 * MiB) for _ in range(3)]
    run.free(held[2], held[0], held[1])
    assert run.malloc(20 * MiB).address == held[0].address


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


def test_split_rests_are_counted_as_inactive():
    run = Driver()
    block = run.malloc(6 * MiB)
    assert run.stat("inactive_split_bytes.all.current") == 14 * MiB
    run.free(block)
    assert (run.stat("inactive_split_bytes.all.current"), run.stat("inactive_split.all.current")) == (0, 0)


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


def test_its_own_stream_is_no_reason_to_wait():
    run = Driver()
    block = run.malloc(20 * MiB)
    run.allocator.record_stream(block, 0)
    run.free(block)
    assert run.stat("active_bytes.all.current") == 0


def test_it_waits_for_the_last_of_its_streams():
    run = Driver()
    block = run.malloc(MiB)
    run.allocator.record_stream(block, 7)
    run.allocator.record_stream(block, 8)
    run.free(block)
    run.allocator.pending.finish(8)
    run.malloc(512)
    assert block.in_use
    run.allocator.pending.finish(7)
    run.malloc(512)
    assert not block.in_use


def test_a_stream_may_be_known_to_have_come_only_so_far():
    run = Driver()
    first, second = run.malloc(20 * MiB), run.malloc(20 * MiB)
    pending = run.allocator.pending
    for block in (first, second):
        run.allocator.record_stream(block, 7)
    run.free(first)
    assert pending.asked(7) == 1
    run.free(second)
    pending.finish(7, 1)
    # To hear of it again changes nothing.
    pending.finish(7, 1)
    run.malloc(512)
    assert (first.in_use, second.in_use, pending.asked(7)) == (False, True, 2)
    pending.finish(7, 1)
    run.malloc(512)
    assert second.in_use
    pending.finish(7, 2)
    run.malloc(512)
    assert not second.in_use and pending.asked(7) == 2


def test_running_out_waits_for_other_streams_first():
    run = Driver(card=100 * MiB)
    block = run.malloc(60 * MiB)
    run.allocator.record_stream(block, 7)
    run.free(block)
    run.since()
    run.malloc(80 * MiB)
    assert [action for action, _ in run.since()] == ["free_completed", "segment_free", "segment_alloc", "alloc"]
    assert run.stat("num_sync_all_streams") == 1


def test_the_ladder_ends_with_what_it_knows():
    run = Driver(card=100 * MiB)
    run.malloc(30 * MiB)
    run.cached(40 * MiB)
    with pytest.raises(AllocationFailed) as caught:
        run.malloc(80 * MiB)
    error = caught.value
    assert (error.requested, error.allocated, error.reserved) == (80 * MiB, 30 * MiB, 30 * MiB)
    assert run.since("oom") == [("oom", 80 * MiB)]
    assert (run.stat("num_ooms"), run.stat("num_alloc_retries")) == (1, 1)


def test_a_split_segment_cannot_go_back():
    run = Driver(card=100 * MiB)
    blocks = [run.malloc(40 * MiB), run.malloc(40 * MiB)]
    run.free(*blocks)
    held = run.malloc(4 * MiB)
    with pytest.raises(AllocationFailed) as caught:
        run.malloc(90 * MiB)
    assert (caught.value.reserved, held.size) == (40 * MiB, 4 * MiB)


def test_with_a_split_limit_one_oversize_block_is_enough():
    run = Driver("max_split_size_mb:40", card=300 * MiB)
    blocks = [run.malloc(size * MiB) for size in (60, 100, 100)]
    run.free(*blocks)
    run.since()
    run.malloc(70 * MiB)
    assert run.since("segment_free") == [("segment_free", 100 * MiB)]
    assert run.stat("num_alloc_retries") == 0


def test_or_several_from_the_largest_down():
    run = Driver("max_split_size_mb:40", card=300 * MiB)
    blocks = [run.malloc(size * MiB) for size in (60, 100, 120)]
    run.free(*blocks)
    run.since()
    run.malloc(200 * MiB)
    assert run.since("segment_free") == [("segment_free", 120 * MiB), ("segment_free", 100 * MiB)]


def test_an_early_refusal_skips_the_ladder():
    run = Driver()
    run.allocator.device.total = 200 * MiB
    run.allocator.set_settings(parse_settings("throw_on_cudamalloc_oom:True,per_process_memory_fraction:0.5"))
    run.cached(60 * MiB)
    with pytest.raises(AllocationFailed) as caught:
        run.malloc(80 * MiB)
    assert (caught.value.reserved, run.stat("num_oom_rejections")) == (60 * MiB, 1)


def test_garbage_collection_frees_what_lay_longest():
    run = Driver()
    run.allocator.device.total = 400 * MiB
    run.allocator.set_settings(parse_settings("garbage_collection_threshold:0.5,per_process_memory_fraction:0.5"))
    run.cached(50 * MiB)
    for _ in range(4):
        run.cached(60 * MiB)
    run.since()
    run.malloc(90 * MiB)
    assert run.since("segment_free") == [("segment_free", 50 * MiB)]


def test_a_block_at_the_growing_end_is_used_last():
    run = Driver("expandable_segments:True")
    blocks = [run.malloc(8 * MiB) for _ in range(2)]
    middle, end = run.malloc(6 * MiB), run.malloc(3 * MiB)
    run.free(middle)
    assert run.malloc(4 * MiB).address == middle.address
    assert blocks[0].address < middle.address < end.address


def test_switched_off_expandable_blocks_are_left_alone():
    run = Driver("expandable_segments:True")
    run.cached(20 * MiB)
    run.allocator.set_settings(parse_settings(""))
    assert run.malloc(10 * MiB).expandable is None


def test_pieces_mapped_before_running_out_stay_as_cached_memory():
    run = Driver("expandable_segments:True", card=100 * MiB)
    first, second = run.malloc(40 * MiB), run.malloc(40 * MiB)
    run.free(first)
    run.allocator.empty_cache()
    assert (run.reserved, second.size) == (40 * MiB, 40 * MiB)
    with pytest.raises(AllocationFailed):
        run.malloc(80 * MiB)
    assert run.reserved == 40 * MiB


def test_gaps_of_address_space_are_filled_before_the_end_grows():
    run = Driver("expandable_segments:True")
    first, _ = run.malloc(40 * MiB), run.malloc(20 * MiB)
    run.free(first)
    run.allocator.empty_cache()
    assert run.malloc(20 * MiB).address == first.address


def test_a_request_beyond_the_reserved_address_space_fails():
    run = Driver("expandable_segments:True,expandable_segments_reserve:1G", card=80 * GiB)
    with pytest.raises(AllocationFailed):
        run.malloc(2 * GiB)


def test_statistics_can_start_anew():
    run = Driver()
    run.cached(100 * MiB)
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
