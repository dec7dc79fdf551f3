"""From one peak to another: the bars add up."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memviz.analysis.comparing.changes import Change, Changes, Moment
from memviz.analysis.comparing.matching import MatchKey
from memviz.analysis.which_device import Which
from memviz.figures.plots.peak import MOST_ROWS, plot_waterfall
from memviz.figures.theme import LIGHT
from tests.figures.drawn import HARMLESS, MARKUP, markup_in, notes, spec, texts, titles
from tests.traces import MiB


def comparison(rows: list[tuple[str, int, int]]) -> Changes:
    made = tuple(Change(MatchKey(label, label), "unknown", (a, b), (1, 1)) for label, a, b in rows)
    totals = [sum(row.bytes[side] for row in made) for side in (0, 1)]
    moments = tuple(Moment(name, Which("0"), 0, size, size, 1) for name, size in zip("ab", totals, strict=True))
    return Changes("site", moments, made)


@pytest.fixture
def grown() -> Changes:
    return comparison([("more", MiB, 4 * MiB), ("less", 2 * MiB, MiB), ("same", MiB, MiB)])


def test_title_is_the_change(grown):
    assert titles(plot_waterfall(grown)) == "+2.00 MiB from a to b, by site"


def test_each_bar_begins_where_the_one_above_ends(grown):
    bars = plot_waterfall(grown).data[0]
    assert list(bars.base) == [0, 3 * MiB]
    assert list(bars.x) == [3 * MiB, -MiB]
    assert list(bars.marker.color) == [LIGHT.grew, LIGHT.shrank]


def test_rows_of_zero_have_no_bar(grown):
    assert "same" not in plot_waterfall(grown).layout.yaxis.ticktext


def test_both_peaks_are_marked(grown):
    assert notes(plot_waterfall(grown)) == ["A 4.00 MiB", "B 6.00 MiB"]


changes = st.lists(st.tuples(st.integers(0, 2**40), st.integers(0, 2**40)), max_size=50)


@settings(max_examples=30)
@given(changes)
def test_bars_add_up_to_the_difference_of_the_peaks(sizes):
    result = comparison([(f"site {i}", a, b) for i, (a, b) in enumerate(sizes)])
    drawing = plot_waterfall(result)
    drawn = sum(drawing.data[0].x) if drawing.data else 0
    assert drawn == result.delta(1)
    assert not drawing.data or len(drawing.data[0].x) <= MOST_ROWS + 1


def test_equal_traces_are_an_empty_figure_that_says_so():
    drawing = plot_waterfall(comparison([("same", MiB, MiB)]), dark=True)
    assert notes(drawing) == ["Every row holds as many bytes in both."]


def test_a_site_is_shown_as_it_stands():
    drawing = plot_waterfall(comparison([(MARKUP, 0, MiB)]))
    assert markup_in(drawing) == []
    assert any(HARMLESS in text for text in texts(drawing))


def test_long_names_make_no_large_figure():
    spec(plot_waterfall(comparison([("x" * 10_000, 0, i) for i in range(1, 3000)])))
