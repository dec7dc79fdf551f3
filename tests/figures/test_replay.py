"""Reserved bytes of a recording and of its replays, as one figure."""

import numpy as np
import pytest

from memviz.analysis.decimate import ReplayedBytes, ReservedLines, by_event, reserved_lines
from memviz.figures.plots.timeline import plot_replay
from memviz.trace.model import DeviceTrace
from tests.figures.drawn import HARMLESS, MARKUP, markup_in, notes, spec, texts, trace_named
from tests.traces import MiB, alloc, event, free, trace_of


@pytest.fixture
def device() -> DeviceTrace:
    """20 MiB reserved for 4 that are live in the middle."""
    events = [event("segment_alloc", 0, 20 * MiB), alloc(0, 4 * MiB), free(0, 4 * MiB)]
    return trace_of(events).devices[0]


def lines(device: DeviceTrace, *replays: ReplayedBytes, limit: int | None = None) -> ReservedLines:
    return reserved_lines(by_event(device, 1000), replays, limit)


def replayed(*mebibytes: int, name: str = "replayed", stopped: bool = False) -> ReplayedBytes:
    return ReplayedBytes(name, np.array(mebibytes, dtype=np.int64) * MiB, stopped)


def test_live_bytes_are_one_area_and_what_is_reserved_one_line_each(device):
    drawing = plot_replay(lines(device, replayed(0, 2, 6, 6, 6)))
    assert trace_named(drawing, "live")["y"] == [0, 0, 4 * MiB, 4 * MiB, 0, 0]
    assert trace_named(drawing, "reserved as recorded")["y"] == [0, *[20 * MiB] * 5]
    assert trace_named(drawing, "replayed")["y"] == [0, 2 * MiB, *[6 * MiB] * 4]


def test_a_replay_that_ran_out_ends_there_and_is_marked(device):
    drawing = plot_replay(lines(device, replayed(0, 2, 6, stopped=True), limit=8 * MiB))
    assert trace_named(drawing, "replayed")["x"] == [-1, 0, 1, 2]
    mark = trace_named(drawing, "out of memory")
    assert (mark["x"], mark["y"]) == ([1], [8 * MiB])
    assert mark["text"] == ["replayed: out of memory after event 1"]
    assert notes(drawing) == ["limit 8.00 MiB"]


def test_without_a_limit_there_is_no_red_line(device):
    assert notes(plot_replay(lines(device, replayed(0, 2, 6, 6, 6)), dark=True)) == []


def test_names_are_text(device):
    drawing = plot_replay(lines(device, replayed(0, 0, name=MARKUP, stopped=True), limit=MiB))
    assert markup_in(drawing) == []
    assert any(HARMLESS in text for text in texts(drawing))


def test_nothing_reserved_is_an_empty_figure_that_says_so():
    drawing = plot_replay(lines(trace_of([], [{"device": 0, "address": 0, "total_size": 0, "blocks": []}]).devices[0]))
    assert notes(drawing) == ["No memory is live or reserved here."]


def test_a_thousand_columns_stay_small():
    events = [alloc(4096 * i, 3000) for i in range(3000)]
    device = trace_of(events).devices[0]
    column = np.arange(3001, dtype=np.int64) * 123_456_789
    spec(plot_replay(lines(device, *(ReplayedBytes(str(i), column, False) for i in range(3)))))
