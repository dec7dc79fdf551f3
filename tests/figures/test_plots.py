"""Plots of a trace: what they show, why one is empty, escaped texts, and none too large for a page."""

import json
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memviz.analysis.annotations import annotated
from memviz.analysis.callstacks.stack_tree import stack_tree
from memviz.analysis.comparing.changes import Change, Changes, Moment
from memviz.analysis.comparing.matching import MatchKey
from memviz.analysis.devices import DeviceName
from memviz.analysis.groups import Group, Groups
from memviz.analysis.lifetimes import lifetimes
from memviz.analysis.peak import LiveSet, failed_requests, peak
from memviz.analysis.purpose.categories import categories
from memviz.analysis.segments import Fragmentation, SegmentsAt, Tiles, fragmentation_at, fragmentation_over, segments_at
from memviz.analysis.timeline import DecimatedTimeline, ReplayedBytes, by_event, by_time, reserved_lines
from memviz.figures.plots.icicle import plot_icicle
from memviz.figures.plots.peak import MOST_ROWS, plot_peak, plot_waterfall
from memviz.figures.plots.segments import MOST_TILES, plot_fragmentation, plot_fragmentation_at, plot_segments
from memviz.figures.plots.timeline import plot_replay, plot_timeline
from memviz.figures.theme import LIGHT, LONGEST, byte_axis, lines, plain, rows_axis
from memviz.trace.model import Category, Segments, Trace
from tests.facts import missing
from tests.traces import MiB, alloc, block, event, frame, free, segment, trace_of

MARKUP = '<b>bold</b><a href="javascript:x">$y$ %{x}'
HARMLESS = "&lt;b&gt;bold&lt;/b&gt;"
LARGEST = 300_000


def spec(figure: go.Figure) -> dict[str, Any]:
    """Through plotly's own serialiser, so that a broken figure fails; and small enough for a page."""
    text = figure.to_json()
    assert len(text) <= LARGEST
    return json.loads(text)


def texts(figure: go.Figure) -> list[str]:
    return list(_texts(spec(figure)))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)


def markup_in(figure: go.Figure) -> list[str]:
    """Texts in which plotly would find more than we write ourselves: tags, TeX, or a template of the trace's."""
    found = []
    for text in texts(figure):
        rest = text.replace("<br>", "").replace("<extra></extra>", "")
        if "<" in rest or "$" in rest:
            found.append(text)
    return found + [template for template in _templates(figure) if "%{x}" in template]


def _templates(figure: go.Figure) -> list[str]:
    return [trace[key] for trace in spec(figure)["data"] for key in ("hovertemplate", "texttemplate") if key in trace]


def trace_named(figure: go.Figure, name: str) -> dict[str, Any]:
    return next(trace for trace in spec(figure)["data"] if trace.get("name") == name)


def titles(figure: go.Figure) -> str:
    return str(figure.layout.title.text)


def notes(figure: go.Figure) -> list[str]:
    return [annotation.text for annotation in figure.layout.annotations]


NOTHING = trace_of([], [{"device": 0, "address": 0, "total_size": 0, "blocks": []}])
NO_COLUMNS = DecimatedTimeline(*(np.zeros(0, np.int64) for _ in range(7)))
NO_BYTES = Fragmentation(**{field.name: 0 for field in fields(Fragmentation)})


def live_set(*groups: Group, by: str = "site") -> LiveSet:
    size, count = sum(group.bytes for group in groups), sum(group.count for group in groups)
    return LiveSet("0", 7, None, size, 0, size, Groups(by, groups, size, count))


def comparison(rows: list[tuple[str, int, int]]) -> Changes:
    made = tuple(Change(MatchKey(label, label), "unknown", (a, b), (1, 1)) for label, a, b in rows)
    totals = [sum(row.bytes[side] for row in made) for side in (0, 1)]
    moments = tuple(Moment(name, DeviceName("0"), 0, size, size, 1) for name, size in zip("ab", totals, strict=True))
    return Changes("site", moments, made)


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
        "intervals": annotated(device),
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
    bands = {"intervals": annotated(trace.devices[0]), "strings": trace.strings}
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


