"""Requests of a recording, who released its memory, and how much there was."""

from typing import Any

import pytest

from memviz.allocator.blocks import AscendingAddresses, DeviceMemory, Platform
from memviz.allocator.recorded_replay import ensure_replayed
from memviz.allocator.recorded_requests import Memory, ReleaseCauses, ReplayStep, Steps, platform_of, steps_of
from memviz.allocator.replayer import Replayer
from memviz.allocator.settings import parse_settings
from tests.allocator.driver import MiB
from tests.allocator.recording import Recorder, ran_out
from tests.traces import alloc, event, frame, free, trace_of

A, B = 0x7F1200000000, 0x7F3400000000


def steps(*events) -> Steps:
    trace = trace_of([*events])
    return steps_of(trace, trace.devices[0])


def names(found: Steps) -> list[str]:
    return [ReplayStep(step).name for step in found.step.tolist()]


def gives_back(address: int = A, **more) -> dict:
    return event("segment_free", address, 20 * MiB, **more)


def takes(address: int = B, **more) -> dict:
    return event("segment_alloc", address, 30 * MiB, **more)


def test_a_free_that_completes_at_once_is_one_step():
    assert names(steps(alloc(A, 512), free(A, 512))) == ["MALLOC", "FREE", "NOTHING"]


def test_one_that_waits_is_two():
    found = steps(alloc(A, 512), event("free_requested", A, 512), alloc(B, 512), event("free_completed", A, 512))
    assert names(found) == ["MALLOC", "REQUEST_FREE", "MALLOC", "COMPLETE_FREE"]


def test_new_pages_belong_to_the_malloc_behind_them():
    found = steps(event("segment_map", A, 20 * MiB), event("segment_map", A + 40 * MiB, 20 * MiB), alloc(A, 512))
    assert names(found) == ["NOTHING", "NOTHING", "MALLOC"]
    assert found.grown.tolist() == [0, 1, 2]


def test_pages_that_no_malloc_follows_stand_for_themselves():
    found = steps(event("segment_map", A, 20 * MiB), event("oom", 0, 30 * MiB))
    assert names(found) == ["GROW", "OUT_OF_MEMORY"]


def test_memory_given_back_before_a_new_segment_was_the_allocators_doing():
    found = steps(gives_back(), takes(), alloc(B, 30 * MiB))
    assert (found.emptied, found.ladders, len(found.before_mallocs)) == ({}, {0: 2}, 1)


def test_another_stack_than_the_mallocs_says_that_the_program_called():
    mine, other = {"frames": [frame("step")]}, {"frames": [frame("empty_cache")]}
    assert not steps(gives_back(**other), takes(**mine), alloc(B, 30 * MiB, **mine)).before_mallocs
    assert len(steps(gives_back(**mine), takes(**mine), alloc(B, 30 * MiB, **mine)).before_mallocs) == 1


def test_of_what_a_program_frees_some_may_have_been_made_where_the_next_malloc_stands():
    mine, other = {"frames": [frame("step")]}, {"frames": [frame("load")]}
    found = steps(gives_back(A, **mine), gives_back(A + MiB, **other), takes(**mine), alloc(B, 30 * MiB, **mine))
    assert (list(found.emptied), found.before_mallocs) == ([0], ())


def test_frees_that_complete_in_between_belong_to_the_ladder():
    found = steps(
        alloc(A, 512),
        event("free_requested", A, 512),
        alloc(B, 512),
        event("free_completed", A, 512),
        gives_back(),
        takes(),
        alloc(B + MiB, 30 * MiB),
    )
    assert found.ladders == {3: 6}


def test_a_free_right_before_it_may_have_been_waited_for():
    found = steps(alloc(A, 512), free(A, 512), gives_back(), takes(), alloc(B, 30 * MiB))
    assert found.ladders == {2: 5}
    assert names(found)[1:3] == ["REQUEST_FREE", "COMPLETE_FREE"]


