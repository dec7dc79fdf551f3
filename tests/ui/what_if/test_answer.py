"""Tests of what is saved or opened from the What if tab."""

from dataclasses import replace
from pathlib import Path

from memviz.analysis.timeline import timeline
from memviz.trace.load import load_trace
from memviz.ui.shell.session import Context, Session
from memviz.ui.upload.opening import reopen_traces
from memviz.ui.what_if.answer import WhatIfAnswers
from memviz.ui.what_if.question import Question, WhatIfState
from memviz.ui.what_if.replays import Replays
from tests.ui.asked_trace import EXPANDABLE, SMALL, growing


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
