"""The Compare tab: choices, empty states, and order of drawing."""

from dataclasses import replace

import pytest

from memviz.analysis.comparing.align import Alignment
from memviz.trace.model import About
from memviz.ui.compare.answer import compare_empty_html, offer_html
from memviz.ui.compare.state import CompareState, changed, sides_of
from memviz.ui.compare.tab import draw
from memviz.ui.shell.session import Opened
from tests.facts import missing
from tests.traces import alloc, frame, trace_of
from tests.ui.compared_runs import run, sides
from tests.ui.opened import opened
from tests.ui.page import HOSTILE, elements, tags, words


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"act": "by", "value": "stack"}, CompareState(by="stack")),
        ({"act": "by", "value": "nonsense"}, CompareState()),
        ({"act": "sort", "value": "name"}, CompareState(sort="name")),
        ({"act": "rows"}, CompareState(every_row=True)),
        ({"act": "align", "value": "step", "number": "3"}, CompareState(way=Alignment("step", number=3))),
        ({"act": "align", "value": "annotation", "name": "x"}, CompareState(way=Alignment("annotation", name="x"))),
        ({"act": "align", "value": "nonsense"}, CompareState()),
        ({"act": "axis", "value": "time"}, CompareState(axis="time")),
        ({"act": "overlay", "value": "overlay"}, CompareState(overlay=True)),
        ({"act": "other", "key": "key2"}, CompareState(other="key2")),
    ],
)
def test_a_click_is_taken_if_it_is_one_of_the_choices(data, expected):
    assert changed(CompareState(), data) == expected


def test_the_other_trace_is_the_second_unless_another_was_chosen():
    three = sides(run(1), run(2), run(3))
    assert [CompareState(other=key).number_of_other(three) for key in ("", "key2", "key0", "gone")] == [1, 2, 1, 1]


# -- the whole tab


def test_with_one_trace_the_tab_says_what_to_add(context):
    drawing = draw(context, opened(run(1), context=context)[1], CompareState())
    assert missing(words(drawing[1]), "compare", "hand-made") == []
    assert elements(drawing[2], "button", data_act="sample")[0]["data-sample"] == "checkpointing"
    assert drawing[3:5] == ["", ""]
    assert [element["data-act"] for element in elements(offer_html(), "button")] == ["sample"]
    text = compare_empty_html([Opened("k1", "one", "0", ("0",)), Opened("k2", "two", "0", ("0",))], [])
    assert [element["data-key"] for element in elements(text, "button", data_act="toggle")] == ["k1", "k2"]


def test_with_two_traces_every_part_is_drawn_and_not_again(context):
    drawing = draw(context, opened(run(1), run(2), context=context)[1], CompareState())
    assert drawing[1:3] == ["", ""]
    assert "peaks 1.00 MiB higher" in words(drawing[3])
    assert [bool(each) for each in drawing[5:13]] == [True, True, *[False] * 6]
    assert "From peak A to peak B" in words(drawing[-2])
    current = opened(run(1), run(2), context=context)[1]
    first = draw(context, current, CompareState())
    again = draw(context, current, CompareState(), first[0])
    assert len(again) == len(first)
    assert all(isinstance(each, dict) and each["__type__"] == "update" for each in again)
    current = opened(run(1), run(2), context=context)[1]
    context.store.drop(current.compared[0])
    assert [side.letter for side in sides_of(context, current)] == ["A"]
    drawing = draw(context, opened(run(1), run(2), context=context)[1], CompareState(way=Alignment("step", number=5)))
    assert "Align start" in words(drawing[4])


def test_text_from_a_trace_is_read_as_it_stands(context):
    frames = [frame(HOSTILE, f"{HOSTILE}.py", 1)]
    hostile = [replace(trace_of([alloc(1, n, frames=frames)]), about=About("measured", source=HOSTILE)) for n in (5, 9)]
    for by in ("site", "stack"):
        drawing = draw(context, opened(*hostile, context=context)[1], CompareState(by=by))
        text = "".join(each for each in drawing if isinstance(each, str))
        assert "script" not in tags(text)
        assert HOSTILE in words(text)