def test_running_out_counts_as_a_retry_and_ends_its_ladder():
    found = steps(gives_back(), event("oom", 0, 30 * MiB), alloc(B, 512))
    assert (len(found.before_mallocs), found.ladders, found.emptied) == (1, {}, {})


EXPANDABLE = parse_settings("expandable_segments:True")


class Unframed(Recorder):
    """A recording with context="state": its history has no stacks."""

    def snapshot(self, last: int | None = None) -> dict[str, Any]:
        found = super().snapshot(last)
        for row in found["device_traces"][0]:
            row.pop("frames", None)
        return found


def looped(run: Recorder, sizes: tuple[int, ...], *, empties: bool = False) -> Recorder:
    held = run.malloc(20 * MiB)
    for size in sizes:
        run.line = 1
        run.cached(size * MiB)
        if empties:
            run.line = 2
            run.allocator.empty_cache()
    run.free(held)
    return run


def freed(run: Recorder) -> ReleaseCauses:
    return ensure_replayed(Replayer(run.trace())).releases


SIZES = (30, 50, 40, 60, 40, 30, 50)


@pytest.mark.parametrize("kind", [Recorder, Unframed])
def test_a_program_that_empties_its_cache_did_so_where_memory_was_not_short(kind: type[Recorder]) -> None:
    found = freed(looped(kind(), (60, *SIZES, 60, 20), empties=True))
    assert (found.was_short, found.memory, found.retries) == (False, None, 0)
    assert len(found.emptied) == 10


def test_what_is_cached_and_would_have_served_shows_that_the_program_freed_it() -> None:
    """30 MiB are cached, 30 are asked for, and a new segment is made: at another time no more was reserved."""
    run = looped(Unframed(), (30, 30, 30), empties=True)
    found = freed(run)
    assert (len(found.emptied), found.retries) == (3, 0)
    assert Replayer(run.trace()).figures(EXPANDABLE).peak_reserved_bytes == 60 * MiB


@pytest.mark.parametrize("kind", [Recorder, Unframed])
def test_a_card_that_was_short_bounds_what_the_process_had(kind: type[Recorder]) -> None:
    found = freed(looped(kind(card=100 * MiB), SIZES))
    assert (len(found.short), found.retries, found.memory) == (1, 1, Memory(100 * MiB, 160 * MiB - 1))


def test_a_recording_that_ran_out_says_what_it_had() -> None:
    assert freed(ran_out()).memory == Memory(100 * MiB, 100 * MiB)


def test_stacks_of_the_malloc_say_that_memory_was_short_whatever_was_reserved_before() -> None:
    """Other processes may have taken memory in between; then nothing is said of how much there was."""
    run = Recorder(card=200 * MiB)
    for size in (90, 100):
        run.cached(size * MiB)
    run.line = 2
    run.allocator.empty_cache()
    run.line = 1
    run.allocator.device.memory = 100 * MiB
    run.cached(60 * MiB)
    run.malloc(80 * MiB)
    found = freed(run)
    assert (len(found.emptied), found.retries, found.memory) == (1, 1, None)


@pytest.mark.parametrize("platform", ["linux", "windows"])
def test_the_platform_is_told_by_the_order_of_segments(platform: Platform) -> None:
    run = Recorder(platform=platform)
    for size in (20, 2, 20, 0.5, 40, 20, 70, 40):
        run.malloc(size * MiB)
    assert platform_of(run.trace().devices[0]) == platform


@pytest.mark.parametrize(("address", "platform"), [(0x7F0000000000, "linux"), (0x500000000, "windows")])
def test_without_events_of_segments_their_addresses_tell_the_platform(address: int, platform: Platform) -> None:
    run = Recorder()
    run.allocator.device = DeviceMemory(addresses=AscendingAddresses(address))
    run.malloc(20 * MiB)
    run.malloc(2 * MiB)
    assert platform_of(run.trace(1).devices[0]) == platform
