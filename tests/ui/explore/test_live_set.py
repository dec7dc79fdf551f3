"""The head of the lower half, tables of groups, what was never freed, and the results of a query."""

import csv
from io import StringIO

import pytest

from memviz.analysis.breakdown import Breakdown, Dominant
from memviz.analysis.find import FindResult, FoundSite
from memviz.analysis.groups import Group, Groups
from memviz.analysis.leaks import Growth, GrowthRow
from memviz.ui.explore.live_set import (
    FEW_ROWS,
    MOST_FOUND,
    churn_html,
    growth_html,
    head_html,
    matches_html,
    never_freed_html,
    ordered,
    sites_html,
    table_html,
)
from memviz.ui.explore.state import ExploreState
from memviz.ui.explore.tab import groups_csv
from tests.traces import MiB
from tests.ui.page import HOSTILE, elements, rows, tags, words


def table(*groups: tuple[str, int, int, str, int], by: str = "site") -> Breakdown:
    """Label, bytes, blocks, kind and bytes of that kind."""
    made = tuple(Group(f"key {label}", label, size, count) for label, size, count, _, _ in groups)
    mostly = {f"key {label}": Dominant(kind, of_kind) for label, _, _, kind, of_kind in groups}
    total, count = sum(each.bytes for each in made), sum(each.count for each in made)
    return Breakdown(Groups(by, made, total, count), mostly)


@pytest.fixture
def found() -> Breakdown:
    return table(
        ("model.py:3 forward", 3 * MiB, 2, "activation", 2 * MiB),
        ("train.py:9 step", MiB, 7, "optimizer state", MiB),
    )


def test_a_row_says_place_kind_blocks_bytes_and_share_with_a_bar_from_zero(found):
    assert rows(table_html(found, ExploreState())) == [
        ["Site", "Category", "", "Blocks", "Bytes ↓", "of 4.00 MiB"],
        ["model.py:3 forward", "activation 67 %", "", "2", "3.00 MiB", "75 %"],
        ["train.py:9 step", "optimizer state", "", "7", "1.00 MiB", "25 %"],
        ["Live", "", "", "9", "4,194,304 B", "100 %"],
    ]
    styles = [element["style"] for element in elements(table_html(found, ExploreState()), "i", class_="mv-kind")]
    assert [style.partition(";")[0] for style in styles] == ["width:100.00%", "width:33.33%"]


def test_by_category_the_name_is_the_category():
    by_category = table(("gradient", 10, 1, "gradient", 10), by="category")
    assert rows(table_html(by_category, ExploreState()))[:2] == [
        ["Category", "", "Blocks", "Bytes ↓", "of 10 B"],
        ["gradient", "", "1", "10 B", "100 %"],
    ]


def test_a_group_without_end_to_its_name_is_not_lit():
    html = table_html(table(("x" * 5000, 10, 1, "unknown", 10)), ExploreState())
    assert not [element for element in elements(html, "tr") if element]
    assert len(html) < 6000


@pytest.mark.parametrize(
    ("sort", "is_rising", "first"),
    [
        ("bytes", False, "model"),
        ("bytes", True, "train"),
        ("count", False, "train"),
        ("name", True, "model"),
        ("category", True, "model"),
    ],
)
def test_heads_sort(found, sort, is_rising, first):
    assert ordered(found, sort, is_rising=is_rising)[0].label.startswith(first)
    html = table_html(found, ExploreState(sort=sort, is_rising=is_rising))
    assert elements(html, "th", aria_sort="ascending" if is_rising else "descending")


def test_what_is_not_shown_is_one_row_until_it_is_asked_for():
    many = table(*((f"f.py:{i} f", 1000 - i, 1, "unknown", 1000 - i) for i in range(FEW_ROWS + 10)))
    shown = rows(table_html(many, ExploreState()))
    rest = sum(1000 - i for i in range(FEW_ROWS, FEW_ROWS + 10))
    assert len(shown) == FEW_ROWS + 3
    assert shown[-2][:1] + shown[-2][3:4] == ["everything else, 10 more", "10"]
    assert elements(table_html(many, ExploreState()), "span", title=f"{rest:,} B")
    assert elements(table_html(many, ExploreState()), "button", data_act="more")
    many = table(*((f"f.py:{i} f", 1000 - i, 1, "unknown", 1000 - i) for i in range(500)))
    shown = rows(table_html(many, ExploreState(is_long=True)))
    assert len(shown) == 203
    assert not elements(table_html(many, ExploreState(is_long=True)), "button", data_act="more")


