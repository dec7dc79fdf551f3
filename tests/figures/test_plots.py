"""Laws of every figure: an empty one shows why, trace text is escaped, and none is too large for a page."""

from dataclasses import fields

import numpy as np
import plotly.graph_objects as go
import pytest

from memviz.analysis.annotations import annotated
from memviz.analysis.callstacks.stack_tree import stack_tree
from memviz.analysis.groups import Group
from memviz.analysis.lifetimes import lifetimes
from memviz.analysis.peak import failed_requests, peak
from memviz.analysis.segments import Fragmentation, SegmentsAt, Tiles, segments_at
from memviz.analysis.timeline import DecimatedTimeline, ReplayedBytes, by_event, reserved_lines
from memviz.figures.plots.icicle import plot_icicle
from memviz.figures.plots.peak import plot_peak, plot_waterfall
from memviz.figures.plots.segments import MOST_TILES, plot_fragmentation, plot_fragmentation_at, plot_segments
from memviz.figures.plots.timeline import plot_replay, plot_timeline
from memviz.trace.model import Segments, Trace
from tests.figures.drawn import HARMLESS, MARKUP, markup_in, notes, spec, texts
from tests.figures.test_peak import comparison, live_set
from tests.traces import MiB, alloc, frame, trace_of

NOTHING = trace_of([], [{"device": 0, "address": 0, "total_size": 0, "blocks": []}])
NO_COLUMNS = DecimatedTimeline(*(np.zeros(0, np.int64) for _ in range(7)))
NO_BYTES = Fragmentation(**{field.name: 0 for field in fields(Fragmentation)})


def tree_figure(trace: Trace, **look: bool) -> go.Figure:
    rows = np.arange(len(lifetimes(trace.devices[0])))
    return plot_icicle(stack_tree(trace, trace.devices[0], rows), trace, **look)


@pytest.mark.parametrize(
    ("drawing", "words"),
    [
        (plot_timeline(NO_COLUMNS, dark=True), "No memory is live or reserved here."),
        (plot_timeline(by_event(NOTHING.devices[0], 1), dark=True), "No memory is live or reserved here."),
        (plot_replay(reserved_lines(by_event(NOTHING.devices[0], 1), []), dark=True),
         "No memory is live or reserved here."),
        (plot_peak(live_set(), dark=True), "Nothing is live here."),
        (plot_waterfall(comparison([("same", MiB, MiB)]), dark=True), "Every row holds the same bytes in both."),
        (tree_figure(NOTHING, dark=True), "Nothing is live here."),
        (plot_segments(segments_at(NOTHING, NOTHING.devices[0], -1), dark=True), "No memory is reserved here."),
        (plot_fragmentation((), dark=True), "There are no events to show."),
        (plot_fragmentation_at(NO_BYTES, dark=True), "No memory is reserved here."),
    ],
)  # fmt: skip
def test_an_empty_figure_says_why(drawing: go.Figure, words: str) -> None:
    assert notes(drawing) == [words]


def hostile() -> Trace:
    oom = {"action": "oom", "size": 8 * MiB, "device_free": MiB, "stream": 0, "time_us": 4, "frames": [frame(MARKUP)]}
    marks = [{"name": MARKUP, "stage": s, "device": 0, "time_us": t} for s, t in (("START", 0), ("END", 3))]
    return trace_of([alloc(0, MiB, frames=[frame(MARKUP)], time_us=1), oom], external_annotations=marks)


def hostile_figures() -> dict[str, go.Figure]:
    trace = hostile()
    device = trace.devices[0]
    columns = by_event(device, 10)
    notes_and_failures = {
        "intervals": annotated(device).intervals,
        "strings": trace.strings,
        "out_of_memory": failed_requests(trace, device),
    }
    stopped = ReplayedBytes(MARKUP, np.zeros(2, dtype=np.int64), stopped=True)
    return {
        "timeline": plot_timeline(columns, **notes_and_failures),
        "replay": plot_replay(reserved_lines(columns, [stopped], MiB)),
        "peak": plot_peak(peak(trace, device)),
        "waterfall": plot_waterfall(comparison([(MARKUP, 0, MiB)])),
        "icicle": tree_figure(trace),
    }


@pytest.mark.parametrize("name", ["timeline", "replay", "peak", "waterfall", "icicle"])
def test_texts_of_a_trace_are_shown_as_they_stand(name: str) -> None:
    drawing = hostile_figures()[name]
    assert markup_in(drawing) == []
    assert sum(HARMLESS in text for text in texts(drawing)) >= (2 if name == "timeline" else 1)


@pytest.mark.slow
def test_large_results_make_no_large_figure() -> None:
    size, place = (np.arange(2000, dtype=np.int64) * factor for factor in (123_456_789, 5000))
    wide = DecimatedTimeline(place, place, place, size, size + MiB, size, size + 2 * MiB)
    spec(plot_timeline(wide))
    columns = by_event(trace_of([alloc(4096 * i, 3000) for i in range(3000)]).devices[0], 1000)
    spec(plot_replay(reserved_lines(columns, 3 * [ReplayedBytes("replayed", np.arange(3001) * 123_456_789)])))
    spec(plot_peak(live_set(*(Group(str(i), "x" * 10_000, 1, 1) for i in range(5000)))))
    spec(plot_waterfall(comparison([("x" * 10_000, 0, i) for i in range(1, 3000)])))
    parts = [field.name for field in fields(Fragmentation)]
    spec(plot_fragmentation([Fragmentation(**dict.fromkeys(parts, i * 123_456_789)) for i in range(1000)]))
    calls = [frame("main", "train.py", 9)]
    events = [
        alloc(i * MiB, 1000 - i % 1000, frames=[frame("x" * 500, "y" * 500 + ".py", i), *calls]) for i in range(3000)
    ]
    drawing = tree_figure(trace_of(events))
    spec(drawing)
    assert len(drawing.data[0].ids) == 500


def test_a_hundred_thousand_blocks_make_no_large_figure() -> None:
    count, each = 100_000, 512
    column = np.zeros(1, np.int32)
    one = Segments(column.astype(np.int64), np.array([count * each]), column, column, column > -1, column > 0, column)
    size = np.full(count, each, np.int64)
    tiles = Tiles(
        segment=np.zeros(count, np.int32),
        address=np.arange(count, dtype=np.int64) * each,
        size=size,
        kind=(np.arange(count) % 3).astype(np.uint8),
        requested=size,
        row=np.arange(count, dtype=np.int64),
    )
    figure = plot_segments(SegmentsAt(0, one, tiles, 0))
    spec(figure)
    assert sum(len(trace.x) for trace in figure.data[1:]) == MOST_TILES
