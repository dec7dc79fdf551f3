"""The head of the lower half, and the tables of groups."""

from __future__ import annotations

import csv
from io import StringIO

import pytest

from memviz.analysis.breakdown import Breakdown, Dominant
from memviz.analysis.groups import Group, Groups
from memviz.ui.explore.live_set import FEW_ROWS, head_html, ordered, table_html
from memviz.ui.explore.state import ExploreState
from memviz.ui.explore.tab import groups_csv
from tests.traces import MiB
from tests.ui.page import elements, rows, words


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
