"""Bars of a peak, and of the changes from one peak to another."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memviz.analysis.comparing.changes import Change, Changes, Moment
from memviz.analysis.comparing.matching import MatchKey
from memviz.analysis.devices import DeviceName
from memviz.analysis.groups import Group, Groups
from memviz.analysis.peak import LiveSet
from memviz.figures.plots.peak import MOST_ROWS, plot_peak, plot_waterfall
from memviz.figures.theme import LIGHT
from memviz.trace.model import Category
from tests.figures.drawn import notes, spec, titles
from tests.traces import MiB


def live_set(*groups: Group, by: str = "site") -> LiveSet:
    size, count = sum(group.bytes for group in groups), sum(group.count for group in groups)
    return LiveSet("0", 7, None, size, 0, size, Groups(by, groups, size, count))


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


def comparison(rows: list[tuple[str, int, int]]) -> Changes:
    made = tuple(Change(MatchKey(label, label), "unknown", (a, b), (1, 1)) for label, a, b in rows)
    totals = [sum(row.bytes[side] for row in made) for side in (0, 1)]
    moments = tuple(Moment(name, DeviceName("0"), 0, size, size, 1) for name, size in zip("ab", totals, strict=True))
    return Changes("site", moments, made)


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
