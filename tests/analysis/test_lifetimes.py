"""Lifetimes of allocations in sound, late and contradictory files."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memviz.analysis.allocations import Allocation, BlockKnown, Span, allocation
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
from memviz.analysis.peak import (
    EventState,
    EventSummary,
    RangeSummary,
    Total,
    event_state,
    failed_request,
    summarize_range,
)
from memviz.analysis.purpose.reasons import Certainty, Reason
from memviz.analysis.segments import fragmentation_at
from memviz.analysis.timeline import timeline
from memviz.errors import UsageError
from memviz.trace.model import NO_STACK, Category, DeviceTrace, Labels, Phase, Trace
from tests.analysis.replays import BEFORE, Replay, any_events, any_segments, sound_traces
from tests.real import each_real_file, read_once, requires_real
from tests.traces import MiB, alloc, block, device_of, event, frame, free, ranges, segment, trace_of

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
    device = trace_of(events, segments).devices[0]
    rows = lifetimes(device)
    columns = (rows.start, rows.free_requested, rows.end, rows.size)
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == spans
    assert matched(device).faults == Faults(**faults)


def test_an_allocation_takes_its_stack_from_the_final_block_where_its_event_has_none():
    frames = [{"name": "f", "filename": "train.py", "line": 1}]
    trace = trace_of([alloc(1, 10)], [segment(0, 512, [block(1, 100, 10, frames=frames)])])
    rows = lifetimes(trace.devices[0])
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
    device = trace_of(events, segments).devices[0]
    replay = Replay(device).run()
    assert as_matched(device) == as_replayed(replay)
    found = matched(device).faults
    assert (found.stray_frees, found.implied_frees) == (replay.stray_frees, replay.implied_frees)
    assert (found.lost_blocks, found.lost_bytes) == (replay.lost_blocks, replay.lost_bytes)


@given(sound_traces())
def test_a_sound_trace_has_no_faults(trace):
    assert not matched(trace.devices[0]).faults


@given(sound_traces())
def test_rows_are_by_start_then_address(trace):
    rows = lifetimes(trace.devices[0])
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


MODEL = frame("forward", "/p/model.py", 3)


def test_an_event_is_told_with_its_neighbours_and_the_bytes_after_it():
    events = [alloc(0, 512, frames=[MODEL], time_us=10), alloc(1024, 512, time_us=30), *free(0, 512, time_us=40)]
    trace = trace_of(events, segments=[segment(0, 2 * MiB, [block(1024, 512)])])
    assert event_state(trace, trace.devices[0], 1, around=1) == EventState(
        event=1,
        microseconds=20,
        count=2,
        bytes=fragmentation_at(trace, trace.devices[0], 1),
        largest_free=2 * MiB - 1536,
        annotation="",
        around=(
            EventSummary(0, "alloc", 512, "model.py:3 forward"),
            EventSummary(1, "alloc", 512, ""),
            EventSummary(2, "free_requested", 512, ""),
        ),
        failed=None,
    )


def test_before_the_first_event_there_is_a_moment_too():
    trace = trace_of([alloc(0, 512)])
    found = event_state(trace, trace.devices[0], -1)
    assert (found.event, found.count, found.microseconds, found.around) == (
        -1,
        0,
        None,
        (EventSummary(0, "alloc", 512, ""),),
    )


def test_a_failed_allocation_says_what_was_asked_and_free():
    trace = trace_of([alloc(0, 512), {"action": "oom", "size": 4096, "device_free": 100, "stream": 0}])
    assert event_state(trace, trace.devices[0], 1).failed == failed_request(trace, trace.devices[0], 1)
    assert event_state(trace, trace.devices[0], 0).failed is None


def test_the_innermost_annotation_is_named():
    events = [alloc(1, 5, time_us=10), alloc(2, 5, time_us=20), alloc(3, 5, time_us=60)]
    trace = trace_of(events, external_annotations=ranges(("outer", 5, 50), ("inner", 15, 25)))
    found = [event_state(trace, trace.devices[0], each).annotation for each in (-1, 0, 1, 2)]
    assert found == ["", "outer", "inner", ""]


def test_nothing_recorded_is_a_moment_with_what_is_there():
    trace = trace_of([], segments=[segment(0, 2 * MiB, [block(0, 512)])])
    found = event_state(trace, trace.devices[0], -1)
    assert (found.count, found.bytes.live, found.around) == (1, 512, ())


def test_each_allocation_is_counted_for_what_it_did_in_between():
    """Events: 0 stays, 1 comes before and goes in 3, 4 comes and stays, 5 comes and goes in 7."""
    trace = trace_of([alloc(1, 10), alloc(2, 20), *free(2, 20), alloc(3, 30), alloc(4, 40), *free(4, 40)])
    assert summarize_range(trace.devices[0], 2, 7) == RangeSummary(
        first=2, last=7, peak_event=5, allocated=Total(2, 70), freed=Total(2, 60), throughout=Total(1, 10)
    )


def test_what_was_there_before_the_first_event_stays_throughout():
    trace = trace_of([alloc(4096, 5)], segments=[segment(0, 2 * MiB, [block(0, 512, 500), block(4096, 512, 5)])])
    assert summarize_range(trace.devices[0], -1, 0) == RangeSummary(
        first=-1, last=0, peak_event=0, allocated=Total(1, 5), freed=Total(0, 0), throughout=Total(1, 500)
    )


def test_a_range_has_no_direction_and_ends_at_an_event_that_is_there():
    trace = trace_of([alloc(1, 10), alloc(2, 20), alloc(3, 30)])
    assert summarize_range(trace.devices[0], 2, 0) == summarize_range(trace.devices[0], 0, 2)
    with pytest.raises(UsageError, match="no event 9"):
        summarize_range(trace_of([alloc(1, 10)]).devices[0], 0, 9)


@given(sound_traces(), st.data())
def test_before_plus_allocated_minus_freed_is_after(trace, data):
    device = trace.devices[0]
    count = len(device.events)
    first = data.draw(st.integers(-1, count - 1))
    last = data.draw(st.integers(first, count - 1))
    found, live = summarize_range(device, first, last), timeline(device).live
    assert live[max(first, 0)] + found.allocated.bytes - found.freed.bytes == live[last + 1]
    assert live[found.peak_event + 1] == np.max(live[first + 1 : last + 2])
    assert found.throughout.bytes <= live[first + 1 : last + 2].min()


EMPTY = frame("at::_ops::empty_memory_format::call(int)", "??", 0)
ADD = frame("at::_ops::add_Tensor::call(at::Tensor const&)", "??", 0)


def of(trace: Trace, row: int) -> Allocation:
    return allocation(trace, trace.devices[0], row)


def test_all_that_is_known_is_told():
    made = alloc(0, 1000, frames=[EMPTY, ADD, MODEL], time_us=10, user_metadata="mine", compile_context="0/1")
    trace = trace_of([made, *free(0, 1000, time_us=35)])
    assert of(trace, 0) == Allocation(
        row=0,
        requested_bytes=1000,
        rounded_bytes=1024,
        block_bytes=1024,
        block_known=BlockKnown.ROUNDED,
        category=Category.OUTPUT,
        reason=Reason.FORWARD_OUTPUT.text,
        certainty=Certainty.PROBABLE,
        site="model.py:3 forward",
        operator="add_Tensor",
        span=Span(start=0, free_requested=1, end=2, never=3, microseconds=25),
        pool=(0, 0),
        is_large=False,
        stream=0,
        stack=0,
        forward_stack=NO_STACK,
        metadata="mine",
        compile_context="0/1",
        alike=1,
    )


def test_a_block_that_is_there_at_the_end_is_known_exactly():
    trace = trace_of([alloc(0, 1000)], segments=[segment(0, 2 * MiB, [block(0, 1536, 1000)])])
    assert (of(trace, 0).block_bytes, of(trace, 0).block_known) == (1536, BlockKnown.RECORDED)


def test_a_block_that_is_gone_is_rebuilt_from_what_lay_around_it():
    """In 20 MiB, 19.5 MiB were requested: the remaining half is too small to split off."""
    size = 19 * MiB + MiB // 2
    trace = trace_of([alloc(0, size), *free(0, size)], segments=[segment(0, 20 * MiB, [])])
    assert (of(trace, 0).block_bytes, of(trace, 0).block_known) == (20 * MiB, BlockKnown.REBUILT)


def test_the_large_pool_begins_above_a_mebibyte():
    trace = trace_of([alloc(0, MiB), alloc(2 * MiB, MiB + 1)])
    assert [of(trace, row).is_large for row in (0, 1)] == [False, True]


def test_what_was_there_before_has_no_event():
    trace = trace_of(
        [event("free_completed", 4096, 9)],
        segments=[segment(0, 2 * MiB, [block(0, 512, 500)])],
    )
    assert [of(trace, row).span for row in (0, 1)] == [
        Span(start=-1, free_requested=1, end=1, never=1, microseconds=None),
        Span(start=-1, free_requested=-1, end=0, never=1, microseconds=None),
    ]
    assert not of(trace, 0).span.is_complete


def test_labels_of_our_own_runs_are_told():
    trace = trace_of([alloc(0, 5)])
    code = np.array([1], np.int32)
    labels = Labels(np.array([Category.GRADIENT], np.uint8), code, np.array([Phase.BACKWARD], np.uint8))
    device = replace(trace.devices[0], event_labels=labels)
    told = of(replace(trace, devices=(device,), strings=("", "layers.0")), 0)
    assert (told.category, told.reason, told.module, told.phase) == (
        Category.GRADIENT,
        "recorded by the run itself",
        "layers.0",
        Phase.BACKWARD,
    )


@pytest.mark.parametrize("row", [-1, 1])
def test_a_row_that_is_not_there_is_refused(row):
    with pytest.raises(UsageError, match="no allocation"):
        of(trace_of([alloc(0, 5)]), row)
