"""The What if tab: questions, cached replays and their limits, views, what is saved, and when it answers."""

import re
import threading
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qsl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memviz.allocator.replayer import CardMemory, Replayer
from memviz.allocator.settings import Settings, parse_settings
from memviz.analysis.timeline import timeline
from memviz.errors import MemvizError, UsageError
from memviz.trace.load import load_trace
from memviz.trace.model import Trace
from memviz.ui.shell.background_jobs import BackgroundJobs
from memviz.ui.shell.session import Context, Session, open_trace, timeline_key
from memviz.ui.shell.store import TraceStore
from memviz.ui.upload.opening import reopen_traces
from memviz.ui.what_if.answer import EMPTY, PARTS, WhatIfAnswers, first_question
from memviz.ui.what_if.plots import moment_that_matters, plot_value
from memviz.ui.what_if.question import (
    LONGEST,
    RELEASES,
    Question,
    WhatIfState,
    parse_question,
    question_in,
    question_of,
    what_if_query,
)
from memviz.ui.what_if.replays import SECONDS_SETTING, Replays, Terms, TooLong, most_seconds
from memviz.ui.what_if.saved_page import what_if_page
from memviz.ui.what_if.settings_form import KnownMemory, form_value
from memviz.ui.what_if.tab import FollowedTrace, WhatIfTab
from memviz.ui.what_if.verdict import Answer, refusal_html, search_html, waiting_html, what_if_html
from tests.allocator.driver import GiB
from tests.allocator.recording import Recorder
from tests.facts import missing
from tests.traces import MiB, alloc, block, event, frame, segment, trace_of
from tests.ui.opened import EXPANDABLE, SMALL, growing
from tests.ui.page import words

typed = st.text(max_size=20).map(str.strip)


@given(
    st.builds(
        Question,
        memory=typed,
        card=st.sampled_from(["", "24", "80"]),
        overhead=typed,
        expandable=st.booleans(),
        max_split=typed,
        roundup=typed,
        threshold=typed,
        more=typed,
        release=st.sampled_from([f"{major}.{minor}" for major, minor in RELEASES]),
    )
)
def test_what_a_link_says_is_what_it_asks(asked):
    query = dict(parse_qsl(what_if_query(asked), keep_blank_values=True))
    assert query.pop("tab") == "what-if"
    assert question_in(query) == asked


def test_defaults_are_not_spelled_out():
    assert what_if_query(Question()) == "tab=what-if"
    assert what_if_query(Question(memory="24 GiB", expandable=True)) == "tab=what-if&memory=24+GiB&expandable=1"


@pytest.mark.parametrize("nonsense", [{"expandable": "yes"}, {"release": "9.9.9"}, {"memory": "x" * 10_000}])
def test_nonsense_is_asked_as_it_stands_and_no_longer_than_a_form_takes(nonsense):
    asked = question_in(nonsense)
    assert not asked.expandable
    assert all(len(str(value)) <= LONGEST for value in (asked.memory, asked.release))


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


BASE = 0x7000_0000_0000
OOM = {"action": "oom", "device_free": 1, "size": 1 << 30, "stream": 0}


@pytest.fixture(scope="module")
def long() -> Trace:
    """Its mapped ranges touch nowhere, so that each is an address space of its own."""
    rows = [event("segment_map", BASE - (i << 26), 20 * MiB) for i in range(6000)]
    return trace_of([*rows, alloc(BASE, 512), OOM], [segment(BASE, 2 * MiB, [])])


@pytest.fixture
def opened(long: Trace) -> tuple[WhatIfAnswers, str]:
    context = Context(TraceStore())
    key = timeline_key(open_trace(context.store, long))
    return WhatIfAnswers(context, Replays(context)), key


