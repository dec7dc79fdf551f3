"""The allocator's map."""

import pytest

from memviz.analysis.purpose.categories import categories
from memviz.analysis.segments import fragmentation_at, fragmentation_over, segments_at
from memviz.figures.plots.segments import plot_fragmentation, plot_fragmentation_at, plot_segments
from memviz.figures.theme import LIGHT
from memviz.trace.model import Category, Trace
from tests.facts import missing
from tests.figures.drawn import spec, titles, trace_named
from tests.traces import MiB, alloc, block, segment, trace_of


@pytest.fixture
def trace() -> Trace:
    """A small and a large segment; two blocks in the large one."""
    events = [alloc(100 * MiB, 4 * MiB, category="parameter"), alloc(110 * MiB, 2 * MiB)]
    blocks = [block(100 * MiB, 4 * MiB), block(110 * MiB, 2 * MiB)]
    return trace_of(events, [segment(0, 2 * MiB, []), segment(100 * MiB, 20 * MiB, blocks)])


def drawn(trace: Trace, **options: object):
    return plot_segments(segments_at(trace, trace.devices[0], 1), **options)


def test_blocks_lie_where_they_are_in_their_segment_add_up_and_have_their_colours(trace):
    figure = drawn(trace)
    live, free = trace_named(figure, "live"), trace_named(figure, "free")
    assert titles(figure) == "2 segments, 22.0 MiB reserved"
    assert (live["base"], live["x"], live["y"]) == ([0, 10 * MiB], [4 * MiB, 2 * MiB], [0, 0])
    assert sum(live["x"]) + sum(free["x"]) == 22 * MiB
    ground = spec(figure)["data"][0]["hovertext"][0]
    assert missing(ground, "0x6400000, 20.0 MiB", "large pool", "2 blocks, 6.00 MiB", "free 14.0 MiB") == []
    figure = drawn(trace, categories=categories(trace, trace.devices[0]))
    parameter = trace_named(figure, "parameter")
    assert parameter["marker"]["color"] == LIGHT.category(Category.PARAMETER)
    assert parameter["x"] == [4 * MiB]


def test_fragmentation_adds_up_over_events_and_after_one(trace):
    drawing = plot_fragmentation(fragmentation_over(trace, trace.devices[0], [0, 1]))
    assert [sum(sizes) for sizes in zip(*(area.y for area in drawing.data), strict=True)] == [22 * MiB] * 2
    expected = ["live", "free, in segments in use", "free, whole segments"]
    assert [area.name for area in drawing.data] == expected
    drawing = plot_fragmentation_at(fragmentation_at(trace, trace.devices[0], 1))
    assert titles(drawing) == "22.0 MiB reserved after event 1"
    assert sum(bar.x[0] for bar in drawing.data) == 22 * MiB
    assert drawing.data[0].hovertext == ("live: 6.00 MiB, 27 %",)
