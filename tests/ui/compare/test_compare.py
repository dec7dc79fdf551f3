"""The Compare tab: links, choices, verdict, scoreboard, controls, and the waterfall with its download."""

import csv
import io
import json
import re
from dataclasses import replace
from urllib.parse import parse_qsl

import pytest

from memviz.analysis.comparing.align import PEAK, START, Alignment
from memviz.analysis.comparing.changes import ComparisonSummary, Setting, scores
from memviz.figures.colouring import colouring
from memviz.figures.packed_timeline import unpack
from memviz.results.comparison import comparison_headline
from memviz.results.headline import Headline
from memviz.trace.model import About, Trace
from memviz.ui.compare.answer import compare_empty_html, compare_verdict_html, offer_html, overlay_value
from memviz.ui.compare.controls import controls_html
from memviz.ui.compare.scoreboard import Board, scoreboard_html
from memviz.ui.compare.state import CompareState, changed, compare_query, compare_session, compare_state_of, sides_of
from memviz.ui.compare.tab import changes_csv, draw
from memviz.ui.compare.waterfall import Waterfall, waterfall, waterfall_html
from memviz.ui.components.tables import highlighted_rows
from memviz.ui.payloads.timelines import linked_name, linked_values
from memviz.ui.saved.report import report_page
from memviz.ui.shell.session import Opened, Session, link_name
from tests.facts import missing
from tests.traces import MiB, alloc, frame, free, pairs_of, trace_of
from tests.ui.opened import found, opened, run, sides
from tests.ui.page import HOSTILE, elements, rows, tags, words

THREE = sides(run(1), run(2), run(3))
OPENED = tuple(each.opened for each in THREE)
SESSION = Session(opened=OPENED, chosen=OPENED[1].key)


def no_sample(_: Session, __: str) -> None:
    return None


@pytest.mark.parametrize(
    "view",
    [
        CompareState(),
        CompareState(other=OPENED[2].key, by="module", sort="name"),
        CompareState(way=PEAK, axis="time", overlay=True),
        CompareState(way=Alignment("step", number=3)),
        CompareState(way=Alignment("annotation", name="a & b=c")),
    ],
)
def test_what_a_link_says_is_what_it_restores(view):
    query = dict(parse_qsl(compare_query(THREE, view)))
    session = compare_session(SESSION, query, no_sample)
    assert session is not None
    assert session.compared == tuple(each.key for each in OPENED)
    assert (session.current, compare_state_of(session, query)) == (OPENED[0], view)


def test_what_cannot_be_restored_is_left_out():
    query = {"traces": f"{link_name(OPENED[0])},0123456789ab"}
    assert compare_session(SESSION, query, no_sample) is None
    assert compare_session(SESSION, {}, no_sample) is None
    nonsense = {"by": "x", "sort": "x", "align": "x", "axis": "x", "overlay": "x", "other": "AB", "step": "x"}
    assert compare_state_of(SESSION, nonsense) == CompareState()
    query = compare_query(THREE, CompareState(other=OPENED[2].key))
    assert not [each.key for each in OPENED if each.key in query]


def test_samples_are_opened_by_their_names():
    sample = Opened("new-key", "training", "0", ("0",), sample="training.pickle.gz")

    def open_it(session: Session, name: str) -> Session | None:
        return session.with_opened(sample) if name == link_name(sample) else None

    found = compare_session(SESSION, {"traces": f"{link_name(sample)},{link_name(OPENED[0])}"}, open_it)
    assert found is not None
    assert found.compared == ("new-key", OPENED[0].key)


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


_AS_OPENED = CompareState()
_BAR = "Peak"


# -- the verdict


def test_a_name_that_has_its_letter_is_not_given_it_twice():
    name = "run" * 30
    traces = (run(9), run(2), run(5))
    told = ComparisonSummary(found(*traces, by="site"), pairs_of(*traces))
    assert comparison_headline(told, [name, name, "int8"]).reason.endswith("n (A) is the highest.")
    assert "A, " not in comparison_headline(told, [name, name, "int8"]).reason


