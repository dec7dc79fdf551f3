"""Lifetimes of allocations in sound, late and contradictory files."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memviz.analysis.lifetimes import (
    Faults,
    _by_address,
    clock,
    event_at_time,
    lifetimes,
    live_rows,
    matched,
    time_of_event,
)
from memviz.errors import UsageError
from memviz.trace.model import DeviceTrace, Trace
from tests.analysis.replays import BEFORE, Replay, any_events, any_segments, sound_traces
from tests.real import each_real_file, read_once, requires_real
from tests.traces import alloc, block, event, free, segment, trace_of


def only_device(trace: Trace) -> DeviceTrace:
    assert len(trace.devices) == 1
    return trace.devices[0]


FREED_ALL = [segment(0, 1024, [])]
HELD = [segment(0x100, 512, [block(0x100, 512, 500)])]


@pytest.mark.parametrize(
    ("events", "segments", "spans", "faults"),
    [
        ([alloc(1, 10), free(1, 10)], [], [(0, 1, 2, 10)], {}),
        ([alloc(1, 10), alloc(2, 20)], [], [(0, 2, 2, 10), (1, 2, 2, 20)], {}),
        ([alloc(1, 10), free(1, 10), alloc(1, 30), free(1, 30)], [], [(0, 1, 2, 10), (3, 4, 5, 30)], {}),
        ([alloc(1, 10), free(7, 70)], [], [(BEFORE, 1, 2, 70), (0, 3, 3, 10)], {}),
        ([alloc(1, 10), free(1, 10)], HELD, [(BEFORE, 3, 3, 500), (0, 1, 2, 10)], {}),
        (
            [alloc(1, 10), event("free_requested", 1, 10), alloc(2, 20), event("free_completed", 1, 10)],
            [],
            [(0, 1, 3, 10), (2, 4, 4, 20)],
            {},
        ),
        (
            [event("free_completed", 1, 10), alloc(2, 20), event("free_requested", 2, 20)],
            [segment(0, 512, [block(2, 100, 20, "active_pending_free")])],
            [(BEFORE, BEFORE, 0, 10), (1, 2, 3, 20)],
            {},
        ),
        *(
            ([event("snapshot", 0, 0)], [segment(0x100, 512, [block(0x100, 512, 500, state)])], waits, {})
            for state in ("active_pending_free", "active_awaiting_free")
            for waits in [[(BEFORE, BEFORE, 1, 500)]]
        ),
        ([alloc(1, 10), event("free_completed", 1, 10)], [], [(0, 1, 1, 10)], {}),
        ([alloc(1, 10), event("free_requested", 1, 10)], FREED_ALL, [(0, 1, 1, 10)], {}),
        ([alloc(1, 10), free(1, 10), free(1, 10)], [], [(0, 1, 2, 10)], {"stray_frees": 1}),
        ([alloc(1, 10), alloc(1, 20)], [], [(0, 1, 1, 10), (1, 2, 2, 20)], {"implied_frees": 1}),
        (
            [alloc(1, 10), event("free_requested", 1, 10), alloc(2, 5), alloc(1, 20)],
            [],
            [(0, 1, 1, 10), (2, 4, 4, 5), (3, 4, 4, 20)],
            {"implied_frees": 1},
        ),
        ([alloc(1, 10)], FREED_ALL, [(0, 1, 1, 10)], {"lost_blocks": 1, "lost_bytes": 10}),
        ([], HELD, [(BEFORE, 0, 0, 500)], {}),
    ],
    ids=[
        *("a free ends when it is complete", "never freed", "an address used again", "freed without an alloc"),
        *("a final block without events", "a free delayed by another stream", "requested before the first event"),
        *("pending at the end", "awaiting at the end", "no free_requested events", "no free_completed events"),
        *("a second free", "an address handed out twice", "an implied free that was requested", "lost", "no events"),
    ],
)
def test_each_row_has_its_start_its_request_to_free_its_end_and_bytes(events, segments, spans, faults):
    device = only_device(trace_of(events, segments))
    rows = lifetimes(device)
    columns = (rows.start, rows.free_requested, rows.end, rows.size)
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == spans
    assert matched(device).faults == Faults(**faults)


def test_an_allocation_takes_its_stack_from_the_final_block_where_its_event_has_none():
    frames = [{"name": "f", "filename": "train.py", "line": 1}]
    trace = trace_of([alloc(1, 10)], [segment(0, 512, [block(1, 100, 10, frames=frames)])])
    rows = lifetimes(only_device(trace))
    assert (rows.stack.tolist(), rows.block.tolist()) == ([0], [1])


def as_replayed(replay: Replay) -> list[tuple[int, ...]]:
    return sorted((life.start, life.requested, life.end, life.size, life.address) for life in replay.lives)


def as_matched(device: DeviceTrace) -> list[tuple[int, ...]]:
    rows = lifetimes(device)
    columns = (rows.start, rows.free_requested, rows.end, rows.size, rows.address)
    return sorted(zip(*(column.tolist() for column in columns), strict=True))


@given(any_events(), any_segments())
def test_any_file_is_matched_as_a_plain_replay_matches_it(events, segments):
    if not events and not segments:
        return
    device = only_device(trace_of(events, segments))
    replay = Replay(device).run()
    assert as_matched(device) == as_replayed(replay)
    found = matched(device).faults
    assert (found.stray_frees, found.implied_frees) == (replay.stray_frees, replay.implied_frees)
    assert (found.lost_blocks, found.lost_bytes) == (replay.lost_blocks, replay.lost_bytes)


@given(sound_traces())
def test_a_sound_trace_has_no_faults(trace):
    assert not matched(only_device(trace)).faults


@given(sound_traces())
def test_rows_are_by_start_then_address(trace):
    rows = lifetimes(only_device(trace))
    assert np.array_equal(np.lexsort((rows.address, rows.start)), np.arange(len(rows)))


@requires_real
@each_real_file
def test_real_files_match_the_plain_replay(path):
    for device in read_once(path).devices:
        assert as_matched(device) == as_replayed(Replay(device).run())


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 9).map(lambda n: n << 9), max_size=40))
def test_addresses_are_ordered_stably_however_far_apart(addresses):
    column = np.array(addresses, dtype=np.int64)
    order, begins = _by_address(column)
    assert order.tolist() == np.argsort(column, kind="stable").tolist()
    ordered = sorted(addresses)
    assert begins.tolist() == [i == 0 or ordered[i] != ordered[i - 1] for i in range(len(ordered))]


def device_of(*events) -> DeviceTrace:
    return trace_of(list(events)).devices[0]


@given(sound_traces())
def test_live_rows_are_those_a_loop_finds(trace):
    device, rows = trace.devices[0], lifetimes(trace.devices[0])
    for e in range(-1, len(device.events)):
        expected = [i for i in range(len(rows)) if rows.start[i] <= e < rows.end[i]]
        assert live_rows(device, e).tolist() == expected


@pytest.mark.parametrize("number", [-2, 3])
def test_an_event_that_does_not_exist_is_refused_with_those_that_do(number):
    with pytest.raises(UsageError, match=f"no event {number}. Its events: from 0 to 2"):
        live_rows(device_of(alloc(1, 10), free(1, 10)), number)


def test_a_moment_is_the_last_event_not_later():
    device = device_of(*(alloc(i, 1, time_us=time) for i, time in enumerate([10, 20, 20, 30])))
    assert [event_at_time(device, t) for t in (9, 10, 19, 20, 29, 30, 99)] == [-1, 0, 0, 2, 2, 3, 3]


def test_times_that_run_backwards_count_as_the_latest_so_far():
    device = device_of(*(alloc(i, 1, time_us=time) for i, time in enumerate([10, 30, 20, 40])))
    assert clock(device).tolist() == [10, 30, 30, 40]
    assert event_at_time(device, 25) == 0


def test_without_times_a_question_by_time_is_refused():
    with pytest.raises(UsageError, match="have no times. Give an event"):
        event_at_time(device_of(alloc(1, 10)), 5)


def test_the_time_of_an_event_is_as_recorded_or_unknown():
    timed, untimed = device_of(event("alloc", 1, 1, time_us=7)), device_of(alloc(1, 1))
    assert [time_of_event(timed, 0), time_of_event(timed, -1), time_of_event(untimed, 0)] == [7, None, None]
