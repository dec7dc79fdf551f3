"""What came, went and stayed between two events."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memviz.analysis.event_state import RangeSummary, Total, summarize_range
from memviz.analysis.timeline import timeline
from memviz.errors import UsageError
from tests.analysis.replays import sound_traces
from tests.traces import MiB, alloc, block, free, segment, trace_of


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


def test_an_event_that_is_not_there_is_refused():
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
