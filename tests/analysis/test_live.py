"""What is live at a moment, and which event a moment is."""

from __future__ import annotations

import pytest
from hypothesis import given

from memviz.analysis.lifetimes import clock, event_at_time, lifetimes, live_rows, time_of_event
from memviz.errors import UsageError
from memviz.trace.model import DeviceTrace
from tests.analysis.replays import sound_traces
from tests.traces import alloc, event, free, trace_of


def device_of(*events) -> DeviceTrace:
    return trace_of(list(events)).devices[0]


def test_a_block_is_live_from_its_alloc_until_its_free_is_complete():
    device = device_of(alloc(1, 10), free(1, 10))
    assert [len(live_rows(device, e)) for e in (-1, 0, 1, 2)] == [0, 1, 1, 0]


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
    with pytest.raises(UsageError, match="have no times. Ask by event"):
        event_at_time(device_of(alloc(1, 10)), 5)


def test_the_time_of_an_event_is_as_recorded_or_unknown():
    timed, untimed = device_of(event("alloc", 1, 1, time_us=7)), device_of(alloc(1, 1))
    assert [time_of_event(timed, 0), time_of_event(timed, -1), time_of_event(untimed, 0)] == [7, None, None]
