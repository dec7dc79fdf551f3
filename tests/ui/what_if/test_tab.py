"""The What if tab as a whole: when it answers."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from memviz.ui.shell.context import Context
from memviz.ui.what_if.answer import PARTS, WhatIfAnswers
from memviz.ui.what_if.kept_replays import Replays
from memviz.ui.what_if.question import Question
from memviz.ui.what_if.state import WhatIfState
from memviz.ui.what_if.tab import FollowedTrace, _WhatIfEvents

VERDICT = 1 + PARTS.index("verdict")
FORM = PARTS.index("form")


def followed(context: Context, trace: FollowedTrace, *, looked_at: bool) -> list[list[Any]]:
    tab: Any = SimpleNamespace(answers=WhatIfAnswers(context, Replays(context)))
    request: Any = SimpleNamespace(session_hash="somebody", request=None)
    return list(_WhatIfEvents(context, tab)._follow(trace, WhatIfState(), looked_at, request))


def test_turned_to_by_the_page_it_answers_though_a_turn_elsewhere_came_late(context: Context, key: str) -> None:
    parts = followed(context, FollowedTrace(key, is_turned_to=True), looked_at=False)
    assert parts[0][0] is True
    assert "<h1" in parts[-2][VERDICT]


def test_a_trace_that_nobody_looks_at_here_is_not_replayed(context: Context, key: str) -> None:
    only, _ = followed(context, FollowedTrace(key), looked_at=False)
    assert only[VERDICT] == ""


@pytest.mark.parametrize("while_it", ["computes", "is drawn"])
def test_an_answer_that_comes_after_a_refusal_does_not_take_its_words_away(
    context: Context, key: str, monkeypatch: pytest.MonkeyPatch, while_it: str
) -> None:
    answers = WhatIfAnswers(context, Replays(context))
    tab: Any = SimpleNamespace(answers=answers)
    request: Any = SimpleNamespace(session_hash="somebody", request=None)
    events = _WhatIfEvents(context, tab)
    state = WhatIfState(key, Question(max_split="128"))
    refused: list[list[Any]] = []
    slow = {"computes": "find", "is drawn": "drawn"}[while_it]
    plain = getattr(answers, slow)

    def refuse_first(*given: Any) -> Any:
        refused.extend(events._answer(replace(state, question=Question(max_split="2")), request))
        return plain(*given)

    monkeypatch.setattr(answers, slow, refuse_first)
    verdicts = [str(values[VERDICT - 1]) for values in events._answer(state, request)]
    assert [values[FORM]["faults"]["max_split"] for values in refused] == [
        "CachingAllocator option max_split_size_mb too small, must be >= 20"
    ]
    assert not any("<h1" in verdict for verdict in verdicts)
