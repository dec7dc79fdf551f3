from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memviz.analysis import segments as module
from memviz.analysis.lifetimes import lifetimes
from memviz.analysis.segments import (
    Fragmentation,
    SegmentsAt,
    TileKind,
    fragmentation_at,
    fragmentation_over,
    segment_lives,
    segments_at,
)
from memviz.analysis.timeline import timeline
from memviz.errors import UsageError
from memviz.trace.model import DeviceTrace, State, Trace
from memviz.trace.reserved import NO_DIVISIONS
from tests.real import each_real_file, read_once, requires_real
from tests.simulated_allocator import Allocator
from tests.traces import MiB, alloc, block, event, free, read, segment, trace_of

BASE = 0x7000_0000_0000
NAMES = {TileKind.FREE: "free", TileKind.LIVE: "live", TileKind.WAITING: "waiting"}


def tiles(trace: Trace, event: int) -> list[tuple[Any, ...]]:
    """(address, size, kind, requested) with addresses from BASE on, for the first device."""
    found = segments_at(trace, trace.devices[0], event).tiles
    columns = (found.address - BASE, found.size, found.kind, found.requested)
    return [(a, size, NAMES[TileKind(kind)], requested) for a, size, kind, requested in _rows(*columns)]


def segments(trace: Trace, event: int) -> list[tuple[Any, ...]]:
    """(address, size, stream, pool, large, expandable) as a simulated allocator writes them."""
    found = segments_at(trace, trace.devices[0], event).segments
    columns = (found.address, found.size, found.stream, found.pool, found.is_large, found.is_expandable)
    return [(a, size, trace.streams[s], trace.pools[p], large, exp) for a, size, s, p, large, exp in _rows(*columns)]


def _rows(*columns: Any) -> list[tuple[Any, ...]]:
    return list(zip(*(column.tolist() for column in columns), strict=True))


def as_in_the_file(device: DeviceTrace, moment: SegmentsAt) -> bool:
    blocks, found = device.blocks, moment.tiles
    waits = np.where(blocks.state == State.ACTIVE_ALLOCATED, TileKind.LIVE, TileKind.WAITING)
    kind = np.where(blocks.state == State.INACTIVE, TileKind.FREE, waits)
    pairs = [(found.segment, blocks.segment), (found.address, blocks.address), (found.size, blocks.size)]
    pairs += [(found.kind, kind), (found.requested, blocks.requested)]
    return moment.segments == device.segments and all(np.array_equal(mine, theirs) for mine, theirs in pairs)


# One small segment; two tensors; the first is freed.
SMALL = trace_of(
    [event("segment_alloc", BASE, 2 * MiB), alloc(BASE, 1000), alloc(BASE + 1024, 600), free(BASE, 1000)],
    [segment(BASE, 2 * MiB, [block(BASE + 1024, 1024, 600)])],
)


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (-1, []),
        (0, [(0, 2 * MiB, "free", 0)]),
        (1, [(0, 1024, "live", 1000), (1024, 2 * MiB - 1024, "free", 0)]),
        (2, [(0, 1024, "live", 1000), (1024, 1024, "live", 600), (2048, 2 * MiB - 2048, "free", 0)]),
        (3, [(0, 1024, "waiting", 1000), (1024, 1024, "live", 600), (2048, 2 * MiB - 2048, "free", 0)]),
        (4, [(0, 1024, "free", 0), (1024, 1024, "live", 600), (2048, 2 * MiB - 2048, "free", 0)]),
    ],
)
def test_the_map_follows_the_events(after: int, expected: list[tuple[Any, ...]]) -> None:
    assert tiles(SMALL, after) == expected


def test_each_block_names_its_allocation_and_an_event_that_does_not_exist_is_refused() -> None:
    moment = segments_at(SMALL, SMALL.devices[0], 2)
    assert lifetimes(SMALL.devices[0]).size[moment.tiles.row[:2]].tolist() == [1000, 600]
    assert moment.tiles.row[2] == -1
    for number in (-2, 5):
        with pytest.raises(UsageError, match="Device 0 has no event"):
            segments_at(SMALL, SMALL.devices[0], number)


