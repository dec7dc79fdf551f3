"""A link to a comparison restores it."""

from urllib.parse import parse_qsl

import pytest

from memviz.analysis.comparing.align import PEAK, Alignment
from memviz.ui.compare.state import CompareState, compare_query, compare_session, compare_state_of
from memviz.ui.shell.session import Opened, Session, link_name
from tests.ui.compared_runs import run, sides

THREE = sides(run(1), run(2), run(3))
OPENED = tuple(each.opened for each in THREE)
SESSION = Session(opened=OPENED, chosen=OPENED[1].key)


def no_sample(_: Session, __: str) -> None:
    return None


@pytest.mark.parametrize(
    "view",
    [
        CompareState(),
        CompareState(other=OPENED[2].key, by="module", sort="name"),
        CompareState(way=PEAK, axis="time", overlay=True),
        CompareState(way=Alignment("step", number=3)),
        CompareState(way=Alignment("annotation", name="a & b=c")),
    ],
)
def test_what_a_link_says_is_what_it_restores(view):
    query = dict(parse_qsl(compare_query(THREE, view)))
    session = compare_session(SESSION, query, no_sample)
    assert session is not None
    assert session.compared == tuple(each.key for each in OPENED)
    assert (session.current, compare_state_of(session, query)) == (OPENED[0], view)


def test_what_cannot_be_restored_is_left_out():
    query = {"traces": f"{link_name(OPENED[0])},0123456789ab"}
    assert compare_session(SESSION, query, no_sample) is None
    assert compare_session(SESSION, {}, no_sample) is None
    nonsense = {"by": "x", "sort": "x", "align": "x", "axis": "x", "overlay": "x", "other": "AB", "step": "x"}
    assert compare_state_of(SESSION, nonsense) == CompareState()
    query = compare_query(THREE, CompareState(other=OPENED[2].key))
    assert not [each.key for each in OPENED if each.key in query]


def test_samples_are_opened_by_their_names():
    sample = Opened("new-key", "training", "0", ("0",), sample="training.pickle.gz")

    def open_it(session: Session, name: str) -> Session | None:
        return session.with_opened(sample) if name == link_name(sample) else None

    found = compare_session(SESSION, {"traces": f"{link_name(sample)},{link_name(OPENED[0])}"}, open_it)
    assert found is not None
    assert found.compared == ("new-key", OPENED[0].key)
