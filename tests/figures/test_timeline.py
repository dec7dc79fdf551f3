"""Bytes over events or time."""

import numpy as np
import pytest

from memviz.analysis.annotations import annotated
from memviz.analysis.decimate import DecimatedTimeline, by_event, by_time
from memviz.analysis.peak import failed_requests
from memviz.figures.plots.timeline import plot_timeline
from memviz.trace.model import Trace
from tests.figures.drawn import HARMLESS, MARKUP, markup_in, notes, spec, texts, titles, trace_named
from tests.traces import MiB, alloc, block, frame, free, segment, trace_of

SPAN = (1000, 9000)


@pytest.fixture
def trace() -> Trace:
    """4 MiB, then 2 more, of which the first are freed; one allocation fails; one annotation around the middle."""
    site = frame(MARKUP)
    failure = {"action": "oom", "size": 8 * MiB, "device_free": MiB, "stream": 0, "time_us": 9000, "frames": [site]}
    events = [
        alloc(0, 4 * MiB, time_us=1000),
        alloc(4 * MiB, 2 * MiB, time_us=3000),
        free(0, 4 * MiB, time_us=5000),
        failure,
    ]
    ends = [{"name": MARKUP, "stage": s, "device": 0, "time_us": t} for s, t in (("START", 2000), ("END", 6000))]
    return trace_of(events, [segment(0, 20 * MiB, [block(4 * MiB, 2 * MiB)])], external_annotations=ends)


def test_title_is_the_peak(trace):
    drawing = plot_timeline(by_event(trace.devices[0], 100))
    assert titles(drawing) == "6.00 MiB live at the peak, after event 1"
    assert notes(drawing) == ["peak 6.00 MiB"]


def test_every_event_is_a_step_of_live_bytes(trace):
    live = trace_named(plot_timeline(by_event(trace.devices[0], 100)), "live")
    assert live["x"] == [-1, 0, 1, 2, 3, 4, 5]
    assert live["y"] == [size * MiB for size in (0, 4, 6, 6, 2, 2, 2)]
    assert live["text"][1] == "4.00 MiB"


def test_reserved_bytes_are_a_line_above(trace):
    reserved = trace_named(plot_timeline(by_event(trace.devices[0], 100)), "reserved")
    assert set(reserved["y"]) == {20 * MiB}


def test_a_column_of_many_events_says_from_what_to_what(trace):
    live = trace_named(plot_timeline(by_event(trace.devices[0], 2)), "live")
    assert live["text"][0] == "0 B to 6.00 MiB"


def test_on_the_axis_of_time_columns_are_milliseconds_from_the_start(trace):
    drawing = plot_timeline(by_time(trace.devices[0], 8), span_us=SPAN)
    assert trace_named(drawing, "live")["x"] == [0, 1, 2, 3, 4, 5, 6, 7, 8]
    assert drawing.layout.xaxis.title.text == "ms"


def test_a_failed_allocation_is_marked_with_what_it_asked(trace):
    failures = failed_requests(trace, trace.devices[0])
    mark = trace_named(plot_timeline(by_event(trace.devices[0], 100), out_of_memory=failures), "out of memory")
    assert (mark["x"], mark["y"]) == ([4], [20 * MiB])
    assert "asked 8.00 MiB, the driver had 1.00 MiB" in mark["text"][0]


def test_a_failed_allocation_is_marked_at_its_time(trace):
    failures = failed_requests(trace, trace.devices[0])
    drawing = plot_timeline(by_time(trace.devices[0], 8), out_of_memory=failures, span_us=SPAN)
    assert trace_named(drawing, "out of memory")["x"] == [8]


def test_an_annotation_spans_its_events_or_its_time(trace):
    bands = {"intervals": annotated(trace.devices[0]).intervals, "strings": trace.strings}
    by_events = plot_timeline(by_event(trace.devices[0], 100), **bands).data[-1]
    by_times = plot_timeline(by_time(trace.devices[0], 8), span_us=SPAN, **bands).data[-1]
    assert (by_events.base, by_events.x) == ((1,), (3,))
    assert (by_times.base, by_times.x) == ((1,), (4,))


def test_texts_of_the_trace_are_shown_as_they_stand(trace):
    device = trace.devices[0]
    drawing = plot_timeline(
        by_event(device, 100),
        intervals=annotated(device).intervals,
        strings=trace.strings,
        out_of_memory=failed_requests(trace, device),
    )
    assert markup_in(drawing) == []
    assert sum(HARMLESS in text for text in texts(drawing)) >= 2


@pytest.mark.parametrize("rows", [0, 1])
def test_no_bytes_are_an_empty_figure_that_says_so(rows):
    empty = DecimatedTimeline(*(np.zeros(rows, np.int64) for _ in range(7)))
    assert notes(plot_timeline(empty, dark=True)) == ["No memory is live or reserved here."]


def test_two_thousand_columns_stay_small():
    size = np.arange(2000, dtype=np.int64) * 123_456_789
    column = np.arange(2000, dtype=np.int64) * 5000
    wide = DecimatedTimeline(column, column, column, size, size + MiB, size, size + 2 * MiB)
    spec(plot_timeline(wide))