def test_a_question_that_takes_longer_ends_in_words(
    opened: tuple[WhatIfAnswers, str], long: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, key = opened
    question = first_question(long, long.devices[0], KnownMemory(None))
    monkeypatch.setenv(SECONDS_SETTING, "0.000001")
    with pytest.raises(TooLong, match=re.escape(f"raise {SECONDS_SETTING}")):
        answers.find(key, parse_question(question), True, lambda done, total: None)
    assert answers.displayed_answer(WhatIfState(key=key, question=question)) is None


def test_what_nobody_asked_for_is_tried_once(
    opened: tuple[WhatIfAnswers, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, key = opened
    monkeypatch.setattr("memviz.ui.what_if.answer.UNASKED_SECONDS", 1e-6)
    assert answers.recorded_memory(key) == KnownMemory(None)
    monkeypatch.setattr(answers.replays, "replayer", lambda *given: pytest.fail("It was tried again."))
    assert answers.recorded_memory(key) == KnownMemory(None)


def test_a_replay_asks_every_few_thousand_events_whether_to_go_on(long: Trace) -> None:
    told: list[int] = []
    device = long.devices[0]
    Replayer(long, device).as_recorded(lambda done, total: told.append(done))
    steps = [after - before for before, after in pairwise([*told, len(device.events)]) if after > before]
    assert steps and max(steps) <= 2048


def test_the_limit_grows_with_the_recording_and_can_be_set(long: Trace) -> None:
    device = long.devices[0]
    assert most_seconds(device, {}) == pytest.approx(10.6, abs=0.1)
    assert most_seconds(device, {SECONDS_SETTING: "3"}) == 3
    with pytest.raises(UsageError, match=SECONDS_SETTING):
        most_seconds(device, {SECONDS_SETTING: "soon"})


def answers_and_shown(context: Context, replays: Replays, key: str) -> tuple[WhatIfAnswers, WhatIfState]:
    return WhatIfAnswers(context, replays), WhatIfState(key, Question(memory="120 MiB", expandable=True))


def test_the_replay_is_opened_once_as_a_trace_of_its_own(context: Context, replays: Replays, key: str) -> None:
    answers, shown = answers_and_shown(context, replays, key)
    name = key.partition("/")[0]
    session = Session().with_opened(reopen_traces(context.store, [[name, ""]]).opened[0])
    kept = answers.with_replay(shown, session, compared=False)
    assert [each.name for each in kept.opened] == ["hand-made", "replay of hand-made in 120 MiB"]
    assert kept.current is kept.opened[-1]
    found = context.current(kept)
    assert found is not None
    assert found[0].about.label == "replayed with expandable_segments:True"
    assert timeline(found[1]).peak_bytes == timeline(growing().devices[0]).peak_bytes
    again = answers.with_replay(shown, kept.choosing(name), compared=True)
    assert len(again.opened) == 2
    assert again.compared == (name, kept.chosen)
    mine = answers.with_replay(shown, session.renaming(name, "mine", "hand-made"), compared=False)
    assert mine.current is not None and "replay of mine" in mine.current.name


def test_without_an_answer_nothing_is_opened_or_saved(context: Context, replays: Replays, key: str) -> None:
    answers, shown = answers_and_shown(context, replays, key)
    refused = replace(shown, question=Question(max_split="2"))
    assert answers.with_replay(refused, Session(), compared=True) == Session()
    assert answers.shared_files(refused, Session()) == answers.shared_files(WhatIfState("gone/0"), Session()) == {}


def test_the_saved_replay_is_a_snapshot_that_says_what_it_is(
    context: Context, replays: Replays, key: str, tmp_path: Path
) -> None:
    answers, shown = answers_and_shown(context, replays, key)
    name, write = answers.shared_files(shown, Session())["snapshot"]
    assert name == "hand-made-replayed.pickle"
    write(path := tmp_path / name)
    again = load_trace(path)
    assert again.about.label == "replayed with expandable_segments:True"
    assert again.devices[0].events == replays.what_if(key, EXPANDABLE, SMALL).replayed.trace.devices[0].events


def test_whoever_comes_back_to_a_trace_finds_the_form_as_it_was_left() -> None:
    asked = Question(max_split="64")
    other, is_new = WhatIfState("a/0", asked, with_blocks=True).turned_to("b/0")
    assert (other.key, other.question, other.with_blocks, is_new) == ("b/0", Question(), True, True)
    back, is_new = other.turned_to("a/0")
    assert (back.key, back.question, is_new) == ("a/0", asked, False)


VERDICT = 1 + PARTS.index("verdict")
FORM, WAITING = PARTS.index("form"), PARTS.index("waiting")


REQUEST: Any = SimpleNamespace(session_hash="somebody", request=None)


def tab_of(context: Context) -> WhatIfTab:
    """The tab without its components."""
    tab = WhatIfTab.__new__(WhatIfTab)
    tab.context, tab.answers, tab.jobs = context, WhatIfAnswers(context, Replays(context)), BackgroundJobs()
    return tab


def followed(context: Context, trace: FollowedTrace) -> list[list[Any]]:
    """The answer of a tab that is not looked at."""
    return list(tab_of(context)._follow(trace, WhatIfState(), False, REQUEST))


def test_turned_to_by_the_page_it_answers_though_a_turn_elsewhere_came_late(context: Context, key: str) -> None:
    parts = followed(context, FollowedTrace(key, is_turned_to=True))
    assert parts[0][0] is True
    assert "<h1" in parts[-2][VERDICT]


def test_a_trace_that_nobody_looks_at_here_is_not_replayed(context: Context, key: str) -> None:
    only, _ = followed(context, FollowedTrace(key))
    assert only[VERDICT] == ""


@pytest.mark.parametrize("while_it", ["computes", "is drawn", "is sent"])
def test_an_answer_does_not_take_away_the_words_of_a_refusal_that_came_meanwhile(
    context: Context, key: str, monkeypatch: pytest.MonkeyPatch, while_it: str
) -> None:
    tab = tab_of(context)
    answers = tab.answers
    state, refused = WhatIfState(key, Question(max_split="128")), WhatIfState(key, Question(max_split="2"))
    said: list[list[Any]] = []
    has_begun = threading.Event()
    second = threading.Thread(target=lambda: said.extend(tab._answer(refused, REQUEST)))

    def ask_meanwhile() -> None:
        if not has_begun.is_set():
            second.start()
            # As far as it comes by itself.
            second.join(1)
            has_begun.set()

    def find(*given: Any) -> Any:
        if while_it == "computes":
            ask_meanwhile()
        assert while_it != "is sent" or has_begun.wait(60)
        return plain_find(*given)

    def drawn(*given: Any) -> Any:
        if while_it == "is drawn":
            ask_meanwhile()
        return plain_drawn(*given)

    plain_find, plain_drawn = answers.find, answers.answer_values
    monkeypatch.setattr(answers, "find", find)
    monkeypatch.setattr(answers, "answer_values", drawn)
    for values in tab._answer(state, REQUEST):
        if while_it == "is sent" and "Replaying" in str(values[WAITING]):
            ask_meanwhile()
        said.append(values)
    second.join(60)
    forms = [values[FORM] for values in said if "faults" in values[FORM]]
    assert forms[-1]["faults"] == {"max_split": "CachingAllocator option max_split_size_mb too small, must be >= 20"}
    assert [values[WAITING] for values in said if isinstance(values[WAITING], str)][-1] == ""
    assert not any("<h1" in str(values[VERDICT - 1]) for values in said)


def test_an_answer_about_a_trace_that_is_closed_meanwhile_is_not_shown(
    context: Context, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tab = tab_of(context)
    answers = tab.answers
    state = WhatIfState(key, Question(max_split="128"))
    emptied: list[list[Any]] = []
    closing = threading.Thread(target=lambda: emptied.extend(tab._follow(FollowedTrace(), state, False, REQUEST)))
    plain_find = answers.find

    def find(*given: Any) -> Any:
        closing.start()
        # As far as it comes by itself.
        closing.join(1)
        return plain_find(*given)

    monkeypatch.setattr(answers, "find", find)
    said = list(tab._answer(state, REQUEST))
    closing.join(60)
    assert not any("<h1" in str(values[VERDICT - 1]) for values in said)
    assert emptied[0][VERDICT] == ""
