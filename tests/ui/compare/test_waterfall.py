"""The waterfall from peak to peak: a table with bars in its rows, and its download."""

import csv
import io
import json
import re
from dataclasses import replace

import pytest

from memviz.figures.packed_timeline import unpack
from memviz.trace.model import Trace
from memviz.ui.compare.tab import changes_csv
from memviz.ui.compare.waterfall import Surroundings, Waterfall, waterfall, waterfall_html
from memviz.ui.components.tables import highlighted_rows
from memviz.ui.saved.report import report_page
from tests.facts import missing
from tests.traces import MiB, alloc, frame, pairs_of, trace_of
from tests.ui.compared_runs import found, run
from tests.ui.page import elements, rows, words

AROUND = Surroundings("name", ("a/0", "b/0"))


def fall(*traces: Trace, **options) -> Waterfall:
    return waterfall(found(*traces), options.pop("other", 1), **options)


def drawn(*traces: Trace, **options) -> str:
    return waterfall_html(fall(*traces, **options), AROUND)


def test_the_table_and_its_headline_read_as_the_bars():
    steps = fall(run(10, 10, 10), run(40, 0, 15)).steps
    assert [(step.begin // MiB, step.delta // MiB) for step in steps] == [(0, 30), (30, -10), (20, 5)]
    table = drawn(run(10, 10, 10, 7), run(40, 0, 15, 7)).partition("</table>")[0]
    assert rows(table)[1:] == [
        ["model.py:0 mm", "10.0 MiB", "40.0 MiB", "+30.0 MiB", ""],
        ["model.py:1 mm", "10.0 MiB", "–", "−10.0 MiB", ""],
        ["model.py:2 mm", "10.0 MiB", "15.0 MiB", "+5.00 MiB", ""],
        ["everything else, 1 site", "7.00 MiB", "7.00 MiB", "0", ""],
        ["Peak", "37.0 MiB 38,797,312 B", "62.0 MiB 65,011,712 B", "+25.0 MiB +26,214,400 B", ""],
    ]
    assert missing(words(drawn(run(10, 10, 10, 7), run(40, 0, 15, 7))), "4 rows", "+26,214,400 B") == []
    assert missing(words(drawn(run(1), run(1))), "1 row", "0 B") == []
    labels = elements(drawn(run(10), run(40)), "span")
    assert "A 10.0 MiB" in words(drawn(run(10), run(40)))
    assert [label["style"] for label in labels if "style" in label] == ["left:0.000%", "right:0.000%"]


def test_rows_of_zero_have_no_bar_and_what_neither_has_no_row():
    text = drawn(run(10, 7), run(40, 7))
    assert len(re.findall("mv-fallbar", text)) == 1
    steps = fall(run(10), run(12), run(0, 50), other=1).steps
    assert [step.change.thing.label for step in steps] == ["model.py:0"]


def test_the_rest_is_one_row_unless_it_is_a_single_one_or_all_are_asked_for():
    first, second = run(*range(1, 15)), run(*(2 * size for size in range(1, 15)))
    steps = fall(first, second).steps
    assert (len(steps), steps[-1].change, steps[-1].hidden) == (9, None, 6)
    assert steps[-1].begin + steps[-1].delta == found(first, second).delta(1)
    assert "everything else, 6 sites" in words(drawn(first, second))
    first, second = run(*range(1, 10)), run(*(2 * size for size in range(1, 10)))
    assert all(step.change for step in fall(first, second).steps)
    first, second = run(*range(1, 30)), run(*(2 * size for size in range(1, 30)))
    assert "21 more rows" in words(drawn(first, second))
    assert len(fall(first, second, every_row=True).steps) == 29


@pytest.mark.parametrize(
    ("sort", "lines"), [("change", [2, 0, 1]), ("a", [1, 0, 2]), ("b", [2, 1, 0]), ("name", [0, 1, 2])]
)
def test_another_order_stacks_the_bars_anew(sort, lines):
    steps = fall(run(20, 30, 10), run(1, 25, 60), sort=sort).steps
    assert [step.change.thing.label for step in steps] == [f"model.py:{line}" for line in lines]
    assert [step.begin for step in steps] == [sum(each.delta for each in steps[:i]) for i in range(len(steps))]


def test_a_row_lights_its_allocations_in_each_trace():
    row = elements(drawn(run(1), run(2)), "tr", data_compare_by="site")[0]
    assert row["data-compare-row"] == "model.py:0 f0\nmm"
    section = elements(drawn(run(1), run(2)), "section")[0]
    assert (json.loads(section["data-sides"]), section["data-linked"]) == (["a/0", "b/0"], "name")
    pairs = pairs_of(run(1, 2), run(0, 3, 4))
    bits = [unpack(each)["bits"].tolist() for each in highlighted_rows(pairs, "site", "model.py:1 f1\nmm")]
    assert bits == [[0b10], [0b01]]


def test_modules_that_no_file_knows_cannot_be_chosen_and_say_why():
    text = waterfall_html(fall(run(1), run(2)), replace(AROUND, has_modules=False))
    button = elements(text, "button", data_value="module")[0]
    assert (button.get("data-act"), button["title"]) == (None, "None of these files records modules")


# -- what leaves the page


def test_the_csv_has_every_row_adds_up_and_holds_no_formula():
    traces = run(10, 10, 0, 7), run(40, 0, 15, 7)
    table = list(csv.DictReader(io.StringIO(changes_csv(found(*traces)))))
    assert [row["site"] for row in table] == ["model.py:0", "model.py:2", "model.py:1", "model.py:3", "peak"]
    assert sum(int(row["B_minus_A_bytes"]) for row in table[:-1]) == int(table[-1]["B_minus_A_bytes"]) == 35 * MiB
    assert table[0]["operator"] == "mm"
    evil = trace_of([alloc(1, 5, frames=[frame("=cmd()", "=1+1.py", 1)])])
    assert not re.search(r"(^|,)=", changes_csv(found(evil, evil)), re.MULTILINE)


def test_the_comparison_is_one_page_without_addresses():
    assert "src=" not in report_page(pairs_of(run(1), run(2)), "site").partition("<script")[0]
