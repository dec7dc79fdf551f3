"""The allocator's map."""

import numpy as np
import pytest

from memviz.analysis.purpose.categories import categories
from memviz.analysis.segments import SegmentsAt, Tiles, segments_at
from memviz.figures.plots.segments import MOST_TILES, plot_segments
from memviz.figures.theme import LIGHT
from memviz.trace.model import Category, Segments, Trace
from tests.figures.drawn import notes, spec, titles, trace_named
from tests.traces import MiB, alloc, block, segment, trace_of


@pytest.fixture
def trace() -> Trace:
    """A small and a large segment; two blocks in the large one."""
    events = [alloc(100 * MiB, 4 * MiB, category="parameter"), alloc(110 * MiB, 2 * MiB)]
    blocks = [block(100 * MiB, 4 * MiB), block(110 * MiB, 2 * MiB)]
    return trace_of(events, [segment(0, 2 * MiB, []), segment(100 * MiB, 20 * MiB, blocks)])


def drawn(trace: Trace, **options: object):
    return plot_segments(segments_at(trace, trace.devices[0], 1), **options)


def test_title_is_what_is_reserved(trace):
    assert titles(drawn(trace)) == "2 segments, 22.0 MiB reserved"


def test_blocks_lie_where_they_are_in_their_segment(trace):
    live = trace_named(drawn(trace), "live")
    assert (live["base"], live["x"], live["y"]) == ([0, 10 * MiB], [4 * MiB, 2 * MiB], [0, 0])


def test_tiles_add_up_to_what_is_reserved(trace):
    figure = drawn(trace)
    assert sum(trace_named(figure, "live")["x"]) + sum(trace_named(figure, "free")["x"]) == 22 * MiB


def test_the_ground_says_what_a_segment_holds(trace):
    text = spec(drawn(trace))["data"][0]["hovertext"][0]
    assert text == "segment 0x6400000, 20.0 MiB<br>large pool<br>2 blocks, 6.00 MiB; free 14.0 MiB"


def test_with_categories_live_blocks_have_their_colours(trace):
    figure = drawn(trace, categories=categories(trace, trace.devices[0]))
    parameter = trace_named(figure, "parameter")
    assert parameter["marker"]["color"] == LIGHT.category(Category.PARAMETER)
    assert parameter["x"] == [4 * MiB]


def test_nothing_reserved_is_an_empty_figure_that_says_so():
    trace = trace_of([alloc(0, 1)])
    assert notes(plot_segments(segments_at(trace, trace.devices[0], 0), dark=True)) == ["No memory is reserved here."]


def test_a_hundred_thousand_blocks_make_no_large_figure():
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
