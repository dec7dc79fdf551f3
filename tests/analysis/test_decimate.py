"""A timeline of few columns that loses no peak."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memviz.analysis.lifetimes import clock
from memviz.analysis.timeline import (
    PAST_END,
    DecimatedTimeline,
    ReplayedBytes,
    by_event,
    by_time,
    reserved_lines,
    timeline,
)
from memviz.errors import UsageError
from memviz.trace.model import DeviceTrace
from tests.analysis.replays import sound_traces
from tests.traces import alloc, free, segment, trace_of


def device_of(*events, segments=None) -> DeviceTrace:
    return trace_of(list(events), segments).devices[0]


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


def test_a_window_of_events_can_be_drawn_alone():
    device = device_of(*(alloc(i, 1) for i in range(10)))
    found = by_event(device, 2, first=4, last=7)
    assert (found.first_event.tolist(), found.live_max.tolist()) == ([4, 6], [6, 8])


def test_by_time_a_column_stands_for_its_span():
    device = device_of(*(alloc(i, 1, time_us=time) for i, time in enumerate([100, 110, 120, 190, 200])))
    found = by_time(device, 4)
    assert found.first_event.tolist() == [-1, 2, 2, 3]
    assert found.event_count.tolist() == [4, 0, 0, 2]
    assert found.live_max.tolist() == [3, 3, 3, 5]


@pytest.mark.parametrize("window", [{"columns": 0}, {"columns": 5, "first": -2}, {"columns": 5, "first": 2, "last": 1}])
def test_an_impossible_window_is_refused(window):
    with pytest.raises(UsageError, match="No timeline of"):
        by_event(device_of(alloc(1, 5), alloc(2, 5), alloc(3, 5)), **window)


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
