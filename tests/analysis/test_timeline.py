"""Bytes live, waiting and reserved after each event."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memviz.analysis.groups import Group, Groups
from memviz.analysis.lifetimes import clock, lifetimes
from memviz.analysis.peak import FailedRequest, LiveSet, at, failed_requests, peak
from memviz.analysis.timeline import (
    PAST_END,
    DecimatedTimeline,
    ReplayedBytes,
    RunningTotal,
    Timeline,
    by_event,
    by_time,
    reserved_lines,
    timeline,
)
from memviz.errors import UsageError
from memviz.trace.model import DeviceTrace, Events, State
from tests.analysis.replays import Replay, any_events, any_segments, sound_traces
from tests.real import each_real_file, expected, read_once, requires_real
from tests.traces import MiB, alloc, block, device_of, event, frame, free, segment, trace_of


def of(*events, segments=None) -> Timeline:
    return timeline(trace_of(list(events), segments).devices[0])


@pytest.mark.parametrize(
    ("events", "segments", "columns"),
    [
        ([alloc(1, 10), free(1, 10)], None, ([0, 10, 10, 0], [0, 0, 10, 0], [0, 0, 0, 0])),
        ([free(0x20, 30)], [(100, 70)], ([100, 100, 70], [0, 30, 0], [512, 512, 512])),
        ([alloc(0x20, 5)], [(100, 70, "active_pending_free")], ([70, 75], [70, 70], [512, 512])),
        ([], [(256, 200)], ([200], [0], [512])),
    ],
    ids=["alloc and free", "live before the first event", "waiting at the end", "no events"],
)
def test_live_waiting_and_reserved_bytes_after_each_event(events, segments, columns):
    final = segments and [segment(0, 512, [block(0x10, *segments[0])])]
    assert of(*events, segments=final) == Timeline(*(np.array(each, dtype=np.int64) for each in columns))


def test_reserved_bytes_are_counted_back_from_the_final_segments_and_never_less_than_nothing():
    events = [event("segment_map", 0, 100), event("segment_unmap", 0, 40), event("segment_alloc", 900, 50)]
    after = of(*events, event("segment_free", 500, 7), segments=[segment(0, 60, []), segment(900, 50, [])])
    assert after.reserved.tolist() == [7, 107, 67, 117, 110]
    assert of(event("segment_alloc", 0, 100), event("segment_free", 0, 100)).reserved.tolist() == [0, 100, 0]
    assert of(event("segment_alloc", 0, 100)).reserved.tolist() == [0, 100]


@pytest.mark.parametrize(
    ("events", "found"), [([alloc(1, 10), free(1, 10), alloc(2, 10)], (10, 0, 0, 10)), ([free(1, 10)], (10, -1, 10, 0))]
)
def test_the_peak_is_the_first_event_at_the_most_live_bytes_or_before_all(events, found):
    after = of(*events)
    assert (after.peak_bytes, after.peak_event, after.start_bytes, after.end_bytes) == found


def spans(device: DeviceTrace, start: str) -> list[int]:
    """Sums over the rows that have begun and not ended, event by event."""
    rows = lifetimes(device)
    begin = getattr(rows, start)
    return [int(rows.size[(begin <= e) & (rows.end > e)].sum()) for e in range(-1, len(device.events))]


@given(any_events(), any_segments())
def test_every_sum_is_that_of_the_rows_alive(events, segments):
    if not events and not segments:
        return
    device = trace_of(events, segments).devices[0]
    after = timeline(device)
    assert after.live.tolist() == spans(device, "start")
    assert after.waiting.tolist() == spans(device, "free_requested")
    assert min(after.live.min(), after.waiting.min(), after.reserved.min()) >= 0
    assert (after.waiting <= after.live).all()


@given(any_events(), any_segments())
def test_the_end_is_what_a_plain_replay_has_live(events, segments):
    if not events and not segments:
        return
    device = trace_of(events, segments).devices[0]
    replay = Replay(device).run()
    assert timeline(device).end_bytes == sum(life.size for life in replay.lives if life.end == replay.never)


@given(sound_traces())
def test_a_sound_trace_ends_with_its_active_blocks(trace):
    device = trace.devices[0]
    active = device.blocks.state != State.INACTIVE
    assert timeline(device).end_bytes == int(device.blocks.requested[active].sum())
    assert timeline(device).reserved[-1] == int(device.segments.size.sum())


@requires_real
@each_real_file
def test_real_files_have_the_bytes_that_were_counted_independently(path):
    counted = expected()[path.name]
    for device in read_once(path).devices:
        after, number = timeline(device), str(device.device)
        assert after.reserved[-1] == counted["reserved_end"][number]
        assert after.end_bytes == counted["live_end"][number]
        for row in (each for each in counted["devices"] if each["dev"] == device.device):
            assert (after.start_bytes, after.peak_bytes) == (row["init_active"], row["peak_active"])


def rows(device: DeviceTrace, begin: int, end: int) -> Events:
    return Events(**{name: column[begin:end] for name, column in device.events.columns()})


@given(cuts=st.lists(st.integers(1, 1199), max_size=5, unique=True), columns=st.integers(1, 50))
def test_its_peak_is_the_peak_however_the_events_come(cuts, columns):
    events = [each for i in range(600) for each in (alloc(512 * (i % 40), i + 1), free(512 * (i % 40), i + 1))]
    device = trace_of(events).devices[0]
    total = RunningTotal()
    edges = [0, *sorted(cuts), len(device.events)]
    for begin, end in pairwise(edges):
        total.watch(rows(device, begin, end), 7)
    largest = total.largest(columns)
    assert total.events == len(device.events)
    assert 0 < len(largest) <= columns
    assert largest.max() == timeline(device).live[1:].max()


def test_what_was_there_before_is_counted_from_the_lowest_point():
    device = trace_of([free(512, 100), alloc(512, 30), free(512, 30), free(1024, 50)]).devices[0]
    total = RunningTotal()
    total.watch(device.events, 0)
    assert total.largest(100).tolist() == [150]
    assert timeline(device).live.max() == 150


def test_of_several_devices_the_one_with_most_events_is_shown():
    small, large = trace_of([alloc(512, 999)]).devices[0], trace_of([alloc(512, 1), alloc(1024, 2)]).devices[0]
    total = RunningTotal()
    assert total.largest(5).tolist() == []
    total.watch(small.events, 1)
    total.watch(large.events, 2)
    assert (total.events, int(np.max(total.largest(5)))) == (2, 3)


def columns(**values: list[int]) -> DecimatedTimeline:
    return DecimatedTimeline(**{name: np.array(each, dtype=np.int64) for name, each in values.items()})


def test_each_column_keeps_its_lowest_and_highest():
    device = device_of(alloc(1, 10), alloc(2, 5), free(2, 5), alloc(3, 1), segments=[segment(0, 512, [])])
    assert by_event(device, 2) == columns(
        first_event=[-1, 2],
        event_count=[3, 3],
        peak_event=[1, 2],
        live_min=[0, 10],
        live_max=[15, 15],
        waiting_max=[0, 5],
        reserved_max=[512, 512],
    )


def test_there_are_no_more_columns_than_events():
    found = by_event(device_of(alloc(1, 10), alloc(2, 5)), 2000)
    assert (found.first_event.tolist(), found.live_max.tolist()) == ([-1, 0, 1], [0, 10, 15])


def test_by_time_a_column_stands_for_its_span():
    device = device_of(*(alloc(i, 1, time_us=time) for i, time in enumerate([100, 110, 120, 190, 200])))
    found = by_time(device, 4)
    assert found.first_event.tolist() == [-1, 2, 2, 3]
    assert found.event_count.tolist() == [4, 0, 0, 2]
    assert found.live_max.tolist() == [3, 3, 3, 5]


@pytest.mark.parametrize("reduce", [by_event, by_time])
def test_a_timeline_without_columns_is_refused(reduce):
    with pytest.raises(UsageError, match="No timeline of"):
        reduce(device_of(alloc(1, 5, time_us=1), alloc(2, 5, time_us=2)), 0)


def test_by_time_needs_times():
    with pytest.raises(UsageError, match="Draw its timeline by event"):
        by_time(device_of(alloc(1, 5)), 5)


def test_times_at_the_ends_of_their_range_are_no_trouble():
    device = device_of(alloc(1, 5, time_us=1), alloc(2, 5, time_us=2**63 - 1))
    assert by_time(device, 3).live_max.tolist() == [5, 5, 10]


def check(device: DeviceTrace, found: DecimatedTimeline) -> None:
    """Every filled column holds exactly what its events hold."""
    after = timeline(device)
    for i in np.flatnonzero(found.event_count):
        first = found.first_event[i] + 1
        rows = slice(first, first + found.event_count[i])
        live = after.live[rows]
        assert (found.live_min[i], found.live_max[i]) == (live.min(), live.max())
        assert found.peak_event[i] == first + live.argmax() - 1
        assert (found.waiting_max[i], found.reserved_max[i]) == (after.waiting[rows].max(), after.reserved[rows].max())
    assert found.live_max.max() == after.peak_bytes
    assert found.peak_event[found.live_max.argmax()] == after.peak_event
    assert found.event_count.sum() == len(after)


@given(sound_traces(), st.integers(1, 60))
def test_columns_by_event_hold_what_their_events_hold(trace, count):
    check(trace.devices[0], by_event(trace.devices[0], count))


@given(sound_traces(most=20).filter(lambda trace: len(trace.devices[0].events)), st.integers(1, 60))
def test_columns_by_time_hold_what_their_events_hold(trace, count):
    device = trace.devices[0]
    found = by_time(device, count)
    check(device, found)
    empty = np.flatnonzero(found.event_count == 0)
    assert (found.live_max[empty] == timeline(device).live[found.first_event[empty] + 1]).all()
    assert len(found) == count
    assert clock(device)[-1] >= clock(device)[0]


def test_replays_are_reduced_to_the_same_columns_and_end_where_memory_ran_out():
    device = device_of(*(alloc(4096 * i, 100, time_us=time) for i, time in enumerate([10, 11, 20])))
    whole = ReplayedBytes("r", np.array([0, 7, 3, 9]))
    stopped = ReplayedBytes("s", np.array([5, 6]), stopped=True)
    lines = [
        line
        for columns in (by_event(device, 2), by_time(device, 5))
        for line in reserved_lines(columns, [whole, stopped]).lines
    ]
    assert [(line.reserved.tolist(), line.stops_at, line.last_column) for line in lines] == [
        ([7, 9], None, 1),
        ([6, PAST_END], 0, 0),
        ([7, 3, 3, 3, 9], None, 4),
        ([6, *[PAST_END] * 4], 0, 0),
    ]


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 1000)), min_size=1, max_size=30), st.integers(1, 100))
def test_replays_lose_no_peak_on_either_axis(steps, count):
    times = sorted(time for time, _ in steps)
    device = device_of(*(alloc(4096 * i, 100, time_us=time) for i, time in enumerate(times)))
    replay = ReplayedBytes("r", np.array([0, *(size for _, size in steps)]))
    for columns in (by_event(device, count), by_time(device, count)):
        assert reserved_lines(columns, [replay]).lines[0].reserved.max() == replay.reserved.max()


LINE = frame("f", "train.py", 3)


def test_the_peak_is_the_live_set_at_its_first_event():
    events = [
        alloc(1, 10, frames=[LINE], time_us=100),
        event("free_requested", 1, 10, time_us=101),
        alloc(2, 30, frames=[LINE], time_us=102),
        event("free_completed", 1, 10, time_us=103),
    ]
    final = [segment(0, 512, [block(0x2, 30, 30), block(0x100, 100, 60)])]
    trace = trace_of(events, final)
    site = Group("/train.py:3 f", "train.py:3 f", 40, 2, 0, 2)
    before = Group("no stack recorded", "no stack recorded", 60, 1)
    assert peak(trace, trace.devices[0]) == LiveSet(
        device="0",
        event=2,
        time_us=102,
        live_bytes=100,
        waiting_bytes=10,
        reserved_bytes=512,
        live=Groups("site", (before, site), 100, 3),
    )
    without_events = trace_of([], [segment(0, 512, [block(0, 256, 200)])])
    found = peak(without_events, without_events.devices[0])
    assert (found.event, found.time_us, found.live_bytes, found.reserved_bytes) == (-1, None, 200, 512)


def test_the_live_set_at_an_event_by_size():
    trace = trace_of([alloc(1, 10), free(1, 10), alloc(2, 30)])
    found = at(trace, trace.devices[0], 1, "size", top=1)
    assert (found.live_bytes, found.waiting_bytes) == (10, 10)
    assert [group.label for group in found.live.groups] == ["10 B each"]


@given(sound_traces())
def test_the_live_set_adds_up_to_the_timeline(trace):
    device = trace.devices[0]
    for e in range(-1, len(device.events)):
        found = at(trace, device, e)
        assert found.live_bytes == found.live.bytes == int(timeline(device).live[e + 1])


@requires_real
@each_real_file
def test_real_peaks_add_up_to_the_bytes_counted_independently(path):
    trace, counted = read_once(path), expected()[path.name]
    for row in counted["devices"]:
        device = next(each for each in trace.devices if each.device == row["dev"])
        found = peak(trace, device, top=5)
        assert sum(group.bytes for group in found.live.groups) + found.live.rest_bytes == row["peak_active"]


def test_failed_requests_in_order_with_or_without_a_stack():
    oom = {"action": "oom", "stream": 0}
    first = {**oom, "size": 900 * MiB, "device_free": 3 * MiB, "frames": [LINE]}
    trace = trace_of([first, alloc(1, 10), {**oom, "size": 7, "device_free": 0}], [segment(0, 512, [])])
    found = failed_requests(trace, trace.devices[0])
    assert found == (
        FailedRequest(0, None, 900 * MiB, 3 * MiB, live_bytes=0, reserved_bytes=512, site="train.py:3 f"),
        FailedRequest(2, None, 7, 0, live_bytes=10, reserved_bytes=512, site=""),
    )
    assert failed_requests(trace, trace.devices[0], slice(-1, None)) == found[1:]
