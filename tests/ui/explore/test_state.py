"""The state of Explore: values from a browser are clamped, and an answer reflects the latest message."""

import re
from collections.abc import Mapping
from typing import Any

import pytest

from memviz.ui.explore.state import Chosen, ExploreState, LatestInput, chosen_of
from memviz.ui.explore.tab import initial_selection
from memviz.ui.shell.session import Opened, Session, timeline_key
from tests.traces import alloc, free, trace_of

KEY = "abc/0"


@pytest.fixture
def device():
    """Four events with the peak after event 1, and two allocations."""
    return trace_of([alloc(1, 10), alloc(2, 20), *free(1, 10)]).devices[0]


@pytest.mark.parametrize(
    ("said", "chosen"),
    [
        ({"at": -1, "pin": 1, "range": [3, 0]}, Chosen(KEY, at=-1, pin=1, range=(0, 3))),
        ({"key": "other/0", "at": 0, "pin": 1}, Chosen(KEY, at=1)),
        ({"at": 99, "pin": 99}, Chosen(KEY, at=3)),
        ({"at": -7, "pin": -7}, Chosen(KEY, at=-1)),
        ({"at": "2", "pin": True, "range": "ab"}, Chosen(KEY, at=1)),
        ({"at": None, "pin": 1.5, "range": [1]}, Chosen(KEY, at=1)),
        ({"at": 2, "range": [-50, 50]}, Chosen(KEY, at=2, range=(-1, 3))),
        ({"at": 2, "range": [1, None]}, Chosen(KEY, at=2)),
    ],
)
def test_what_a_browser_says_is_kept_within_bounds(device, said, chosen):
    assert chosen_of({}, KEY, device) == Chosen(KEY, at=1), "it begins at the peak"
    assert chosen_of({"key": KEY, **said}, KEY, device) == chosen


@pytest.mark.parametrize(
    ("data", "look"),
    [
        ({"act": "tab", "value": "never"}, ExploreState(tab="never")),
        ({"act": "by", "value": "module"}, ExploreState(by="module")),
        ({"act": "sort", "value": "count"}, ExploreState(sort="count")),
        ({"act": "sort", "value": "name"}, ExploreState(sort="name", is_rising=True)),
        ({"act": "sort", "value": "bytes"}, ExploreState(is_rising=True)),
        ({"act": "more"}, ExploreState(is_long=True)),
        ({"act": "zoom", "lightGroup": "1,2", "lightBy": "path"}, ExploreState(path="1,2", path_key=KEY)),
        ({"act": "zoom", "lightGroup": "1,2", "value": "1"}, ExploreState(path="1", path_key=KEY)),
        *(({"act": act}, ExploreState()) for act in ("", "by", "drop")),
        ({"act": "tab", "value": "<b>"}, ExploreState()),
        ({"act": "sort", "value": "__class__"}, ExploreState()),
        ({}, ExploreState()),
    ],
)
def test_a_click_changes_one_thing_and_what_is_no_control_nothing(data, look):
    assert ExploreState().clicked(data, KEY) == look


def test_a_path_belongs_to_its_trace_and_a_query_is_bounded():
    look = ExploreState().clicked({"act": "zoom", "lightGroup": "1,2"}, KEY)
    assert (look.path_of(KEY), look.path_of("other/0")) == ("1,2", "")
    assert ExploreState().finding(f"  {'x' * 999}").query == "x" * 198


ONE = Session(opened=(Opened("one", "one", "cuda:0", ("cuda:0",)),), chosen="one")
KEY_OF_ONE = timeline_key(ONE.current)


def test_what_is_chosen_while_an_answer_is_computed_is_answered() -> None:
    heard = LatestInput()
    heard.session = ONE

    def answer(session: Session, state: ExploreState, chosen: Mapping[str, Any]) -> list[Any]:
        # The visitor continues during the answer: first on the timeline, then to another tab.
        if not chosen:
            heard.chosen = {"key": KEY_OF_ONE, "at": 3}
        elif state.tab == "live":
            heard.state = ExploreState(tab="events")
        return [session.chosen, state.tab, chosen.get("at")]

    assert heard.answer_latest(answer)[:-1] == ["one", "events", 3]


def test_an_event_from_before_its_trace_was_closed_does_not_bring_it_back() -> None:
    heard = LatestInput()
    heard.hear(ONE)
    assert heard.session.current is None
    heard.session = ONE
    renamed = ONE.renaming("one", "mine", "one.pickle")
    heard.hear(renamed)
    assert heard.session is renamed


def test_numbers_of_answers_rise_and_one_that_was_overtaken_gets_the_higher_one() -> None:
    heard, inner = LatestInput(), []

    def answer(session: Session, state: ExploreState, chosen: Mapping[str, Any]) -> list[Any]:
        if not inner:
            heard.chosen = {"key": KEY_OF_ONE, "at": 3}
            inner.append(number_of(heard.answer_latest(lambda *now: [])))
        return []

    assert number_of(heard.answer_latest(answer)) > inner[0]


def number_of(made: list[Any]) -> int:
    return int(re.sub(r"\D", "", made[-1]))


def test_nobody_hears_of_another_visitors_choice() -> None:
    one, other = LatestInput(), LatestInput()
    one.chosen = {"key": KEY_OF_ONE, "at": 3}
    assert other.answer_latest(lambda *now: [now[-1]])[0] == {}


def test_another_trace_begins_where_somebody_chose_in_it_or_where_a_link_says() -> None:
    here, there = {"key": KEY_OF_ONE, "at": 3}, {"key": "other/0", "at": 5}
    linked = {"linked": {"key": KEY_OF_ONE, "at": 7}}
    assert initial_selection(ONE, {}, {}) == {}
    assert initial_selection(ONE, there, there) == {}, "what was chosen in the trace before is forgotten"
    assert initial_selection(ONE, here, {}) == here
    assert initial_selection(ONE, linked, there) == linked["linked"]
    assert initial_selection(ONE, there, here) == here, "already chosen in this one, while its answer was on the way"
    assert initial_selection(Session(), here, {}) == {}
