"""The state of the Explore tab; values from a browser are clamped to their bounds."""

from __future__ import annotations

import pytest

from memviz.ui.explore.state import Chosen, ExploreState, chosen_of
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
    ],
)
def test_a_click_changes_one_thing(data, look):
    assert ExploreState().clicked(data, KEY) == look


@pytest.mark.parametrize(
    "data",
    [{}, {"act": "tab", "value": "<b>"}, {"act": "by"}, {"act": "sort", "value": "__class__"}, {"act": "drop"}],
)
def test_what_is_no_control_changes_nothing(data):
    assert ExploreState().clicked(data, KEY) == ExploreState()


def test_a_path_belongs_to_its_trace_and_a_query_is_bounded():
    look = ExploreState().clicked({"act": "zoom", "lightGroup": "1,2"}, KEY)
    assert (look.path_of(KEY), look.path_of("other/0")) == ("1,2", "")
    assert ExploreState().finding(f"  {'x' * 999}").query == "x" * 198