def test_bars_are_labelled_largest_first_in_their_fixed_colours():
    drawing = plot_peak(live_set(Group("a", "a.py:1 f", 3 * MiB, 2), Group("b", "b.py:2 g", MiB, 1)))
    assert titles(drawing) == "4.00 MiB live after event 7, by site"
    assert drawing.layout.yaxis.ticktext == ("a.py:1 f", "b.py:2 g")
    assert spec(drawing)["data"][0]["text"] == ["3.00 MiB · 75 %", "1.00 MiB · 25 %"]
    drawing = plot_peak(live_set(Group("p", "parameter", 2, 1), Group("u", "unknown", 1, 1), by="category"))
    expected = [LIGHT.category(Category.PARAMETER), LIGHT.category(Category.UNKNOWN)]
    assert list(drawing.data[0].marker.color) == expected


def test_groups_that_are_not_drawn_are_one_bar_and_all_add_up():
    many = live_set(*(Group(str(i), f"site {i}", 1000 - i, 1) for i in range(200)))
    drawing = plot_peak(many)
    assert len(drawing.data[0].x) == MOST_ROWS + 1
    assert sum(drawing.data[0].x) == many.live_bytes
    assert drawing.layout.yaxis.ticktext[-1] == "everything else"
    cut = Groups("site", (Group("a", "a", 3, 1),), 10, 5, rest_bytes=7, rest_count=4)
    assert list(plot_peak(LiveSet("0", 0, None, 10, 0, 10, cut)).data[0].x) == [3, 7]


def test_each_bar_of_a_waterfall_begins_where_the_one_above_ends():
    drawing = plot_waterfall(comparison([("more", MiB, 4 * MiB), ("less", 2 * MiB, MiB), ("same", MiB, MiB)]))
    bars = drawing.data[0]
    assert (list(bars.base), list(bars.x)) == ([0, 3 * MiB], [3 * MiB, -MiB])
    assert list(bars.marker.color) == [LIGHT.grew, LIGHT.shrank]
    assert drawing.layout.yaxis.ticktext == ("more", "less")
    assert titles(drawing) == "+2.00 MiB from a to b, by site"
    assert notes(drawing) == ["A 4.00 MiB", "B 6.00 MiB"]


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 2**40), st.integers(0, 2**40)), max_size=50))
def test_bars_add_up_to_the_difference_of_the_peaks(sizes):
    result = comparison([(f"site {i}", a, b) for i, (a, b) in enumerate(sizes)])
    drawing = plot_waterfall(result)
    assert (sum(drawing.data[0].x) if drawing.data else 0) == result.delta(1)
    assert not drawing.data or len(drawing.data[0].x) <= MOST_ROWS + 1


@pytest.fixture
def segmented() -> Trace:
    """A small and a large segment; two blocks in the large one."""
    events = [alloc(100 * MiB, 4 * MiB, category="parameter"), alloc(110 * MiB, 2 * MiB)]
    blocks = [block(100 * MiB, 4 * MiB), block(110 * MiB, 2 * MiB)]
    return trace_of(events, [segment(0, 2 * MiB, []), segment(100 * MiB, 20 * MiB, blocks)])


def drawn(trace: Trace, **options: object):
    return plot_segments(segments_at(trace, trace.devices[0], 1), **options)


def test_blocks_lie_where_they_are_in_their_segment_add_up_and_have_their_colours(segmented):
    figure = drawn(segmented)
    live, free = trace_named(figure, "live"), trace_named(figure, "free")
    assert titles(figure) == "2 segments, 22.0 MiB reserved"
    assert (live["base"], live["x"], live["y"]) == ([0, 10 * MiB], [4 * MiB, 2 * MiB], [0, 0])
    assert sum(live["x"]) + sum(free["x"]) == 22 * MiB
    ground = spec(figure)["data"][0]["hovertext"][0]
    assert missing(ground, "0x6400000, 20.0 MiB", "large pool", "2 blocks, 6.00 MiB", "free 14.0 MiB") == []
    figure = drawn(segmented, categories=categories(segmented, segmented.devices[0]))
    parameter = trace_named(figure, "parameter")
    assert parameter["marker"]["color"] == LIGHT.category(Category.PARAMETER)
    assert parameter["x"] == [4 * MiB]