def test_settings_that_differ_are_named_with_who_has_which():
    settings = [
        Setting("expandable_segments", ("False", "True", "False")),
        Setting("only_newer_files_say", (None, "True", "True")),
    ]
    text = words(compare_verdict_html(Headline("It grew."), settings))
    assert "Their allocator settings differ. expandable_segments: False (A, C), True (B)." in text
    assert "only_newer" not in text


# -- the scoreboard


def board(*traces: Trace, other: int = 1, **more) -> str:
    pairs = pairs_of(*traces)
    return scoreboard_html(Board(sides(*traces), scores(pairs), colouring(*pairs[0]).labels, other, **more))


def test_a_row_per_trace_on_one_scale():
    text = board(run(6, reserved=8), run(9, reserved=12))
    assert rows(text) == [
        ["Trace, measured", _BAR, "Live", "Reserved", "Gap", "vs A", "Recorded", "Remove"],
        ["A run-0", "", "6.00 MiB", "8.00 MiB", "25 %", "baseline", "2.00 ms", "×"],
        ["B run-1", "", "9.00 MiB", "12.0 MiB", "25 %", "▲ 3.00 MiB", "2.00 ms", "×"],
    ]
    ticks = [element["style"] for element in elements(text, "i", class_="mv-tick")]
    assert ticks == ["left:66.667%", "left:100.000%"]
    hatched = [element["style"] for element in elements(text, "i", class_="mv-hatched")]
    assert hatched == ["width:16.667%", "width:25.000%"]


def test_an_estimate_or_a_run_without_times_took_none_and_says_so():
    estimate = replace(run(9), about=About("replayed", "checkpoint 2 layers, an estimate from the trace"))
    assert [row[-2] for row in rows(board(run(6, reserved=8), estimate))] == ["Recorded", "2.00 ms", "no times"]
    assert "Recorded" not in words(board(estimate, estimate))
    origins = words(board(run(6, reserved=8), estimate))
    assert "A run-0 measured, cuda:0" in origins, "where they differ, each row says what it is"
    untimed = trace_of([alloc(0, 9)])
    assert "Recorded" not in words(board(untimed, untimed))
    assert "not in file" in words(board(untimed, run(1)))
    assert "Loss" not in words(board(run(1), run(2)))
    told = replace(run(2), about=About("measured", facts={"loss": "2.31"}))
    assert [row[-2] for row in rows(board(run(1), told))] == ["Loss", "not in file", "2.31"]


def test_what_the_file_does_not_tell_of_reserved_memory_is_no_figure():
    text = board(run(6), run(9, reserved=12))
    assert [row[3:5] for row in rows(text)[1:]] == [["not in file", "not in file"], ["12.0 MiB", "25 %"]]
    assert len(elements(text, "i", class_="mv-tick")) == 1
    labels = [element["aria-label"] for element in elements(text, "div", class_="mv-peakbar")]
    assert labels == ["6.00 MiB live, reserved not in file", "9.00 MiB live of 12.0 MiB reserved"]


def test_rows_lead_to_baseline_way_and_removal():
    text = board(run(1), run(2))
    assert [element["data-key"] for element in elements(text, "button", data_act="baseline")] == ["key0", "key1"]
    assert [element["data-key"] for element in elements(text, "button", data_act="toggle")] == ["key0", "key1"]
    text = board(run(1), run(2), run(3), other=2)
    pressed = [(element["data-key"], element["aria-pressed"]) for element in elements(text, "button", data_act="other")]
    assert pressed == [("key1", "false"), ("key2", "true")]
    assert elements(board(run(1), run(2)), "button", data_act="other") == []


