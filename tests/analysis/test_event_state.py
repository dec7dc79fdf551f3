"""The state after an event, and a summary of the events between two."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memviz.analysis.peak import (
    EventState,
    EventSummary,
    RangeSummary,
    Total,
    event_state,
    failed_request,
    summarize_range,
)
from memviz.analysis.segments import fragmentation_at
from memviz.analysis.timeline import timeline
from memviz.errors import UsageError
from tests.analysis.replays import sound_traces
from tests.traces import MiB, alloc, block, frame, free, segment, trace_of

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
    annotations = [
        {"device": 0, "name": name, "stage": stage, "time_us": time}
        for name, stage, time in (
            ("outer", "START", 5),
            ("inner", "START", 15),
            ("inner", "END", 25),
            ("outer", "END", 50),
        )
    ]
    events = [alloc(1, 5, time_us=10), alloc(2, 5, time_us=20), alloc(3, 5, time_us=60)]
    trace = trace_of(events, external_annotations=annotations)
    assert [event_state(trace, trace.devices[0], each).annotation for each in (-1, 0, 1, 2)] == [
        "",
        "outer",
        "inner",
        "",
    ]


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


def test_the_order_of_the_two_does_not_matter():
    trace = trace_of([alloc(1, 10), alloc(2, 20), alloc(3, 30)])
    assert summarize_range(trace.devices[0], 2, 0) == summarize_range(trace.devices[0], 0, 2)


def test_a_range_to_an_event_that_is_not_there_is_refused():
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
