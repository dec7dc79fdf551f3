"""Tests of when the What if tab answers."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from memviz.ui.shell.background_jobs import BackgroundJobs
from memviz.ui.shell.session import Context
from memviz.ui.what_if.answer import PARTS, WhatIfAnswers
from memviz.ui.what_if.question import Question, WhatIfState
from memviz.ui.what_if.replays import Replays
from memviz.ui.what_if.tab import FollowedTrace, WhatIfTab

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
    assert forms[-1]["faults"] == {
        "max_split": "CachingAllocator option max_split_size_mb too small, must be >= 20",
    }
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