def test_what_is_open_besides_can_be_added():
    text = board(run(1), run(2), also_open=(Opened("key9", "third", "0", ("0",)),))
    assert [element["data-key"] for element in elements(text, "button", role="checkbox")] == ["key9"]
    eight = board(*[run(1)] * 8, also_open=(Opened("key9", "ninth", "0", ("0",)),))
    assert missing(words(eight), "traces", "compared") == []
    assert elements(eight, "button", role="checkbox") == []


# -- above the timelines


def controls(view: CompareState = _AS_OPENED, *, timed: bool = True) -> str:
    pairs = pairs_of(run(1), run(2))
    order = colouring(*pairs[0]).labels
    given = (START, PEAK, Alignment("step", number=1), Alignment("annotation", name="<b>a</b>"))
    return controls_html(view, scores(pairs), order, given, names=("run-0", "run-1"), other=1, has_times=timed)


def test_the_legend_names_what_was_there_at_another_moment_than_the_peak():
    gone = [alloc(0, 4 * MiB, user_metadata="gradient"), *free(0, 4 * MiB)]
    trace = trace_of([*gone, alloc(MiB * 64, 40 * MiB, user_metadata="activation")])
    pairs = pairs_of(trace, trace)
    held = scores(pairs)
    assert ([kind for kind, _ in held[0].kinds], dict(held[0].highest)) == (
        ["activation"],
        {"gradient": 4 * MiB, "activation": 40 * MiB},
    )
    order = colouring(*pairs[0]).labels
    text = controls_html(_AS_OPENED, held, order, (START,), names=("a", "b"), other=1, has_times=False)
    named = [element["data-compare-row"] for element in elements(text, "button", data_compare_by="category")]
    assert sorted(named) == ["activation", "gradient"]


def test_ways_to_align_and_the_axis_are_buttons_with_their_reason():
    text = controls(CompareState(way=Alignment("step", number=1)))
    options = elements(text, "button", data_act="align")
    assert [(option["data-value"], option.get("data-number"), option["aria-pressed"]) for option in options] == [
        ("start", None, "false"),
        ("peak", None, "false"),
        ("step", "1", "true"),
        ("annotation", None, "false"),
    ]
    assert options[3]["data-name"] == "<b>a</b>"
    assert "b" not in tags(text)
    button = elements(controls(timed=False), "button", data_value="time")[0]
    assert (button["aria-disabled"], button.get("data-act")) == ("true", None)
    text = words(controls(CompareState(overlay=True)))
    assert "A run-0 B run-1 B above A B below A" in text
    assert [element["data-compare-row"] for element in elements(controls(), "button", data_compare_by="category")] == [
        "unknown"
    ]


# -- the timelines


def test_linked_timelines_share_their_scale_ruler_and_name_and_the_overlay_waits_for_all():
    chosen = sides(run(6, reserved=8), run(9, reserved=12))
    first, second = linked_values(chosen)
    shared = ("linked", "top", "ruler", "axis", "plain", "band")
    assert {key: first[key] for key in shared} == {key: second[key] for key in shared}
    assert (first["top"], first["ruler"]) == (12 * MiB * 1.06, {"bytes": 6 * MiB, "text": "A 6.00 MiB"})
    assert [(each["badge"], each["name"]) for each in (first, second)] == [("A", "run-0"), ("B", "run-1")]
    assert first["align"]["event"] == {"span": [0, 3], "extent": [0, 1], "focus": [0, 1]}
    assert linked_name(chosen) != linked_name(chosen[::-1])
    value = overlay_value(sides(run(1), run(2)), CompareState(overlay=True))
    assert (value["count"], value["other"], value["shown"]) == (2, 1, True)


def fall(*traces: Trace, **options) -> Waterfall:
    return waterfall(found(*traces), options.pop("other", 1), **options)


def drawn(*traces: Trace, **options) -> str:
    return waterfall_html(fall(*traces, **options), "name", ("a/0", "b/0"))


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
    text = waterfall_html(fall(run(1), run(2)), "name", ("a/0", "b/0"), has_modules=False)
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
