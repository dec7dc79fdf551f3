"""Tests of questions, cached replays, words and values of the What if tab."""

from dataclasses import replace
from typing import Any

import pytest

from memviz.allocator.replayer import CardMemory
from memviz.allocator.settings import Settings, parse_settings
from memviz.analysis.timeline import timeline
from memviz.errors import MemvizError, UsageError
from memviz.trace.model import Trace
from memviz.ui.shell.session import Context, open_trace, timeline_key
from memviz.ui.what_if.answer import EMPTY, PARTS, WhatIfAnswers, first_question
from memviz.ui.what_if.plots import moment_that_matters, plot_value
from memviz.ui.what_if.question import Question, WhatIfState, parse_question, question_of
from memviz.ui.what_if.replays import Replays, Terms
from memviz.ui.what_if.saved_page import what_if_page
from memviz.ui.what_if.settings_form import KnownMemory, form_value
from memviz.ui.what_if.verdict import Answer, refusal_html, search_html, waiting_html, what_if_html
from tests.allocator.driver import GiB, MiB
from tests.allocator.recording import Recorder
from tests.facts import missing
from tests.traces import alloc, block, event, frame, segment, trace_of
from tests.ui.asked_trace import EXPANDABLE, SMALL, growing
from tests.ui.page import words

EVIL = "<img src=x onerror=alert(1)>"


# -- the form


def test_a_form_becomes_pytorch_settings_and_settings_a_form() -> None:
    meant = parse_question(
        Question(expandable=True, max_split="128", roundup="[256:1,512:2]", more="large_segment_size_mb:40")
    )
    assert meant.settings is not None
    assert meant.settings.to_text().startswith(
        "expandable_segments:True,large_segment_size_mb:40,max_split_size_mb:128,"
    )
    assert (meant.card, meant.faults) == (None, {})
    settings = parse_settings(
        "expandable_segments:True,max_split_size_mb:64,roundup_power2_divisions:[64:8,128:2],"
        "large_segment_size_mb:40,pinned_use_background_threads:True"
    )
    asked = Question(max_split="21").with_settings(settings)
    assert parse_question(asked).settings == settings
    assert parse_question(asked.with_settings(Settings())).settings == Settings()


@pytest.mark.parametrize(
    ("asked", "field", "words"),
    [
        (Question(max_split="2"), "max_split", "CachingAllocator option max_split_size_mb too small, must be >= 20"),
        (Question(threshold="1.2"), "threshold", "garbage_collect_threshold is invalid, set it in (0.0, 1.0)"),
        (Question(roundup="3"), "roundup", "For roundups, the divisions has to be power of 2 "),
        (Question(more="nonsense:1"), "more", "Unrecognized key 'nonsense' in CUDA allocator config."),
        (
            Question(expandable=True, release="2.0"),
            "expandable",
            "Unrecognized CachingAllocator option: expandable_segments",
        ),
        (
            Question(max_split="30", more="large_segment_size_mb:40"),
            "more",
            "CachingAllocator option max_split_size_mb",
        ),
        (Question(more="per_process_memory_fraction:0.5"), "more", "give the size of the card"),
        (Question(memory="lots"), "memory", "'lots' is not a size"),
        (Question(memory="0"), "memory", "Memory must be more than 0."),
        (Question(card="4", overhead="5 GiB"), "overhead", "That leaves no memory on a card of 4 GiB."),
    ],
)
def test_refusals_are_at_their_field_in_pytorchs_words(asked: Question, field: str, words: str) -> None:
    meant = parse_question(asked)
    assert meant.settings is None
    assert words in meant.faults[field]
    assert form_value(asked, meant, KnownMemory(None), version="1")["parts"]["pasted"] == ""


