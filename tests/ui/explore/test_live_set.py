"""The head of the lower half, tables of groups, what was never freed, matches of a query, and the icicle."""

import csv
from dataclasses import replace
from io import StringIO

import numpy as np
import pytest

from memviz.analysis.breakdown import Breakdown, Dominant, StackBreakdown, WeightedRows, weighted_stacks
from memviz.analysis.callstacks.stack_tree import OTHER
from memviz.analysis.find import FindResult, FoundSite
from memviz.analysis.groups import Group, Groups
from memviz.analysis.leaks import Growth, GrowthRow
from memviz.analysis.lifetimes import lifetimes
from memviz.analysis.purpose.categories import KINDS, kinds
from memviz.figures.theme import DARK, LIGHT, mixed
from memviz.trace.model import Category, Labels, Trace
from memviz.ui.explore.icicle import ROW_HEIGHT, boxes, icicle_html
from memviz.ui.explore.live_set import (
    FEW_ROWS,
    MOST_FOUND,
    churn_html,
    growth_html,
    head_html,
    matches_html,
    never_freed_html,
    ordered,
    table_html,
)
from memviz.ui.explore.state import ExploreState
from memviz.ui.explore.tab import groups_csv
from tests.traces import MiB, alloc, frame, trace_of
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
        ("model.py:3 forward", 3 * MiB, 2, "activation", 2 * MiB), ("train.py:9 step", MiB, 7, "optimizer state", MiB)
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
    html = never_freed_html(Breakdown(NO_GROUPS, {}), NO_GROWTH, NO_GROUPS, ExploreState())
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


MAIN, TRAIN, MODEL = (
    frame("main", "/p/train.py", 1),
    frame("train", "/p/train.py", 2),
    frame("forward", "/p/model.py", 3),
)


@pytest.fixture
def trace() -> Trace:
    """main and train are one chain; below it the model takes 3 MiB and train itself 1; 2 MiB have no stack."""
    return trace_of(
        [
            alloc(0, 3 * MiB, frames=[MODEL, TRAIN, MAIN]),
            alloc(4 * MiB, MiB, frames=[TRAIN, MAIN]),
            alloc(8 * MiB, 2 * MiB),
        ]
    )


def stacks_of(trace: Trace, path: tuple[int, ...] = (), most_nodes: int = 200) -> StackBreakdown:
    device = trace.devices[0]
    size = lifetimes(device).size
    weighted = WeightedRows(np.arange(len(size)), size, kinds(trace, device), KINDS)
    return weighted_stacks(trace, device, weighted, path, most_nodes=most_nodes)


def labels(html: str) -> list[str]:
    """Return the labels of the boxes, in order."""
    return [words(part.partition("</")[0].partition(">")[2]) for part in html.split("mv-node")[1:]]


def test_boxes_are_as_wide_as_their_bytes_and_chains_share_one(trace):
    assert labels(icicle_html(trace, stacks_of(trace))) == [
        "all 6.00 MiB",
        "train:1 main › train:2 train 4.00 MiB",
        "no stack recorded 2.00 MiB",
        "model:3 forward 3.00 MiB",
    ]
    assert [(box.row, box.left, box.width) for box in boxes(stacks_of(trace))] == [
        (0, 0, 1),
        (1, 0, 4 / 6),
        (1, 4 / 6, 2 / 6),
        (2, 0, 0.5),
    ]


def test_every_byte_can_be_read_and_a_click_leads_to_what_hovering_lights(trace):
    titles = [element["title"] for element in elements(icicle_html(trace, stacks_of(trace)), "button")]
    assert titles[-1] == "forward /p/model.py:3\n3,145,728 B, 50 % of 6.00 MiB, 1 allocation\noutput 100 %"
    box = elements(icicle_html(trace, stacks_of(trace)), "button", data_act="zoom")[3]
    path = tuple(int(each) for each in box["data-light-group"].split(","))
    assert box["data-light-by"] == "path"
    assert int(stacks_of(trace, path).tree.bytes[len(path)]) == 3 * MiB


def test_zoomed_in_there_is_a_way_back(trace):
    path = next(box.path for box in boxes(stacks_of(trace)) if len(box.frames) > 1)
    html = icicle_html(trace, stacks_of(trace, path))
    assert words(html).startswith("all › train:1 main › train:2 train train:2 train 4.00 MiB")
    back = [element["data-value"] for element in elements(html, "button", data_act="zoom") if "data-value" in element]
    assert back == ["", str(path[0]), str(path[0])]


def test_what_is_pruned_or_too_narrow_to_be_seen_goes_into_other():
    events = [alloc(i * MiB, 1000 - i, frames=[frame(f"f{i}", "a.py", i), MAIN]) for i in range(300)]
    trace = trace_of(events)
    drawn = list(boxes(stacks_of(trace, most_nodes=20)))
    assert drawn[-1].frames == (OTHER,)
    assert sum(box.bytes for box in drawn if box.row == 2) == sum(1000 - i for i in range(300))
    assert labels(icicle_html(trace, stacks_of(trace, most_nodes=20)))[-1].startswith("(other) ")
    trace = trace_of([alloc(0, 10_000 * MiB, frames=[MODEL, MAIN]), alloc(1, 9, frames=[TRAIN, MAIN])])
    assert [(box.frames, box.bytes) for box in boxes(stacks_of(trace)) if box.row == 2][1:] == [((OTHER,), 9)]


def test_an_icicle_of_nothing_says_so(trace):
    assert words(icicle_html(trace, stacks_of(trace, (2, 2, 2)))).endswith("Nothing is live here.")


def test_colours_are_the_themes_in_both_modes_and_text_stays_readable(trace):
    kinds = [Category.PARAMETER, Category.ACTIVATION, Category.PARAMETER]
    empty = np.zeros(3, np.int32)
    known = Labels(np.array(kinds, np.uint8), empty, empty.astype(np.uint8))
    trace = replace(trace, devices=(replace(trace.devices[0], event_labels=known),))
    styles = [element["style"] for element in elements(icicle_html(trace, stacks_of(trace)), "button")]
    light, dark = (mixed(each.category(Category.PARAMETER), each.page, 0.55) for each in (LIGHT, DARK))
    assert f"--mv-light:{light};--mv-dark:{dark};--mv-on-dark:#ffffff;" in styles[1]
    assert "--mv-light:#3569bf;--mv-on-light:#ffffff;--mv-dark:#396bbe;--mv-on-dark:#ffffff;" in styles[2]


def test_a_long_name_is_cut_and_rows_are_as_high_as_they_say():
    deep = [frame("x" * 50_000, f"{i}.py", i) for i in range(60)]
    trace = trace_of([alloc(0, 5, frames=deep), alloc(1, 5, frames=deep[1:])])
    html = icicle_html(trace, stacks_of(trace))
    assert len(html) < 20_000
    assert f"height:{3 * ROW_HEIGHT}px" in html
