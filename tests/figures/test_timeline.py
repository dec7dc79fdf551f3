"""Bytes over events or time."""

import numpy as np
import plotly.graph_objects as go
import pytest

from memviz.analysis.annotations import annotated
from memviz.analysis.peak import failed_requests
from memviz.analysis.timeline import ReplayedBytes, by_event, by_time, reserved_lines
from memviz.figures.plots.timeline import plot_replay, plot_timeline
from memviz.trace.model import Trace
from tests.facts import missing
from tests.figures.drawn import notes, titles, trace_named
from tests.traces import MiB, alloc, block, event, frame, free, segment, trace_of

SPAN = (1000, 9000)


@pytest.fixture
def trace() -> Trace:
    """4 MiB, then 2 more, of which the first are freed; one allocation fails; one annotation around the middle."""
    site = frame("step")
    failure = {"action": "oom", "size": 8 * MiB, "device_free": MiB, "stream": 0, "time_us": 9000, "frames": [site]}
    events = [
        alloc(0, 4 * MiB, time_us=1000),
        alloc(4 * MiB, 2 * MiB, time_us=3000),
        free(0, 4 * MiB, time_us=5000),
        failure,
    ]
    ends = [{"name": "step", "stage": s, "device": 0, "time_us": t} for s, t in (("START", 2000), ("END", 6000))]
    return trace_of(events, [segment(0, 20 * MiB, [block(4 * MiB, 2 * MiB)])], external_annotations=ends)


def test_bytes_over_events_are_steps_and_over_time_milliseconds(trace):
    drawing = plot_timeline(by_event(trace.devices[0], 100))
    live = trace_named(drawing, "live")
    assert titles(drawing) == "6.00 MiB live at the peak, after event 1"
    assert notes(drawing) == ["peak 6.00 MiB"]
    assert live["x"] == [-1, 0, 1, 2, 3, 4, 5]
    assert live["y"] == [size * MiB for size in (0, 4, 6, 6, 2, 2, 2)]
    assert live["text"][1] == "4.00 MiB"
    assert set(trace_named(drawing, "reserved")["y"]) == {20 * MiB}
    assert trace_named(plot_timeline(by_event(trace.devices[0], 2)), "live")["text"][0] == "0 B to 6.00 MiB"
    drawing = plot_timeline(by_time(trace.devices[0], 8), span_us=SPAN)
    assert trace_named(drawing, "live")["x"] == [0, 1, 2, 3, 4, 5, 6, 7, 8]
    assert drawing.layout.xaxis.title.text == "ms"


def test_failures_and_annotations_stand_at_their_events_or_times(trace):
    failures = failed_requests(trace, trace.devices[0])
    mark = trace_named(plot_timeline(by_event(trace.devices[0], 100), out_of_memory=failures), "out of memory")
    assert (mark["x"], mark["y"]) == ([4], [20 * MiB])
    assert missing(mark["text"][0], "8.00 MiB", "1.00 MiB") == []
    drawing = plot_timeline(by_time(trace.devices[0], 8), out_of_memory=failures, span_us=SPAN)
    assert trace_named(drawing, "out of memory")["x"] == [8]
    bands = {"intervals": annotated(trace.devices[0]).intervals, "strings": trace.strings}
    by_events = plot_timeline(by_event(trace.devices[0], 100), **bands).data[-1]
    by_times = plot_timeline(by_time(trace.devices[0], 8), span_us=SPAN, **bands).data[-1]
    assert (by_events.base, by_events.x) == ((1,), (3,))
    assert (by_times.base, by_times.x) == ((1,), (4,))


def replayed(*mebibytes: int, stopped: bool = False, limit: int | None = None) -> go.Figure:
    """A replay of a recording that reserves 20 MiB for 4 that are live in the middle."""
    events = [event("segment_alloc", 0, 20 * MiB), alloc(0, 4 * MiB), free(0, 4 * MiB)]
    line = ReplayedBytes("replayed", np.array(mebibytes) * MiB, stopped)
    return plot_replay(reserved_lines(by_event(trace_of(events).devices[0], 1000), [line], limit))


def test_a_replay_is_a_line_that_ends_where_it_ran_out():
    drawing = replayed(0, 2, 6, 6, 6)
    assert trace_named(drawing, "live")["y"] == [0, 0, 4 * MiB, 4 * MiB, 0, 0]
    assert trace_named(drawing, "reserved as recorded")["y"] == [0, *[20 * MiB] * 5]
    assert trace_named(drawing, "replayed")["y"] == [0, 2 * MiB, *[6 * MiB] * 4]
    assert notes(drawing) == []
    drawing = replayed(0, 2, 6, stopped=True, limit=8 * MiB)
    assert trace_named(drawing, "replayed")["x"] == [-1, 0, 1, 2]
    mark = trace_named(drawing, "out of memory")
    assert (mark["x"], mark["y"]) == ([1], [8 * MiB])
    assert mark["text"] == ["replayed: out of memory after event 1"]
    assert notes(drawing) == ["limit 8.00 MiB"]
