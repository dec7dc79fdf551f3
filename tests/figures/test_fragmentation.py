"""Reserved bytes by what they are used for."""

from dataclasses import fields

import pytest

from memviz.analysis.fragmentation import Fragmentation, fragmentation_at, fragmentation_over
from memviz.figures.plots.segments import plot_fragmentation, plot_fragmentation_at
from memviz.trace.model import Trace
from tests.figures.drawn import notes, spec, titles
from tests.traces import MiB, alloc, block, segment, trace_of


@pytest.fixture
def trace() -> Trace:
    """4 MiB and then 2 more, in one large segment beside an unused one."""
    blocks = [block(100 * MiB, 4 * MiB), block(110 * MiB, 2 * MiB)]
    segments = [segment(0, 2 * MiB, []), segment(100 * MiB, 20 * MiB, blocks)]
    return trace_of([alloc(100 * MiB, 4 * MiB), alloc(110 * MiB, 2 * MiB - 100)], segments)


def test_areas_add_up_to_what_is_reserved_at_every_event(trace):
    drawing = plot_fragmentation(fragmentation_over(trace, trace.devices[0], [-1, 0, 1]))
    assert [sum(sizes) for sizes in zip(*(area.y for area in drawing.data), strict=True)] == [22 * MiB] * 3


def test_parts_that_never_occur_are_left_out(trace):
    drawing = plot_fragmentation(fragmentation_over(trace, trace.devices[0], [0, 1]))
    expected = ["live", "lost to rounding", "free, in segments in use", "free, whole segments"]
    assert [area.name for area in drawing.data] == expected


def test_one_moment_is_one_bar(trace):
    drawing = plot_fragmentation_at(fragmentation_at(trace, trace.devices[0], 1))
    assert titles(drawing) == "22.0 MiB reserved after event 1"
    assert sum(bar.x[0] for bar in drawing.data) == 22 * MiB
    assert drawing.data[0].hovertext == ("live: 6.00 MiB, 27 %",)


def test_nothing_reserved_is_an_empty_figure_that_says_so():
    assert notes(plot_fragmentation((), dark=True)) == ["There are no events to show."]
    nothing = Fragmentation(**{field.name: 0 for field in fields(Fragmentation)})
    assert notes(plot_fragmentation_at(nothing, dark=True)) == ["No memory is reserved here."]


def test_a_thousand_events_stay_small():
    names = [field.name for field in fields(Fragmentation)]
    spec(
        plot_fragmentation(
            [Fragmentation(**{name: i * 123_456_789 + at for at, name in enumerate(names)}) for i in range(1000)]
        )
    )
