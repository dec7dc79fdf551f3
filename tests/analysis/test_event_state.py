"""One event and the state after it."""

from __future__ import annotations

import pytest

from memviz.analysis.event_state import EventState, EventSummary, moment
from memviz.analysis.fragmentation import fragmentation_at
from memviz.analysis.peak import failed_request
from memviz.errors import UsageError
from tests.traces import MiB, alloc, block, event, frame, free, segment, trace_of

MODEL = frame("forward", "/p/model.py", 3)


def test_an_event_is_told_with_its_neighbours_and_the_bytes_after_it():
    events = [alloc(0, 512, frames=[MODEL], time_us=10), alloc(1024, 512, time_us=30), *free(0, 512, time_us=40)]
    trace = trace_of(events, segments=[segment(0, 2 * MiB, [block(1024, 512)])])
    assert moment(trace, trace.devices[0], 1, around=1) == EventState(
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
    found = moment(trace, trace.devices[0], -1)
    assert (found.event, found.count, found.microseconds, found.around) == (
        -1,
        0,
        None,
        (EventSummary(0, "alloc", 512, ""),),
    )


def test_a_failed_allocation_says_what_was_asked_and_free():
    trace = trace_of([alloc(0, 512), {"action": "oom", "size": 4096, "device_free": 100, "stream": 0}])
    assert moment(trace, trace.devices[0], 1).failed == failed_request(trace, trace.devices[0], 1)
    assert moment(trace, trace.devices[0], 0).failed is None


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
    assert [moment(trace, trace.devices[0], each).annotation for each in (-1, 0, 1, 2)] == ["", "outer", "inner", ""]


def test_nothing_recorded_is_a_moment_with_what_is_there():
    trace = trace_of([], segments=[segment(0, 2 * MiB, [block(0, 512)])])
    found = moment(trace, trace.devices[0], -1)
    assert (found.count, found.bytes.live, found.around) == (1, 512, ())


def test_an_event_that_is_not_there_is_refused():
    with pytest.raises(UsageError, match="no event 1"):
        moment(trace_of([event("alloc", 0, 5)]), trace_of([event("alloc", 0, 5)]).devices[0], 1)
