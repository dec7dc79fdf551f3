"""Requests of a recording, who released its memory, and how much there was."""

import sys
from itertools import pairwise
from types import FrameType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memviz.allocator.blocks import AscendingAddresses, DeviceMemory, Platform
from memviz.allocator.recorded_replay import ensure_replayed
from memviz.allocator.recorded_requests import Memory, ReleaseCauses, ReplayStep, Steps, platform_of, steps_of
from memviz.allocator.replayer import Replayer
from memviz.allocator.settings import Settings, parse_settings
from memviz.allocator.start_layout import (
    AddressSpaces,
    StartBlock,
    StartLayout,
    StartSegment,
    address_spaces,
    ranges_by_group,
    start_layout,
)
from memviz.trace.model import Action, Trace
from tests.allocator.driver import GiB, MiB
from tests.allocator.recording import Recorder, ran_out
from tests.replays import replay
from tests.traces import alloc, block, event, frame, free, segment, trace_of

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


def test_a_free_that_completes_at_once_is_one_step_and_one_that_waits_is_two():
    assert names(steps(alloc(A, 512), free(A, 512))) == ["MALLOC", "FREE", "NOTHING"]
    found = steps(alloc(A, 512), event("free_requested", A, 512), alloc(B, 512), event("free_completed", A, 512))
    assert names(found) == ["MALLOC", "REQUEST_FREE", "MALLOC", "COMPLETE_FREE"]


def test_new_pages_belong_to_the_malloc_behind_them_or_stand_for_themselves():
    found = steps(event("segment_map", A, 20 * MiB), event("segment_map", A + 40 * MiB, 20 * MiB), alloc(A, 512))
    assert names(found) == ["NOTHING", "NOTHING", "MALLOC"]
    assert found.grown.tolist() == [0, 1, 2]
    found = steps(event("segment_map", A, 20 * MiB), event("oom", 0, 30 * MiB))
    assert names(found) == ["GROW", "OUT_OF_MEMORY"]


def test_memory_given_back_before_a_new_segment_was_the_allocators_doing():
    found = steps(gives_back(), takes(), alloc(B, 30 * MiB))
    assert (found.emptied, found.ladders, len(found.before_mallocs)) == ({}, {0: 2}, 1)


def test_another_stack_than_the_mallocs_says_that_the_program_called():
    mine, other = {"frames": [frame("step")]}, {"frames": [frame("empty_cache")]}
    assert not steps(gives_back(**other), takes(**mine), alloc(B, 30 * MiB, **mine)).before_mallocs
    assert len(steps(gives_back(**mine), takes(**mine), alloc(B, 30 * MiB, **mine)).before_mallocs) == 1
    # Of what a program frees, some may have been made where the next malloc stands.
    other = {"frames": [frame("load")]}
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


def layout_of(trace: Trace, settings: Settings | None = None) -> StartLayout:
    return start_layout(trace, trace.devices[0], settings or Settings())


def sizes(layout: StartLayout) -> list[tuple[int, int]]:
    return [(each.address, each.size) for each in layout.blocks]


def test_a_whole_history_starts_with_nothing():
    trace = trace_of([event("segment_alloc", A, 2 * MiB), alloc(A, 512)], [segment(A, 2 * MiB, [block(A, 512)])])
    assert layout_of(trace) == StartLayout(segments=(), unplaced=0)


def test_what_is_never_mentioned_was_there_all_along():
    trace = trace_of([], [segment(A, 20 * MiB, [block(A, 5 * MiB, 5 * MiB - 7)])])
    expected = StartBlock(A, 5 * MiB, 5 * MiB - 7, is_waiting=False, stack=-1, freed_at=0, size_is_exact=True)
    assert layout_of(trace).segments == (StartSegment(A, 20 * MiB, 0, (0, 0), False, False, (expected,)),)


def test_what_is_freed_first_was_there_before():
    trace = trace_of(free(A, 700), [segment(A, 2 * MiB, [])])
    expected = StartBlock(A, 1024, 700, is_waiting=False, stack=-1, freed_at=1, size_is_exact=False)
    assert layout_of(trace).blocks == (expected,)


def test_a_free_that_only_completes_was_waiting():
    trace = trace_of([event("free_completed", A, 512), free(A + 512, 512)], [segment(A, 2 * MiB, [])])
    assert [each.is_waiting for each in layout_of(trace).blocks] == [True, False]


def test_pages_mapped_since_are_taken_away_and_those_unmapped_put_back():
    trace = trace_of(
        [event("segment_unmap", A, 20 * MiB), event("segment_map", A + 40 * MiB, 20 * MiB), alloc(A + 40 * MiB, 512)],
        [segment(A + 20 * MiB, 40 * MiB, [block(A + 40 * MiB, 512)], is_expandable=True)],
    )
    assert layout_of(trace).segments == (StartSegment(A, 40 * MiB, 0, (0, 0), False, True),)


def test_a_gap_of_at_most_a_mebibyte_belonged_to_the_block_before_it():
    trace = trace_of(free(A, 19 * MiB), [segment(A, 20 * MiB, [])])
    assert sizes(layout_of(trace)) == [(A, 20 * MiB)]