def test_a_segment_that_was_freed_is_known_from_its_free() -> None:
    gone = event("segment_free", BASE, 20 * MiB, stream=7, pool_id=(0, 3))
    trace = trace_of([alloc(BASE, 4 * MiB), free(BASE, 4 * MiB), gone])
    assert segments(trace, 0) == [(BASE, 20 * MiB, 7, (0, 3), True, False)]
    assert segments(trace, 3) == []


def test_neighbouring_segments_stay_apart() -> None:
    two = [event("segment_alloc", BASE, 2 * MiB), event("segment_alloc", BASE + 2 * MiB, 2 * MiB)]
    undo = [event("segment_free", BASE, 2 * MiB), event("segment_free", BASE + 2 * MiB, 2 * MiB)]
    assert [row[1] for row in segments(trace_of([*two, *undo, alloc(1, 1)]), 1)] == [2 * MiB, 2 * MiB]


def test_an_address_can_be_a_small_and_later_a_large_segment() -> None:
    small = [event("segment_alloc", BASE, 2 * MiB), event("segment_free", BASE, 2 * MiB)]
    large = [event("segment_alloc", BASE, 20 * MiB), event("segment_free", BASE, 20 * MiB)]
    trace = trace_of([*small, *large])
    assert [[row[1] for row in segments(trace, at)] for at in range(-1, 4)] == [[], [2 * MiB], [], [20 * MiB], []]


