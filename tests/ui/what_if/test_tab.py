"""The What if tab as a whole: when it answers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from memviz.ui.shell.context import Context
from memviz.ui.what_if.answer import PARTS, WhatIfAnswers
from memviz.ui.what_if.kept_replays import Replays
from memviz.ui.what_if.state import WhatIfState
from memviz.ui.what_if.tab import FollowedTrace, _WhatIfEvents

VERDICT = 1 + PARTS.index("verdict")


def followed(context: Context, trace: FollowedTrace, *, looked_at: bool) -> list[list[Any]]:
    tab: Any = SimpleNamespace(answers=WhatIfAnswers(context, Replays(context)))
    request: Any = SimpleNamespace(session_hash="somebody", request=None)
    return list(_WhatIfEvents(context, tab)._follow(trace, WhatIfState(), looked_at, request))


def test_turned_to_by_the_page_it_answers_though_a_turn_elsewhere_came_late(context: Context, key: str) -> None:
    parts = followed(context, FollowedTrace(key, is_turned_to=True), looked_at=False)
    assert parts[0][0] is True
    assert "<h1" in parts[-1][VERDICT]


def test_a_trace_that_nobody_looks_at_here_is_not_replayed(context: Context, key: str) -> None:
    (only,) = followed(context, FollowedTrace(key), looked_at=False)
    assert only[VERDICT] == ""
