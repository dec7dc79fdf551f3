"""The verdict above the table of the Compare tab, as text."""

from dataclasses import replace

from memviz.analysis.comparing.align import PEAK, START, Alignment
from memviz.analysis.comparing.changes import ComparisonSummary, Setting, scores
from memviz.figures.colouring import colouring
from memviz.results.comparison import comparison_headline
from memviz.results.headline import Headline
from memviz.trace.model import About, Trace
from memviz.ui.compare.answer import compare_verdict_html, overlay_value
from memviz.ui.compare.controls import Controls, controls_html
from memviz.ui.compare.scoreboard import Board, scoreboard_html
from memviz.ui.compare.state import CompareState
from memviz.ui.payloads.timelines import linked_name, linked_values
from memviz.ui.shell.session import Opened
from tests.facts import missing
from tests.traces import MiB, alloc, free, pairs_of, trace_of
from tests.ui.compared_runs import found, run, sides
from tests.ui.page import elements, rows, tags, words

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
    names = tuple(f"run-{i}" for i in range(2))
    order = colouring(*pairs[0]).labels
    given = (START, PEAK, Alignment("step", number=1), Alignment("annotation", name="<b>a</b>"))
    return controls_html(Controls(view, tuple(scores(pairs)), order, given, has_times=timed, names=names, other=1))


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
    text = controls_html(Controls(_AS_OPENED, tuple(held), order, (START,), has_times=False, names=("a", "b"), other=1))
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
