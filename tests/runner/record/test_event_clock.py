"""Moments put between events by counting allocations and frees."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from memviz.runner.record.log import Counts, comparable, event_indices
from tests.traces import event, trace_of

ACTIONS = st.lists(st.sampled_from(["alloc", "free_requested", "free_completed", "segment_alloc"]), max_size=40)


def counted(actions: list[str], before: int, lost: int) -> tuple[list[Counts], Any]:
    """The counts after each prefix, and the events without the first `lost`."""
    moments = [Counts(before, before)]
    for action in actions:
        last = moments[-1]
        moments.append(Counts(last.allocs + (action == "alloc"), last.frees + (action == "free_requested")))
    kept = [event(action, 512 * number, 100) for number, action in enumerate(actions)][lost:]
    return moments, trace_of([event("snapshot", 0, 0), *kept]).devices[0].events


@given(ACTIONS, st.integers(0, 1000), st.data())
def test_every_moment_lies_between_the_events_that_were_counted_around_it(actions, before, data):
    lost = data.draw(st.integers(0, len(actions)))
    moments, events = counted(actions, before, lost)
    found = event_indices(events, moments[-1], moments)
    for number, (moment, place) in enumerate(zip(moments, found.tolist(), strict=True)):
        # One event, the snapshot's, precedes those that are kept.
        true_place = max(0, number - lost) + 1
        last_counted = max(
            (row + 1 for row in range(true_place) if _is_counted(events, row)),
            default=0,
        )
        assert place == last_counted, moment


def _is_counted(events: Any, row: int) -> bool:
    return int(events.action[row]) in (0, 1)


def test_only_moments_of_one_count_are_compared():
    moments = [Counts(5, 5), Counts(9, 8), Counts(1, 0), Counts(2, 2), Counts(7, 2)]
    assert moments[comparable(moments, Counts(4, 4))] == [Counts(1, 0), Counts(2, 2)]
    assert moments[comparable(moments, Counts(9, 9))] == [Counts(1, 0), Counts(2, 2), Counts(7, 2)]
    assert comparable([], Counts(0, 0)) == slice(0, 0)