@pytest.mark.parametrize(
    ("asked", "card"),
    [
        (Question(), None),
        (Question(memory="1,060 MiB"), CardMemory(1060 * MiB, 0)),
        (Question(memory="1060"), CardMemory(1060 * MiB, 0)),
        (Question(memory="23.5 GiB", card="24"), CardMemory(24 * GiB)),
        (Question(card="24", overhead="1 GiB"), CardMemory(24 * GiB, GiB)),
    ],
)
def test_memory_is_what_was_typed_or_what_a_card_leaves(asked: Question, card: CardMemory | None) -> None:
    assert parse_question(asked).card == card


def test_what_is_typed_is_bounded_and_escaped_and_pasted_as_a_shell_takes_it() -> None:
    asked = question_of({"memory": "x" * 9999, "expandable": "no", "evil": 1, "max_split": " 64 "})
    assert (len(asked.memory), asked.expandable, asked.max_split) == (400, False, "64")
    asked = Question(memory=EVIL, max_split=f'"{EVIL}', more=EVIL, overhead=EVIL)
    assert "<img" not in form_value(asked, parse_question(asked), KnownMemory(5 * GiB), version="1")["html"]

    def pasted(asked: Question) -> str:
        parts = form_value(asked, parse_question(asked), KnownMemory(None), version="1")["parts"]
        return words(parts["pasted"].replace("<wbr></wbr>", "").replace("<wbr>", ""))

    assert 'Copy PYTORCH_CUDA_ALLOC_CONF="roundup_power2_divisions:[1:1,' in pasted(Question(roundup="[256:1,>:4]"))
    assert pasted(Question(expandable=True)).endswith("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True")
    html = form_value(Question(card="24"), parse_question(Question(card="24")), KnownMemory(None), version="1")["html"]
    assert '<option value="24" data-usable="23.5 GiB" selected>24 GiB card, 23.5 usable</option>' in html
    assert 'value="23.5 GiB"' in html


# -- what is kept


def test_a_question_is_replayed_and_searched_once(replays: Replays, key: str) -> None:
    first = replays.what_if(key, EXPANDABLE, SMALL)
    assert replays.what_if(key, EXPANDABLE, SMALL).replayed is first.replayed
    assert replays.what_if(key, EXPANDABLE, Terms(CardMemory(130 * MiB, 0))).recorded is first.recorded
    assert replays.known_search(key, SMALL) is None
    first = replays.search(key, EXPANDABLE, SMALL)
    assert replays.search(key, Settings(), SMALL) is first is replays.known_search(key, SMALL)
    mine = parse_settings("roundup_power2_divisions:16")
    assert mine in [each.settings for each in replays.search(key, mine, SMALL).tried]
    dearer = replace(SMALL, overhead_bytes=GiB)
    assert replays.known_search(key, dearer) is None
    assert replays.search(key, EXPANDABLE, dearer).recorded.smallest_card == CardMemory(4 * GiB, GiB)


def test_a_replay_is_found_by_its_own_name_while_it_is_kept(replays: Replays, key: str) -> None:
    ours = replays.what_if(key, EXPANDABLE, SMALL).replayed
    name = replays.key_of(ours)
    assert replays.find(name) == (ours.trace, ours.trace.devices[0])
    assert replays.find("guess/0") is None
    assert replays.find(key) is not None
    with pytest.raises(UsageError, match="no longer open"):
        replays.replayer("gone/0")


def test_old_replays_go_and_take_their_names_along(context: Context, key: str) -> None:
    replays = Replays(context, most_bytes=1)
    first = replays.what_if(key, EXPANDABLE, SMALL).replayed
    for size in range(130, 150):
        replays.what_if(key, EXPANDABLE, Terms(CardMemory(size * MiB, 0)))
    assert replays.key_of(first) == ""