def test_mapped_pages_of_one_stream_are_one_segment() -> None:
    maps = [event("segment_map", BASE + at * 20 * MiB, 20 * MiB, frames=[]) for at in range(3)]
    unmap = event("segment_unmap", BASE + 20 * MiB, 20 * MiB)
    left = [segment(low, 20 * MiB, [], is_expandable=True) for low in (BASE, BASE + 40 * MiB)]
    trace = trace_of([*maps, unmap], left)
    assert [[row[1] // MiB for row in segments(trace, at)] for at in range(4)] == [[20], [40], [60], [20, 20]]


@pytest.mark.parametrize(("gap", "own"), [(MiB, True), (MiB + 512, False)])
def test_the_large_pool_does_not_split_off_a_megabyte(gap: int, own: bool) -> None:
    size = 20 * MiB - gap
    # The free memory at the end does not show how large the block was.
    events = [event("segment_alloc", BASE, 20 * MiB), alloc(BASE, size), free(BASE, size)]
    trace = trace_of(events, [segment(BASE, 20 * MiB, [])])
    assert tiles(trace, 1)[0][1] == (20 * MiB if own else size)


def test_slack_stays_with_a_block_when_its_neighbour_is_freed() -> None:
    first, second = 6 * MiB, 7 * MiB
    events = [
        event("segment_alloc", BASE, 20 * MiB),
        alloc(BASE, first + MiB),
        alloc(BASE + first + MiB, second),
        free(BASE, first + MiB),
        alloc(BASE, first + 1000),
        free(BASE + first + MiB, second),
        free(BASE, first + 1000),
    ]
    trace = trace_of(events, [segment(BASE, 20 * MiB, [])])
    assert tiles(trace, 7) == [(0, 7 * MiB, "live", first + 1000), (7 * MiB, 13 * MiB, "free", 0)]


def test_an_oversize_block_is_its_whole_segment() -> None:
    events = [event("segment_alloc", BASE, 80 * MiB), alloc(BASE, 70 * MiB), free(BASE, 70 * MiB)]
    limited = trace_of(events, [segment(BASE, 80 * MiB, [])], allocator_settings={"max_split_size": 64 * MiB})
    assert tiles(limited, 1) == [(0, 80 * MiB, "live", 70 * MiB)]


def test_allocations_laid_over_each_other_are_cut_and_counted() -> None:
    trace = trace_of([alloc(BASE, 4096), alloc(BASE + 1024, 512), alloc(1, 1)], [segment(BASE, 2 * MiB, [])])
    assert tiles(trace, 1)[:2] == [(0, 1024, "live", 1024), (1024, 512, "live", 512)]
    assert segments_at(trace, trace.devices[0], 1).outside_bytes == 4096 - 1024


def test_addresses_above_the_middle_are_in_order() -> None:
    high = 2**64 - 4 * MiB
    trace = trace_of([], [segment(BASE, 2 * MiB, []), segment(high, 2 * MiB, [block(high, 512)])])
    moment = segments_at(trace, trace.devices[0], -1)
    assert [int(a) & (2**64 - 1) for a in moment.tiles.address] == [BASE, high, high + 512]
    assert as_in_the_file(trace.devices[0], moment)


sizes = st.one_of(
    st.integers(1, 5000),
    st.integers(1, MiB),
    st.integers(MiB, 12 * MiB),
    st.integers(98 * MiB, 101 * MiB),
    st.sampled_from([MiB, MiB + 1, 10 * MiB - 512, 10 * MiB, 20 * MiB, 64 * MiB]),
)
steps = st.one_of(
    st.tuples(st.just("malloc"), sizes, st.sampled_from([0, 0, 7]), st.sampled_from([(0, 0), (0, 0), (0, 1)])),
    st.tuples(st.just("free"), st.integers(0, 99), st.booleans()),
    st.tuples(st.just("complete")),
    st.tuples(st.just("empty_cache")),
)


@st.composite
def simulations(draw: st.DrawFn) -> Allocator:
    allocator = Allocator(
        expandable=draw(st.booleans()),
        max_split=draw(st.sampled_from([None, None, 20 * MiB, 64 * MiB])),
        divisions=draw(st.sampled_from([NO_DIVISIONS, (4,) * 16])),
    )
    live: list[int] = []
    waiting: list[int] = []
    for name, *more in draw(st.lists(steps, min_size=1, max_size=40)):
        if name == "malloc":
            live.append(allocator.malloc(*more))
        elif name == "free" and live:
            address, later = live.pop(more[0] % len(live)), more[1]
            allocator.free(address, later=later)
            waiting += [address] if later else []
        elif name == "complete" and waiting:
            allocator.complete(waiting.pop(0))
        elif name == "empty_cache":
            allocator.empty_cache()
    return allocator


@given(simulations())
def test_a_complete_history_gives_the_allocators_own_map_at_every_event(allocator: Allocator) -> None:
    if not allocator.events:
        return
    trace = read(allocator.snapshot())
    for at, truth in enumerate(allocator.truth, start=-1):
        assert segments(trace, at) == truth.segments
        assert [(a + BASE, *more) for a, *more in tiles(trace, at)] == truth.tiles


@given(simulations(), st.integers(0, 10_000))
def test_a_late_history_adds_up_at_every_event(allocator: Allocator, cut: int) -> None:
    drop = cut % (len(allocator.events) + 1)
    root = allocator.snapshot(drop)
    if not (root["segments"] or root["device_traces"][0]):
        return
    trace = read(root)
    reserved = timeline(trace.devices[0]).reserved
    for at in range(-1, len(allocator.events) - drop):
        moment, truth = segments_at(trace, trace.devices[0], at), allocator.truth[drop + at + 1]
        assert moment.tiles.size.sum() == moment.reserved_bytes == reserved[at + 1]
        assert moment.outside_bytes == 0
        placed = [(a + BASE, requested) for a, _, _, requested in tiles(trace, at) if requested]
        assert placed == [(a, requested) for a, _, _, requested in truth.tiles if requested]


addresses = st.sampled_from([BASE, BASE + 512, BASE + 1024, BASE + 2 * MiB, 2**63 - 512, 2**64 - 512, 0])
anything = st.builds(
    event,
    st.sampled_from(["alloc", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap"]),
    addresses,
    st.sampled_from([0, 1, 512, 1024, 2 * MiB, 20 * MiB, 2**58]),
)


@given(st.lists(anything, min_size=1, max_size=12), st.lists(st.tuples(addresses, st.integers(0, 4 * MiB)), max_size=3))
def test_contradictory_files_are_still_tiled_to_the_byte(events: list[Any], held: list[tuple[int, int]]) -> None:
    trace = trace_of(events, [segment(low, size, []) for low, size in held])
    device = trace.devices[0]
    for at in range(-1, len(events)):
        moment = segments_at(trace, device, at)
        summed = np.zeros(len(moment.segments), dtype=np.int64)
        np.add.at(summed, moment.tiles.segment, moment.tiles.size)
        assert summed.tolist() == moment.segments.size.tolist()
        assert moment.tiles.requested.sum() + moment.outside_bytes == timeline(device).live[at + 1]


@requires_real
@each_real_file
def test_real_files_end_in_their_own_blocks_and_add_up_before(path: Any) -> None:
    trace = read_once(path)
    for device in trace.devices:
        last = len(device.events) - 1
        assert as_in_the_file(device, segments_at(trace, device, last))
        reserved = timeline(device).reserved
        for at in np.unique(np.linspace(-1, last, 60).astype(int)).tolist():
            moment = segments_at(trace, device, at)
            assert (moment.tiles.size.sum(), moment.outside_bytes) == (reserved[at + 1], 0)


def lives(trace: Trace) -> list[tuple[Any, ...]]:
    """(start, end, offset, size, share in use, bytes of what held it longest)"""
    device = trace.devices[0]
    found, sizes = segment_lives(device), [*lifetimes(device).size.tolist(), None]
    columns = (found.start, found.end, found.address - BASE, found.size, found.used.round(4))
    held = [sizes[row] for row in found.longest.tolist()]
    return list(zip(*(column.tolist() for column in columns), held, strict=True))


def add_up(trace: Trace, events: range) -> None:
    device = trace.devices[0]
    found = segment_lives(device)
    for at in events:
        held = int(found.size[(found.start <= at) & (found.end > at)].sum())
        assert held == segments_at(trace, device, at).reserved_bytes


def test_each_segment_says_how_full_it_was_and_who_held_it():
    trace = trace_of(
        [
            event("segment_alloc", BASE, 20 * MiB),
            alloc(BASE, 10 * MiB),
            alloc(BASE + 10 * MiB, 2 * MiB),
            free(BASE, 10 * MiB),
            event("segment_alloc", BASE + 20 * MiB, 4 * MiB),
            event("segment_free", BASE + 20 * MiB, 4 * MiB),
            alloc(BASE, MiB),
            alloc(BASE + MiB, MiB),
        ],
        [segment(BASE, 20 * MiB, [])],
    )
    # Of 9 events 10 MiB for 3, 2 MiB for 7, 1 MiB for 2 and for 1.
    used = (10 * 3 + 2 * 7 + 2 + 1) / (20 * 9)
    assert lives(trace) == [(0, 9, 0, 20 * MiB, round(used, 4), 2 * MiB), (5, 6, 20 * MiB, 4 * MiB, 0.0, None)]


def test_what_was_there_before_and_an_address_that_is_taken_again():
    gone, taken = event("segment_free", BASE, 2 * MiB), event("segment_alloc", BASE, 20 * MiB)
    trace = trace_of([free(BASE, 2 * MiB), gone, taken], [segment(BASE, 20 * MiB, [])])
    assert lives(trace) == [(-1, 2, 0, 2 * MiB, 0.6667, 2 * MiB), (3, 4, 0, 20 * MiB, 0.0, None)]


def test_neighbours_that_come_and_go_at_other_times_stay_apart_and_mapped_pages_are_used_in_part():
    pages = [event("segment_map", BASE + at * 2 * MiB, 2 * MiB) for at in (0, 1)]
    trace = trace_of([*pages, alloc(BASE, 3 * MiB), event("segment_unmap", BASE + 2 * MiB, 2 * MiB)])
    assert [row[:4] for row in lives(trace)] == [(1, 3, 2 * MiB, 2 * MiB)]
    trace = trace_of([*pages, alloc(BASE, 3 * MiB)], [segment(BASE, 4 * MiB, [], is_expandable=True)])
    assert lives(trace) == [(0, 3, 0, 2 * MiB, 0.3333, 3 * MiB), (1, 3, 2 * MiB, 2 * MiB, 0.25, 3 * MiB)]


@given(simulations(), st.integers(0, 10_000))
def test_at_every_event_they_add_up_to_what_is_reserved(allocator: Allocator, cut: int) -> None:
    drop = cut % (len(allocator.events) + 1)
    root = allocator.snapshot(drop)
    if root["segments"] or root["device_traces"][0]:
        trace = read(root)
        add_up(trace, range(-1, len(allocator.events) - drop))
        used = segment_lives(trace.devices[0]).used
        assert ((used >= 0) & (used <= 1 + 1e-9)).all()


@given(st.lists(anything, min_size=1, max_size=12), st.lists(st.tuples(addresses, st.integers(0, 4 * MiB)), max_size=3))
def test_contradictory_files_too(events: list[Any], held: list[tuple[int, int]]) -> None:
    trace = trace_of(events, [segment(low, size, []) for low, size in held])
    add_up(trace, range(-1, len(events)))


def test_a_file_whose_segments_overlap_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_PIECES", 100)
    overlapping = [event("segment_alloc", BASE + at * MiB, 200 * MiB) for at in range(20)]
    with pytest.raises(UsageError, match="overlap too much"):
        segment_lives(trace_of(overlapping).devices[0])


@requires_real
@each_real_file
def test_real_files_add_up(path: Any) -> None:
    trace = read_once(path)
    last = len(trace.devices[0].events) - 1
    for at in np.unique(np.linspace(-1, last, 30).astype(int)).tolist():
        add_up(trace, range(at, at + 1))


# A large segment half in use, one that is wholly free, and an expandable one with a hole.
MIXED = read(
    [
        segment(
            BASE,
            20 * MiB,
            [block(BASE, 8 * MiB, 7 * MiB), block(BASE + 10 * MiB, 2 * MiB, None, "active_pending_free")],
        ),
        segment(2 * BASE, 12 * MiB, []),
        segment(3 * BASE, 40 * MiB, [block(3 * BASE, 15 * MiB)], is_expandable=True),
    ]
)


def check_sum(figures: Fragmentation, reserved: int) -> None:
    parts = figures.live + figures.waiting + figures.cached + figures.rounding
    assert parts == figures.reserved == reserved
    assert (figures.unknown, figures.outside) == (0, 0)


def test_each_byte_has_one_name() -> None:
    assert fragmentation_at(MIXED, MIXED.devices[0], -1) == Fragmentation(
        event=-1,
        reserved=72 * MiB,
        live=22 * MiB,
        waiting=2 * MiB,
        rounding=1 * MiB,
        free_segments=12 * MiB,
        free_remainders=10 * MiB,
        free_pages=25 * MiB,
        unknown=0,
        outside=0,
    )


def test_a_segment_that_cannot_be_placed_is_named_unknown() -> None:
    # Both segments claim the same addresses.
    trace = read([segment(BASE, 2 * MiB, []), segment(BASE, 2 * MiB, [])])
    figures = fragmentation_at(trace, trace.devices[0], -1)
    assert (figures.reserved, figures.free_segments, figures.unknown) == (4 * MiB, 2 * MiB, 2 * MiB)


def test_live_bytes_without_a_segment_are_outside() -> None:
    trace = trace_of([alloc(BASE, 1000)])
    figures = fragmentation_at(trace, trace.devices[0], 0)
    assert (figures.reserved, figures.live, figures.outside) == (0, 0, 1000)


@pytest.mark.parametrize("expandable", [False, True])
def test_figures_add_up_to_reserved_at_every_event(expandable: bool) -> None:
    allocator = Allocator(expandable=expandable)
    sizes = [700, 3 * MiB, 25 * MiB, 1_000_000, 11 * MiB]
    held = [allocator.malloc(size, stream) for stream in (0, 7) for size in sizes]
    for address in held[::2]:
        allocator.free(address, later=address == held[2])
    allocator.empty_cache()
    trace = read(allocator.snapshot())
    device = trace.devices[0]
    for figures in fragmentation_over(trace, device, range(-1, len(device.events))):
        check_sum(figures, timeline(device).reserved[figures.event + 1])


@requires_real
@each_real_file
def test_figures_of_real_files_add_up(path: Path) -> None:
    trace = read_once(path)
    for device in trace.devices:
        for figures in fragmentation_over(trace, device, np.linspace(-1, len(device.events) - 1, 12).astype(int)):
            check_sum(figures, timeline(device).reserved[figures.event + 1])
            assert figures.live + figures.waiting == timeline(device).live[figures.event + 1]
