"""The live set as bars."""

import pytest

from memviz.analysis.groups import Group, Groups
from memviz.analysis.peak import LiveSet, peak
from memviz.figures.plots.peak import MOST_ROWS, plot_peak
from memviz.figures.theme import LIGHT
from memviz.trace.model import Category
from tests.figures.drawn import HARMLESS, MARKUP, markup_in, notes, spec, texts, titles
from tests.traces import MiB, alloc, frame, trace_of


def live_set(*groups: Group, by: str = "site") -> LiveSet:
    size, count = sum(group.bytes for group in groups), sum(group.count for group in groups)
    return LiveSet("0", 7, None, size, 0, size, Groups(by, groups, size, count))


@pytest.fixture
def two_sites() -> LiveSet:
    return live_set(Group("a", "a.py:1 f", 3 * MiB, 2), Group("b", "b.py:2 g", MiB, 1))


def test_title_names_the_bytes_and_the_moment(two_sites):
    assert titles(plot_peak(two_sites)) == "4.00 MiB live after event 7, by site"


def test_bars_are_labelled_largest_first(two_sites):
    drawing = plot_peak(two_sites)
    assert drawing.layout.yaxis.ticktext == ("a.py:1 f", "b.py:2 g")
    assert spec(drawing)["data"][0]["text"] == ["3.00 MiB · 75 %", "1.00 MiB · 25 %"]


def test_what_is_not_drawn_is_one_bar_and_all_add_up():
    many = live_set(*(Group(str(i), f"site {i}", 1000 - i, 1) for i in range(200)))
    drawing = plot_peak(many)
    assert len(drawing.data[0].x) == MOST_ROWS + 1
    assert sum(drawing.data[0].x) == many.live_bytes
    assert drawing.layout.yaxis.ticktext[-1] == "everything else"


def test_the_rest_of_a_cut_result_is_a_bar_too():
    groups = Groups("site", (Group("a", "a", 3, 1),), 10, 5, rest_bytes=7, rest_count=4)
    drawing = plot_peak(LiveSet("0", 0, None, 10, 0, 10, groups))
    assert list(drawing.data[0].x) == [3, 7]


def test_categories_have_their_fixed_colours():
    drawing = plot_peak(live_set(Group("p", "parameter", 2, 1), Group("u", "unknown", 1, 1), by="category"))
    expected = [LIGHT.category(Category.PARAMETER), LIGHT.category(Category.UNKNOWN)]
    assert list(drawing.data[0].marker.color) == expected


def test_nothing_live_is_an_empty_figure_that_says_so():
    assert notes(plot_peak(live_set(), dark=True)) == ["Nothing is live here."]


def test_a_function_name_is_shown_as_it_stands():
    trace = trace_of([alloc(0, MiB, frames=[frame(MARKUP)])])
    drawing = plot_peak(peak(trace, trace.devices[0]))
    assert markup_in(drawing) == []
    assert any(HARMLESS in text for text in texts(drawing))


def test_long_names_make_no_large_figure():
    spec(plot_peak(live_set(*(Group(str(i), "x" * 10_000, 1, 1) for i in range(5000)))))
