"""Facts about PyTorch's allocator, each from its sources, its tests or a reproduction; numbered as collected.

| facts | what they are about | where |
|---|---|---|
| 1 to 10, 12, 13 | rounding, splitting, pools, statistics | here |
| 14, 20 | settings that are refused | here, and `test_settings.py` |
| 15 to 19, 21, 23 | limits, garbage collection, running out, `max_split_size_mb` | here |
| 22 | what is requested; with caching off nothing is written | here |
| 24 to 26 | segments that expand | here |
| 28 to 30 | private pools, as far as recordings show them | `test_private_pools.py` |
| 11, 32 to 36 | what a recording keeps | `test_replay.py` |
| 37 | what a product of broadcast batches asks for | `test_operators.py` |
| 38 | cuBLAS workspaces | here |
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from memviz.allocator.caching import CachingAllocator, rounding
from memviz.allocator.settings import parse_settings
from memviz.allocator.state import AllocationFailed, DeviceMemory
from memviz.errors import TraceError, UsageError
from tests.allocator.driver import Driver, GiB, MiB
from tests.traces import trace_of

FLOAT = 4


def test_fact_01_one_byte_takes_a_block_of_512_in_a_small_segment():
    run = Driver()
    run.malloc(1)
    assert (run.allocated, run.reserved, run.segments) == (512, 2 * MiB, [2 * MiB])


def test_fact_02_small_blocks_tile_one_segment():
    run = Driver()
    addresses = [run.malloc(512).address for _ in range(1000)]
    assert (run.allocated, run.segments) == (512_000, [2 * MiB])
    assert addresses == [addresses[0] + 512 * number for number in range(1000)]


def test_fact_03_one_mebibyte_is_small():
    run = Driver()
    run.malloc(MiB)
    run.malloc(MiB)
    assert run.reserved == 2 * MiB
    run.malloc(1)
    assert run.reserved == 4 * MiB


def test_fact_04_one_byte_more_is_large():
    run = Driver()
    assert run.malloc(MiB + 1).size == 1_049_088
    assert run.segments == [20 * MiB]


def test_fact_05_a_rest_of_at_most_one_mebibyte_is_handed_out_with_the_block():
    run = Driver()
    for size in (MiB + 1, 6 * MiB, 6 * MiB, 6 * MiB):
        run.malloc(size)
    assert (run.allocated, run.segments) == (20_971_520, [20 * MiB])
    run.malloc(1.5 * MiB)
    assert run.segments == [20 * MiB, 20 * MiB]


@pytest.mark.parametrize(("size", "segment"), [(10 * MiB - 512, 20 * MiB), (10 * MiB, 10 * MiB), (11 * MiB, 12 * MiB)])
def test_fact_06_from_ten_mebibytes_on_a_segment_is_as_large_as_its_block(size, segment):
    run = Driver()
    run.malloc(size)
    assert run.segments == [segment]


def test_fact_06_eleven_mebibytes_count_as_twelve():
    run = Driver()
    run.cached(11 * MiB)
    assert run.stat("allocated_bytes.all.peak") == 12 * MiB
    assert run.malloc(10.5 * MiB).size == 11_010_048


def test_fact_07_a_cached_block_is_split_only_if_more_than_a_mebibyte_is_left():
    run = Driver()
    run.cached(100 * MiB)
    whole = run.malloc(99 * MiB)
    assert whole.size == 100 * MiB
    run.free(whole)
    assert run.malloc(99 * MiB - 512).size == 99 * MiB - 512


def test_fact_08_two_small_blocks_tile_where_a_larger_one_was():
    assert [rounding(())(rows * 411 * FLOAT) for rows in (311, 622)] == [511_488, 1_022_976]
    run = Driver()
    start = run.cached(622 * 411 * FLOAT).address
    first, second = run.malloc(310 * 410 * FLOAT), run.malloc(311 * 411 * FLOAT)
    assert [first.address - start, second.address - start] == [0, 508_416]
    assert (second.requested, second.size, run.segments) == (511_284, 511_488, [2 * MiB])


def test_fact_09_four_tensors_of_64_kib_share_a_segment():
    run = Driver()
    assert [run.malloc(128 * 128 * FLOAT).size for _ in range(4)] == [65_536] * 4
    assert run.segments == [2 * MiB]


def test_fact_10_active_bytes_count_what_was_freed():
    run = Driver()
    run.free(run.malloc(256 * FLOAT))
    assert run.stat("active_bytes.all.allocated") == run.stat("active_bytes.all.freed") == 1024


@pytest.mark.parametrize(
    ("requested", "rounded"),
    [(84 * MiB, 96 * MiB), (400 * MiB, 448 * MiB), (600 * MiB, 640 * MiB), (1200, 1536)],
)
def test_fact_12_four_steps_between_powers_of_two(requested, rounded):
    run = Driver("roundup_power2_divisions:4")
    run.malloc(requested)
    assert run.stat("requested_bytes.all.current") == requested
    assert rounding((4,) * 16)(requested) == rounded


@pytest.mark.parametrize(("requested", "rounded"), [(84 * MiB, 88 * MiB), (400 * MiB, 512 * MiB)])
def test_fact_13_steps_by_interval(requested, rounded):
    settings = parse_settings("roundup_power2_divisions:[64:8,128:2,256:2,512:2,1024:1,>:1]")
    assert rounding(settings.roundup_power2_divisions)(requested) == rounded


def test_fact_13_settings_without_the_key_end_the_rounding():
    run = Driver("roundup_power2_divisions:4")
    run.allocator.set_settings(parse_settings("expandable_segments:False"))
    assert run.malloc(84 * MiB).size == 84 * MiB


@pytest.mark.parametrize(
    "text",
    [
        "foo:1,bar:2",
        "garbage_collection_threshold:1.2",
        "max_split_size_mb:2",
        "release_lock_on_cudamalloc:none",
        "pinned_num_register_threads:none",
        "pinned_num_register_threads:1024",
    ],
)
def test_fact_14_nonsense_is_refused(text):
    with pytest.raises(UsageError):
        parse_settings(text)


def limited(settings: str, limit: int) -> Driver:
    """Return a driver with a memory limit by fraction, on a device twice as large."""
    run = Driver()
    run.allocator.device.total = 2 * limit
    run.allocator.set_settings(parse_settings(f"{settings},per_process_memory_fraction:0.5"))
    return run


def toggle(run: Driver, settings: str) -> None:
    run.allocator.set_settings(parse_settings(f"{settings},per_process_memory_fraction:0.5"))


def test_fact_15_a_release_may_need_segments_of_both_kinds():
    run = limited("max_split_size_mb:40", 120 * MiB)
    blocks = [run.malloc(40 * MiB)]
    toggle(run, "max_split_size_mb:40,expandable_segments:True")
    blocks.append(run.malloc(40 * MiB))
    toggle(run, "max_split_size_mb:40")
    blocks.append(run.malloc(40 * MiB))
    with pytest.raises(AllocationFailed):
        run.malloc(40 * MiB)
    run.free(*blocks)
    run.malloc(120 * MiB)
    assert run.reserved == 120 * MiB


def test_fact_16_garbage_collection_leaves_expandable_blocks_alone():
    run = limited("garbage_collection_threshold:0.5", 120 * MiB)
    blocks = [run.malloc(40 * MiB)]
    toggle(run, "garbage_collection_threshold:0.5,expandable_segments:True")
    blocks.append(run.malloc(40 * MiB))
    run.free(*blocks)
    run.since()
    run.malloc(80 * MiB)
    assert run.since("segment_free", "segment_unmap", "segment_map") == [
        ("segment_free", 40 * MiB),
        ("segment_map", 40 * MiB),
    ]


@pytest.mark.parametrize("settings", ["", "max_split_size_mb:1024"])
def test_fact_17_a_tebibyte_does_not_fit(settings):
    run = Driver(settings, card=80 * GiB)
    with pytest.raises(AllocationFailed) as caught:
        run.malloc(1 << 40)
    assert caught.value.asked_of_device == 1 << 40
    with pytest.raises(AllocationFailed) as caught:
        run.malloc(800_000_000 * GiB)
    assert caught.value.asked_of_device == 800_000_000 * GiB


def test_fact_17_beyond_an_exbibyte_nothing_is_even_tried():
    run = Driver(card=80 * GiB)
    with pytest.raises(AllocationFailed):
        run.malloc(8_000_000_000 * GiB)
    assert (run.history, run.stat("num_ooms")) == ([], 0)


def test_fact_18_memory_that_was_freed_is_found_by_a_retry():
    run = Driver(card=10 * GiB - 512 * MiB)
    half = run.malloc(5 * GiB)
    with pytest.raises(AllocationFailed):
        run.malloc(5 * GiB)
    run.free(half)
    run.malloc(5 * GiB)
    run = Driver(card=10 * GiB - 512 * MiB)
    run.cached(5 * GiB)
    run.malloc(6 * GiB)
    assert run.stat("num_alloc_retries") == 1


def test_fact_19_a_fraction_limits_what_is_reserved():
    run = limited("expandable_segments:False", 10 * GiB)
    held = run.malloc(1)
    run.free(run.malloc(int(20 * GiB * 0.499) - run.reserved))
    run.allocator.empty_cache()
    with pytest.raises(AllocationFailed):
        run.malloc(10 * GiB)
    run.free(held)
    run.malloc(10 * GiB)


@pytest.mark.parametrize("fraction", [0.0, 0.5, 1.0])
def test_fact_20_fractions_are_read(fraction):
    assert parse_settings(f"per_process_memory_fraction:{fraction}").per_process_memory_fraction == fraction


@pytest.mark.parametrize("fraction", [-0.1, 1.1])
def test_fact_20_other_fractions_are_refused(fraction):
    with pytest.raises(UsageError, match="per_process_memory_fraction is invalid"):
        parse_settings(f"per_process_memory_fraction:{fraction}")


def test_fact_20_a_fraction_needs_to_know_of_what():
    with pytest.raises(UsageError, match="say how large the card is"):
        CachingAllocator(parse_settings("per_process_memory_fraction:0.5"), DeviceMemory())


def test_fact_21_the_device_gives_two_mebibytes_at_a_time():
    run = Driver(card=100 * MiB)
    run.malloc(50 * MiB)
    with pytest.raises(AllocationFailed) as caught:
        run.malloc(50 * MiB + 1)
    error = caught.value
    assert (error.requested, error.asked_of_device) == (50 * MiB + 1, 52 * MiB)
    assert (error.allocated, error.reserved) == (50 * MiB, 50 * MiB)


def test_fact_22_requested_bytes_count_what_was_asked():
    run = Driver()
    run.malloc(MiB)
    assert run.stat("requested_bytes.all.allocated") == MiB


def test_fact_22_with_caching_off_nothing_is_written_and_that_is_said():
    with pytest.raises(TraceError, match="no segments and no events"):
        trace_of([], [])


def test_fact_23_an_oversize_block_serves_a_request_of_nearly_its_size():
    run = Driver("max_split_size_mb:128")
    run.cached(216 * MiB)
    assert run.malloc(200 * MiB).size == run.allocated == 216 * MiB


def test_fact_23_but_not_one_that_is_twenty_mebibytes_smaller():
    run = Driver("max_split_size_mb:128")
    run.cached(220 * MiB)
    run.malloc(200 * MiB)
    assert run.segments == [220 * MiB, 200 * MiB]


def test_fact_23_nor_a_small_one():
    run = Driver("max_split_size_mb:128")
    run.cached(200 * MiB)
    run.malloc(50 * MiB)
    assert run.reserved == 250 * MiB


def test_fact_24_expandable_segments_grow_and_shrink_by_pages():
    run = Driver("expandable_segments:True")
    run.malloc(1)
    run.malloc(MiB + 1)
    assert run.since("segment_map") == [("segment_map", 2 * MiB), ("segment_map", 20 * MiB)]
    large = run.malloc(30 * MiB)
    assert (run.since("segment_map"), run.reserved) == ([("segment_map", 20 * MiB)], 42 * MiB)
    run.free(large)
    run.allocator.empty_cache()
    assert (run.since("segment_unmap"), run.reserved) == ([("segment_unmap", 20 * MiB)], 22 * MiB)
    assert run.stat("segment.all.current") == 0


@pytest.mark.parametrize(("count", "size", "reserved"), [(5, 12, 60), (15, 2, 40)])
@pytest.mark.parametrize("settings", ["", "expandable_segments:True"])
def test_fact_25_where_expanding_saves_nothing(settings, count, size, reserved):
    run = Driver(settings)
    for _ in range(count):
        run.malloc(size * MiB)
    assert run.reserved == reserved * MiB


@pytest.mark.parametrize(
    ("settings", "reserved"), [("", [100 * MiB, 102 * MiB, 104 * MiB]), ("expandable_segments:True", [120 * MiB])]
)
def test_fact_26_sizes_that_grow_step_by_step(settings, reserved):
    run = Driver(settings)
    for size in (100, 101, 102, 103):
        run.cached(size * MiB)
    assert run.reserved == sum(reserved)
    assert run.stat("segment.all.current") == (len(reserved) if not settings else 0)


@pytest.mark.parametrize(("workspace", "segment"), [(8_519_680, 20 * MiB), (32 * MiB, 32 * MiB)])
def test_fact_38_a_cublas_workspace_is_a_block_like_any_other(workspace, segment):
    run = Driver()
    assert run.malloc(workspace).size == workspace
    assert run.segments == [segment]


def test_every_fact_has_a_test():
    names = "\n".join(each.read_text(encoding="utf-8") for each in Path(__file__).parent.glob("test_*.py"))
    numbers = {int(each) for each in re.findall(r"def test_fact_(\d+)_", names)}
    for first, last in re.findall(r"def test_facts_(\d+)_to_(\d+)_", names):
        numbers |= set(range(int(first), int(last) + 1))
    # 27 and 31, a MemPool's own allocator and checkpoints of a graph's pool, show in no recording.
    assert numbers == set(range(1, 39)) - {27, 31}
