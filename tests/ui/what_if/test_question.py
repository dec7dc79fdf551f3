"""Tests of questions: links and forms that hold one, and how it is read."""

from urllib.parse import parse_qsl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memviz.ui.what_if.question import LONGEST, RELEASES, Question, question_in, what_if_query

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