def test_fragmentation_adds_up_over_events_and_after_one(segmented):
    drawing = plot_fragmentation(fragmentation_over(segmented, segmented.devices[0], [0, 1]))
    assert [sum(sizes) for sizes in zip(*(area.y for area in drawing.data), strict=True)] == [22 * MiB] * 2
    expected = ["live", "free, in segments in use", "free, whole segments"]
    assert [area.name for area in drawing.data] == expected
    drawing = plot_fragmentation_at(fragmentation_at(segmented, segmented.devices[0], 1))
    assert titles(drawing) == "22.0 MiB reserved after event 1"
    assert sum(bar.x[0] for bar in drawing.data) == 22 * MiB
    assert drawing.data[0].hovertext == ("live: 6.00 MiB, 27 %",)


def test_frames_are_named_with_their_place_and_the_first_level_adds_up() -> None:
    """main calls two functions; one allocation has no stack."""
    main = frame("main", "train.py", 9)
    events = [
        alloc(0, 3 * MiB, frames=[frame("forward", "src/model.py", 5), main]),
        alloc(4 * MiB, 2 * MiB, frames=[frame("loss", "src/model.py", 7), main]),
        alloc(8 * MiB, MiB, frames=[]),
    ]
    drawing = tree_figure(trace_of(events))
    icicle = drawing.data[0]
    assert titles(drawing) == "6.00 MiB by call stack, callers on top"
    assert icicle.labels[:3] == ("all", "main train.py:9", "no stack recorded")
    assert "forward model.py:5" in icicle.labels
    level = [value for value, of in zip(icicle.values, icicle.parents, strict=True) if of == icicle.ids[0]]
    assert sum(level) == icicle.values[0] == 6 * MiB


KiB, MiB, GiB = 1 << 10, 1 << 20, 1 << 30


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("forward", "forward"),
        ("<b>bold</b>", "&lt;b&gt;bold&lt;/b&gt;"),
        ('<a href="javascript:x">', '&lt;a href="javascript:x"&gt;'),
        ("&lt;", "&amp;lt;"),
        ("$x^2$", "&#36;x^2&#36;"),
        ("one\ntwo", "one\N{REPLACEMENT CHARACTER}two"),
        ("\u202egnp", "\N{REPLACEMENT CHARACTER}gnp"),
        ("\ud800", "\N{REPLACEMENT CHARACTER}"),
        ("", ""),
    ],
)
def test_text_is_shown_as_it_stands(text, shown):
    assert plain(text) == shown


@given(st.text())
def test_no_text_brings_markup(text):
    assert not set("<>$\n") & set(plain(text))
    plain(text).encode()


def test_a_long_text_keeps_its_tail_and_lines_and_rows_stand_one_under_the_other():
    shown = plain("x" * 1000 + "model.py:12")
    assert len(shown) == LONGEST
    assert shown.startswith("…")
    assert shown.endswith("model.py:12")
    assert lines(plain("a<br>"), "b") == "a&lt;br&gt;<br>b"
    assert rows_axis(["a", "a"])["tickvals"] == [0, 1]
    assert rows_axis(["a", "b", "c"])["range"] == [2.5, -0.5]


@pytest.mark.parametrize(
    ("top", "bottom", "texts"),
    [
        (0, 0, ["0 B"]),
        (3, 0, ["0", "1", "2", "3 B"]),
        (651 * MiB, 0, ["0", "200", "400", "600 MiB"]),
        (4 * GiB, 0, ["0", "1,000", "2,000", "3,000", "4,000 MiB"]),
        (12 * GiB, 0, ["0", "2.5", "5", "7.5", "10 GiB"]),
        (40 * MiB, -25 * MiB, ["−20", "0", "20", "40 MiB"]),
    ],
)
def test_an_axis_is_round_and_names_its_unit_once(top, bottom, texts):
    assert byte_axis(top, bottom)["ticktext"] == texts


# Beyond 2**53 a browser has no whole numbers to draw with.
@given(st.integers(0, 2**53))
def test_ticks_lie_between_zero_and_the_top(top):
    ticks = byte_axis(top)["tickvals"]
    assert ticks[0] == 0
    assert ticks[-1] <= top
    assert ticks == sorted(set(ticks))
    assert len(ticks) <= 6