def test_an_allocation_that_lands_in_a_larger_gap_while_the_block_lived_shows_where_it_began():
    rest = 983_040
    events = [alloc(A + 5 * MiB + rest, 2 * MiB), free(A, 5 * MiB)]
    trace = trace_of(events, [segment(A, 20 * MiB, [block(A + 5 * MiB + rest, 2 * MiB)])])
    assert sizes(layout_of(trace)) == [(A, 5 * MiB + rest)]
    events = [free(A, 5 * MiB), alloc(A + 5 * MiB + 983_040, 2 * MiB)]
    trace = trace_of(events, [segment(A, 20 * MiB, [block(A + 5 * MiB + 983_040, 2 * MiB)])])
    assert sizes(layout_of(trace)) == [(A, 5 * MiB)]


def test_where_an_allocation_did_not_go_tells_that_less_was_free():
    """7 MiB would fit best into the gap of 7.5 MiB, had it been free; it went to 20 MiB."""
    late = block(A + 25 * MiB // 2, 15 * MiB // 2)
    ends = [segment(A, 20 * MiB, [late]), segment(B, 20 * MiB, [block(B, 7 * MiB)])]
    result = replay(trace_of([alloc(B, 7 * MiB), free(A, 5 * MiB)], ends))
    assert result.exact


def test_an_oversize_block_is_a_whole_segment():
    trace = trace_of(free(A, 130 * MiB), [segment(A, 140 * MiB, [])])
    assert sizes(layout_of(trace, Settings(max_split_size=128 * MiB))) == [(A, 140 * MiB)]


def test_blocks_within_one_another_too():
    trace = trace_of([free(A, 4 * MiB), free(A + MiB, 4 * MiB)], [segment(A, 20 * MiB, [])])
    assert (layout_of(trace).unplaced, sizes(layout_of(trace))) == (1, [(A, 4 * MiB)])


def test_a_block_that_reaches_past_the_last_address_lies_in_no_segment():
    """Searched for, such an address was more than numpy takes."""
    high = 2**64 - 512
    trace = trace_of([*free(high, MiB), alloc(high, MiB), event("segment_free", high, 20 * MiB)])
    assert (layout_of(trace).blocks, layout_of(trace).unplaced) == ((), 1)


def mapped(address: int, size: int) -> dict:
    return segment(address, size, [block(address, size)], is_expandable=True)


def test_the_last_space_may_be_as_large_as_any_other():
    found = AddressSpaces({}, {A: GiB})
    assert (found.size(A, 80 * GiB), found.size(A + GiB, 80 * GiB), found.size(A, MiB)) == (GiB, GiB, MiB)


def found_one_by_one(trace: Trace, layout: StartLayout) -> AddressSpaces:
    """The same by looking at every space for every page."""
    spaces = {group: [[ranges[0].address, ranges[-1].end]] for group, ranges in ranges_by_group(layout).items()}
    at_start, events = list(spaces), trace.devices[0].events
    for row in np.flatnonzero(events.action == Action.SEGMENT_MAP).tolist():
        size, address = int(events.size[row]), int(events.address[row])
        group = int(events.stream[row]), trace.pools[events.pool[row]], size == 2 * MiB
        own = spaces.setdefault(group, [])
        inside = [space for space in own if space[0] <= address <= space[1]]
        if inside:
            inside[0][1] = max(inside[0][1], address + size)
        elif group in at_start and address < own[0][0]:
            if any(address <= begin < own[0][0] for each in spaces.values() for begin, _ in each):
                own.append([address, address + size])
            else:
                own[0][0] = address
        else:
            own.append([address, address + size])
    begins = sorted(begin for each in spaces.values() for begin, _ in each)
    sizes = {first: after - first for first, after in pairwise(begins)}
    return AddressSpaces({group: spaces[group][0][0] for group in at_start}, sizes)


pages = st.tuples(st.integers(0, 30), st.integers(1, 9), st.integers(0, 1))


@given(st.lists(pages, min_size=1, max_size=30), st.lists(pages, max_size=4))
def test_spaces_are_those_of_looking_at_each(events, ends) -> None:
    rows = [event("segment_map", A + 2 * MiB * at, 2 * MiB * size, stream=stream) for at, size, stream in events]
    there = [
        {**mapped(A + 2 * MiB * at, 2 * MiB * size), "stream": stream, "segment_type": "small"}
        for at, size, stream in ends
    ]
    trace = trace_of(rows, there)
    layout = start_layout(trace, trace.devices[0], Settings())
    assert address_spaces(trace, trace.devices[0], layout) == found_one_by_one(trace, layout)


def test_twice_as_many_spaces_are_about_twice_the_work() -> None:
    """A recording can begin a new one with every event. What counts is what Python does, line by line."""
    assert lines_run(800) < 3 * lines_run(400)


def lines_run(count: int) -> int:
    # Each begins below the one before it, and none touches another.
    rows = [event("segment_map", A - i * GiB, 20 * MiB) for i in range(count)]
    trace = trace_of(rows, [segment(A - 2000 * GiB, 2 * MiB, [])])
    device, lines = trace.devices[0], 0
    layout = start_layout(trace, device, Settings())

    def count_lines(frame: FrameType, happened: str, _: object) -> Any:
        nonlocal lines
        lines += happened == "line"
        return count_lines

    before = sys.gettrace()
    sys.settrace(count_lines)
    try:
        address_spaces(trace, device, layout)
    finally:
        sys.settrace(before)
    return lines
