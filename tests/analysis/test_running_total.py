"""While a file is read its total is already right, up to what was there before."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from memviz.analysis.timeline import RunningTotal, timeline
from memviz.trace.model import DeviceTrace, Events
from tests.traces import alloc, free, trace_of


def rows(device: DeviceTrace, begin: int, end: int) -> Events:
    return Events(**{name: column[begin:end] for name, column in device.events.columns()})


@given(cuts=st.lists(st.integers(1, 1199), max_size=5, unique=True), columns=st.integers(1, 50))
def test_its_peak_is_the_peak_however_the_events_come(cuts, columns):
    events = [each for i in range(600) for each in (alloc(512 * (i % 40), i + 1), free(512 * (i % 40), i + 1))]
    device = trace_of(events).devices[0]
    total = RunningTotal()
    edges = [0, *sorted(cuts), len(device.events)]
    for begin, end in zip(edges, edges[1:], strict=False):
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