def test_of_a_long_recording_the_smallest_card_is_not_found_unasked(
    replays: Replays, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert replays.what_if(key, EXPANDABLE, SMALL).smallest_card == CardMemory(4 * GiB)
    monkeypatch.setattr("memviz.ui.what_if.replays._SIZED_UNASKED", 5)
    assert replays.what_if(key, EXPANDABLE, Terms(CardMemory(130 * MiB, 0))).smallest_card is None


# -- messages


def found(replays: Replays, key: str, settings: Settings = EXPANDABLE, terms: Terms = SMALL, **more: Any) -> Answer:
    pair = replays.find(key)
    assert pair is not None
    asked = replays.what_if(key, settings, terms)
    return Answer(pair[1], asked, more.get("searched"), moment_that_matters(pair[1], asked))


def test_the_ranked_settings_are_buttons_with_their_fate(replays: Replays, key: str) -> None:
    searched = replays.search(key, EXPANDABLE, SMALL)
    shown = found(replays, key, searched=searched)
    html = search_html(shown, searched)
    assert 'data-act="use" data-settings="expandable_segments:True"' in html
    assert html.count('aria-current="true"') == 1
    assert missing(words(html), "20.0 MiB", "fits") == []
    assert "✗ stops at event 18" in words(html)
    assert "Find the best" in search_html(shown, None)


def test_progress_has_a_cancel_button() -> None:
    html = waiting_html(0.421, events=1_000_000)
    assert words(html) == "Replaying 1,000,000 events, 42 % Cancel"
    assert 'data-act="cancel"' in html
    assert waiting_html(None, events=5) == ""
    assert "<img" not in refusal_html(EVIL)


# -- the plot and the maps


def test_the_plot_has_live_bytes_once_and_a_line_for_each(replays: Replays, key: str) -> None:
    shown = found(replays, key)
    value = plot_value(shown.device, shown.what_if, at=shown.at, label="")
    columns = value["axes"]["event"]
    names = ["expandable segments", "recorded settings, same limit"]
    assert (value["limit"], value["names"], value["at"]) == (120 * MiB, names, 18)
    assert max(columns["live"]) == 97 * MiB
    assert (max(columns["recorded"]), max(columns["lines"][0])) == (156 * MiB, 100 * MiB)
    assert [each["text"] for each in value["stops"]] == ["out of memory, event 18"]
    at_the_end = timeline(shown.device)
    ours = int(timeline(shown.what_if.replayed.trace.devices[0]).reserved[-1])
    assert value["ends"] == {
        "live": at_the_end.end_bytes,
        "recorded": int(at_the_end.reserved[-1]),
        "lines": [ours, None],
    }


def test_unknown_reserved_bytes_are_never_shown_as_zero(context: Context, replays: Replays) -> None:
    """Events of allocations alone: no line at zero bytes, no bar, no figure."""
    key = timeline_key(open_trace(context.store, trace_of([alloc(0, 30 * MiB), alloc(64 * MiB, 10 * MiB)])))
    searched = replays.search(key, EXPANDABLE, Terms())
    shown = found(replays, key, EXPANDABLE, Terms(), searched=searched)
    value = plot_value(shown.device, shown.what_if, at=shown.at, label="")
    assert (value["axes"]["event"]["recorded"], value["ends"]["recorded"]) == ([], None)
    (recording,) = (row for row in search_html(shown, searched).split("<tr") if "the recording<" in row)
    assert "not in file" in words(recording) and "0 B" not in recording and "mv-reach" not in recording


def test_a_line_ends_where_its_replay_does_and_what_was_not_changed_is_drawn_once(replays: Replays, key: str) -> None:
    shown = found(replays, key, parse_settings("roundup_power2_divisions:4"))
    value = plot_value(shown.device, shown.what_if, at=shown.at, label="")
    assert len(value["axes"]["event"]["lines"][0]) == 20
    assert shown.what_if.replayed.oom is not None
    shown = found(replays, key, Settings(), Terms())
    assert plot_value(shown.device, shown.what_if, at=0, label="")["names"] == []
    assert shown.at == int(timeline(shown.device).reserved.argmax()) - 1


# -- the parts together


def test_an_answer_has_every_part(context: Context, replays: Replays, key: str) -> None:
    answers, meant = WhatIfAnswers(context, replays), parse_question(Question(memory="120 MiB", expandable=True))
    asked, searched = answers.find(key, meant, True, lambda done, total: None)
    pair = context.find(key)
    assert pair is not None
    shown = Answer(pair[1], asked, searched, 18)
    parts = answers.answer_values(WhatIfState(key, with_blocks=True), shown)
    assert parts.keys() == set(PARTS) - {"state", "form"}
    assert [each["caption"] for each in parts["maps"]["maps"]] == [
        "PyTorch's default settings, limit 120 MiB",
        "Expandable segments, limit 120 MiB",
    ]
    assert [parts[each]["badge"] for each in ("recorded", "replayed")] == ["A", "B"]
    assert parts["recorded"]["linked"] == parts["replayed"]["linked"]


def test_behind_the_end_of_a_replay_only_the_recording_is_shown(context: Context, replays: Replays, key: str) -> None:
    answers = WhatIfAnswers(context, replays)
    shown = WhatIfState(key, Question(memory="35 MiB", expandable=True))
    moved = answers.values_at(shown, "18")
    head, maps = moved["head"], moved["maps"]
    assert "chosen on the plot" in head
    assert [each["caption"] for each in maps["maps"]] == ["As recorded"]
    assert answers.values_at(shown, "evil") == {}


def asked_first(context: Context, replays: Replays, trace: Trace) -> tuple[KnownMemory, Question]:
    had = WhatIfAnswers(context, replays).recorded_memory(timeline_key(open_trace(context.store, trace)))
    return had, first_question(trace, trace.devices[0], had)


def test_the_first_question_is_about_segments_that_expand_in_the_memory_it_had(
    context: Context, replays: Replays
) -> None:
    run = Recorder(card=100 * MiB)
    run.malloc(30 * MiB)
    with pytest.raises(Exception, match="Tried to allocate"):
        run.malloc(80 * MiB)
    had, asked = asked_first(context, replays, run.trace())
    assert (had, asked) == (KnownMemory(100 * MiB), Question(memory="100 MiB", expandable=True))
    assert asked_first(context, replays, growing())[1].memory == ""
    run = Recorder(card=100 * MiB)
    run.cached(60 * MiB)
    run.malloc(80 * MiB)
    had, asked = asked_first(context, replays, run.trace())
    assert (had, asked.memory) == (KnownMemory(80 * MiB, is_exact=False), "80 MiB")
    assert "80.0 MiB" in words(form_value(asked, parse_question(asked), had, version="")["html"])


def test_what_a_trace_does_not_hold_is_no_answer(context: Context, replays: Replays) -> None:
    key = timeline_key(open_trace(context.store, trace_of([], [segment(0, 2 * MiB, [block(0, MiB)])])))
    answers = WhatIfAnswers(context, replays)
    asked, searched = answers.find(key, parse_question(Question()), True, lambda done, total: None)
    pair = context.find(key)
    assert pair is not None
    parts = answers.answer_values(WhatIfState(key), Answer(pair[1], asked, searched, -1))
    assert words(parts["verdict"]).startswith("Nothing to replay.")
    assert {name: parts[name] for name in EMPTY if name != "verdict"} == {
        name: value for name, value in EMPTY.items() if name != "verdict"
    }
    trace = trace_of([], host_traces=[[alloc(0, 4096)]], host_segments=[])
    one = open_trace(context.store, trace)
    with pytest.raises(MemvizError, match="Pinned memory uses another allocator"):
        replays.replayer(f"{one.key}/host0")


def test_text_of_a_trace_is_escaped(context: Context, replays: Replays) -> None:
    a = 0x7F0000000000
    names = {"frames": [frame(EVIL)]}
    trace = trace_of([event("segment_alloc", a, 20 * MiB, **names), alloc(a, 5 * MiB, **names)], [])
    evil = replace(trace, about=replace(trace.about, source=EVIL))
    key = timeline_key(open_trace(context.store, evil))
    shown = found(replays, key, EXPANDABLE, Terms())
    page = what_if_page(evil, shown.device, shown.what_if)
    assert "<img" not in what_if_html(shown)
    assert "<img" not in page
