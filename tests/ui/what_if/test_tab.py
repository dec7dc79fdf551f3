"""Tests of when the What if tab answers."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from memviz.ui.shell.session import Context
from memviz.ui.what_if.answer import PARTS, WhatIfAnswers
from memviz.ui.what_if.question import Question, WhatIfState
from memviz.ui.what_if.replays import Replays
from memviz.ui.what_if.tab import FollowedTrace, _WhatIfEvents

VERDICT = 1 + PARTS.index("verdict")
FORM, WAITING = PARTS.index("form"), PARTS.index("waiting")


def followed(context: Context, trace: FollowedTrace) -> list[list[Any]]:
    """The answer of a tab that is not looked at."""
    tab: Any = SimpleNamespace(answers=WhatIfAnswers(context, Replays(context)))
    request: Any = SimpleNamespace(session_hash="somebody", request=None)
    return list(_WhatIfEvents(context, tab)._follow(trace, WhatIfState(), False, request))


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
    answers = WhatIfAnswers(context, Replays(context))
    tab: Any = SimpleNamespace(answers=answers)
    request: Any = SimpleNamespace(session_hash="somebody", request=None)
    events = _WhatIfEvents(context, tab)
    state, refused = WhatIfState(key, Question(max_split="128")), WhatIfState(key, Question(max_split="2"))
    said: list[list[Any]] = []
    has_begun = threading.Event()
    second = threading.Thread(target=lambda: said.extend(events._answer(refused, request)))

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
    for values in events._answer(state, request):
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
    answers = WhatIfAnswers(context, Replays(context))
    tab: Any = SimpleNamespace(answers=answers)
    request: Any = SimpleNamespace(session_hash="somebody", request=None)
    events = _WhatIfEvents(context, tab)
    state = WhatIfState(key, Question(max_split="128"))
    emptied: list[list[Any]] = []
    closing = threading.Thread(target=lambda: emptied.extend(events._follow(FollowedTrace(), state, False, request)))
    plain_find = answers.find

    def find(*given: Any) -> Any:
        closing.start()
        # As far as it comes by itself.
        closing.join(1)
        return plain_find(*given)

    monkeypatch.setattr(answers, "find", find)
    said = list(events._answer(state, request))
    closing.join(60)
    assert not any("<h1" in str(values[VERDICT - 1]) for values in said)
    assert emptied[0][VERDICT] == ""
