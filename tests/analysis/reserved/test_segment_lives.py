from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memviz.analysis import segments as module
from memviz.analysis.lifetimes import lifetimes
from memviz.analysis.segments import segment_lives, segments_at
from memviz.errors import UsageError
from memviz.trace.model import Trace
from tests.analysis.reserved.test_segments import BASE, addresses, anything, simulations
from tests.real import each_real_file, read_once, requires_real
from tests.simulated_allocator import Allocator
from tests.traces import MiB, alloc, event, free, read, segment, trace_of


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