def test_nothing_live_says_so():
    assert words(table_html(table(), ExploreState())) == "Nothing is live here."


def test_the_head_has_the_tabs_and_for_the_live_set_the_switch():
    live, never = head_html(ExploreState(by="line")), head_html(ExploreState(tab="never"))
    assert [element["data-value"] for element in elements(live, "button", role="tab", aria_selected="true")] == ["live"]
    assert [element["data-value"] for element in elements(live, "button", aria_pressed="true")] == ["line", "bytes"]
    assert words(never) == "Live set Segments Events Never freed"


def test_csv_has_all_rows_to_the_byte():
    found = table(("=1+1", 3, 2, "activation", 2), ("a,b", 1, 1, "unknown", 1))
    assert list(csv.reader(StringIO(groups_csv(found)))) == [
        ["site", "kind", "kind_bytes", "blocks", "bytes"],
        ["'=1+1", "activation", "2", "2", "3"],
        ["a,b", "unknown", "1", "1", "1"],
    ]


NO_GROUPS = Groups("site", (), 0, 0)
NO_GROWTH = Growth("site", (), (), (), ())


def test_where_there_is_nothing_it_is_said():
    html = sites_html(Breakdown(NO_GROUPS, {}), ExploreState(), None)
    assert "were freed" in words(html)
    assert "is not known" in words(growth_html(NO_GROWTH))
    assert "growth cannot be measured" in words(growth_html(Growth("site", ("step 0",), (5,), (), (5,))))
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
    assert words(html).startswith("5 allocations freed at once 14 B in total")
    assert rows(html)[1:] == [["f.py:1 f", "3", "10 B"], ["everything else", "2", "4 B"], ["Together", "5", "14 B"]]


def test_names_from_a_file_stay_text():
    groups = Groups("site", (Group(HOSTILE, HOSTILE, 5, 1),), 5, 1)
    grown = Growth("site", (HOSTILE, "b"), (1, 3), (GrowthRow(HOSTILE, HOSTILE, (1, 3)),), (0, 0))
    html = never_freed_html(Breakdown(groups, {HOSTILE: Dominant("unknown", 5)}), grown, groups, ExploreState())
    assert "b" not in tags(html)
    assert words(html).count(HOSTILE) == 5


def site(name: str, live: int = 0, count: int = 1) -> FoundSite:
    return FoundSite(f"key {name}", name, live, int(live > 0), 9 * MiB, count)


def test_sites_have_their_bytes_now_and_their_number_ever_and_light_up():
    html = matches_html(FindResult(7, (site("a.py:1 f", 2 * MiB, 30), site("b.py:1 g"))), "py")
    assert words(html).startswith("31 allocations at 2 sites 2.00 MiB live at event 7")
    assert rows(html)[1:] == [
        ["a.py:1 f", "1", "2.00 MiB", "30"],
        ["b.py:1 g", "0", "0 B", "1"],
        ["Found", "1", "2,097,152 B", "31"],
    ]
    html = matches_html(FindResult(7, (site("a"),)), "linear >1MiB")
    assert elements(html, "section", data_light_rest="find", data_light_rest_group="linear >1MiB")
    assert elements(html, "tr", data_light_by="site", data_light_group="key a")


def test_nothing_found_says_so_and_lights_nothing():
    html = matches_html(FindResult(7, ()), HOSTILE)
    assert words(html) == f"Nothing in this trace is found by {HOSTILE}"
    assert not elements(html, "section", data_light_rest="find")


def test_many_sites_end_in_one_row():
    html = matches_html(FindResult(-1, tuple(site(str(i), 10) for i in range(MOST_FOUND + 5))), "x")
    assert rows(html)[-2] == ["everything else, 5 more", "5", "50 B", "5"]
    assert len(rows(html)) == MOST_FOUND + 3
