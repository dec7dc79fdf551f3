"""An answer reflects the latest message, even if it began before it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from memviz.ui.explore.state import ExploreState, LatestInput
from memviz.ui.explore.tab import initial_selection
from memviz.ui.shell.session import Opened, Session, timeline_key

ONE = Session(opened=(Opened("one", "one", "cuda:0", ("cuda:0",)),), chosen="one")
KEY = timeline_key(ONE.current) if ONE.current else ""


def test_what_is_chosen_while_an_answer_is_computed_is_answered() -> None:
    heard = LatestInput()
    heard.session = ONE

    def answer(session: Session, state: ExploreState, chosen: Mapping[str, Any]) -> list[Any]:
        # The visitor continues during the answer: first on the timeline, then to another tab.
        if not chosen:
            heard.chosen = {"key": KEY, "at": 3}
        elif state.tab == "live":
            heard.state = ExploreState(tab="events")
        return [session.chosen, state.tab, chosen.get("at")]

    assert heard.answered(answer)[:-1] == ["one", "events", 3]


def test_numbers_of_answers_rise_and_one_that_was_overtaken_gets_the_higher_one() -> None:
    heard, inner = LatestInput(), []

    def answer(session: Session, state: ExploreState, chosen: Mapping[str, Any]) -> list[Any]:
        if not inner:
            heard.chosen = {"key": KEY, "at": 3}
            inner.append(number(heard.answered(lambda *now: [])))
        return []

    assert number(heard.answered(answer)) > inner[0]


def number(made: list[Any]) -> int:
    return int(re.sub(r"\D", "", made[-1]))


def test_nobody_hears_of_another_visitors_choice() -> None:
    one, other = LatestInput(), LatestInput()
    one.chosen = {"key": KEY, "at": 3}
    assert other.answered(lambda *now: [now[-1]])[0] == {}


def test_another_trace_begins_where_somebody_chose_in_it_or_where_a_link_says() -> None:
    here, there = {"key": KEY, "at": 3}, {"key": "other/0", "at": 5}
    linked = {"linked": {"key": KEY, "at": 7}}
    assert initial_selection(ONE, {}, {}) == {}
    assert initial_selection(ONE, there, there) == {}, "what was chosen in the trace before is forgotten"
    assert initial_selection(ONE, here, {}) == here
    assert initial_selection(ONE, linked, there) == linked["linked"]
    assert initial_selection(ONE, there, here) == here, "already chosen in this one, while its answer was on the way"
    assert initial_selection(Session(), here, {}) == {}
