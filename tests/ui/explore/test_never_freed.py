"""Allocations alive at the end, growth per step, and churn."""

from __future__ import annotations

from memviz.analysis.breakdown import Breakdown, Dominant
from memviz.analysis.groups import Group, Groups
from memviz.analysis.leaks import Growth, GrowthRow
from memviz.ui.explore.live_set import churn_html, growth_html, never_freed_html, sites_html
from memviz.ui.explore.state import ExploreState
from tests.traces import MiB
from tests.ui.page import HOSTILE, elements, rows, tags, words

NO_GROUPS = Groups("site", (), 0, 0)
NO_GROWTH = Growth("site", (), (), (), ())


def test_where_there_is_nothing_it_is_said():
    html = sites_html(Breakdown(NO_GROUPS, {}), ExploreState(), None)
    assert words(html) == "Everything that was made here was freed again, or asked to be."
    assert "is not known" in words(growth_html(NO_GROWTH))
    assert "there is none to compare it with" in words(growth_html(Growth("site", ("step 0",), (5,), (), (5,))))
    html = growth_html(Growth("site", ("a", "b"), (5, 5), (), (5, 5)))
    assert words(html).startswith("No change from the end of a to the end of b No site holds more")
    assert words(churn_html(NO_GROUPS)).startswith("Nothing was freed at once")


def test_growth_adds_up_and_shows_its_direction():
    grown = Growth(
        "site",
        ("step 0", "step 1", "step 2"),
        (10 * MiB, 12 * MiB, 13 * MiB),
        (GrowthRow("k", "cache.py:7 add", (MiB, 4 * MiB, 7 * MiB)),),
        (9 * MiB, 8 * MiB, 6 * MiB),
    )
    html = growth_html(grown)
    assert words(html).startswith("+3.00 MiB from the end of step 0 to the end of step 2 Site")
    assert rows(html)[1:] == [
        ["cache.py:7 add", "1.00 MiB", "7.00 MiB", "+6.00 MiB", "+3.00 MiB"],
        ["everything else", "9.00 MiB", "6.00 MiB", "−3.00 MiB", "−1.50 MiB"],
        ["Live", "10,485,760 B", "13,631,488 B", "+3.00 MiB", "+1.50 MiB"],
    ]
    assert elements(html, "tr", data_light_by="site", data_light_group="k")


def test_churn_is_a_table_with_its_rest():
    html = churn_html(Groups("site", (Group("k", "f.py:1 f", 10, 3),), 14, 5, rest_bytes=4, rest_count=2))
    assert words(html).startswith("5 allocations freed at once 14 B passed through")
    assert rows(html)[1:] == [["f.py:1 f", "3", "10 B"], ["everything else", "2", "4 B"], ["Together", "5", "14 B"]]


def test_names_from_a_file_stay_text():
    groups = Groups("site", (Group(HOSTILE, HOSTILE, 5, 1),), 5, 1)
    grown = Growth("site", (HOSTILE, "b"), (1, 3), (GrowthRow(HOSTILE, HOSTILE, (1, 3)),), (0, 0))
    html = never_freed_html(Breakdown(groups, {HOSTILE: Dominant("unknown", 5)}), grown, groups, ExploreState())
    assert "b" not in tags(html)
    assert words(html).count(HOSTILE) == 5
