"""Edited requests: live bytes at every event, compared to lifetimes edited by hand."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from memviz.analysis.actions.edit import Again, Earlier, Edit, apply_edit
from memviz.analysis.lifetimes import BEFORE, lifetimes
from memviz.analysis.timeline import timeline
from memviz.trace.model import Action, State
from tests.analysis.replays import sound_traces
from tests.traces import alloc, block, event, free, segment, trace_of

ONE, TWO, THREE = 1 << 20, 2 << 20, 3 << 20


def of(trace):
    rows = lifetimes(trace.devices[0])
    return list(zip(rows.address.tolist(), rows.start.tolist(), rows.end.tolist(), rows.size.tolist(), strict=True))


@given(sound_traces())
def test_without_an_edit_nothing_changes(trace):
    device = trace.devices[0]
    assert replace(apply_edit(trace, device, Edit()).devices[0], taken_over=None) == device


@given(sound_traces(), st.data())
def test_what_is_live_falls_by_what_ends_earlier_and_by_halves(trace, data):
    device = trace.devices[0]
    rows, count = lifetimes(device), len(device.events)
    begun = np.flatnonzero((rows.start > BEFORE) & (rows.end < count))
    chosen = np.array(data.draw(st.lists(st.sampled_from(begun.tolist()), unique=True)) if len(begun) else [], int)
    halved = np.flatnonzero((rows.start > BEFORE) & (rows.size > 1))
    ends = np.array([data.draw(st.integers(rows.start[row] + 1, rows.end[row])) for row in chosen], int)
    made = apply_edit(trace, device, Edit(earlier=Earlier(chosen, ends), halved=halved)).devices[0]
    sizes = rows.size.copy()
    sizes[halved] = (sizes[halved] + 1) // 2
    # What is live before each recorded alloc, by the lifetimes themselves. Something put before a new segment or
    # between the two halves of a free comes as a whole before it, and no alloc lies in between.
    new_ends = rows.end.copy()
    new_ends[chosen] = ends
    at = np.flatnonzero(device.events.action == Action.ALLOC)
    wanted = [int(sizes[(rows.start < event) & (new_ends > event)].sum()) for event in at]
    found = timeline(made).live[np.flatnonzero(made.events.action == Action.ALLOC)]
    assert found.tolist() == wanted


def test_what_is_made_again_is_another_block_from_one_event_to_another():
    events = [alloc(ONE, 10), free(ONE, 10), alloc(TWO, 5), alloc(THREE, 7), free(TWO, 5), free(THREE, 7)]
    trace = trace_of(events)
    again = Again(*(np.array([number]) for number in (0, 4, 7, 0, 2, 1)))
    made = apply_edit(trace, trace.devices[0], Edit(again=again))
    assert timeline(made.devices[0]).live.tolist() == [0, 10, 10, 0, 5, 15, 22, 22, 17, 17, 7, 7, 0]


def test_several_made_again_at_one_place_come_and_go_as_they_did():
    """A temporary is freed before the next one is allocated."""
    events = [alloc(ONE, 10), free(ONE, 10), alloc(TWO, 5), free(TWO, 5), alloc(THREE, 7), free(THREE, 7)]
    trace = trace_of(events)
    columns = ([0, 1], [7, 7], [7, 7], [0, 3], [2, 5], [1, 1])
    made = apply_edit(trace, trace.devices[0], Edit(again=Again(*(np.array(column) for column in columns))))
    assert timeline(made.devices[0]).live.tolist() == [0, 10, 10, 0, 5, 5, 0, 7, 17, 17, 7, 12, 12, 7, 7, 0]


def test_nothing_comes_between_a_new_segment_and_its_alloc_or_within_a_free():
    events = [alloc(ONE, 10), event("segment_alloc", TWO, TWO), alloc(TWO, 5), free(TWO, 5), free(ONE, 10)]
    trace = trace_of(events)
    for before, place in ((2, 1), (4, 3)):
        edit = Edit(earlier=Earlier(np.array([0]), np.array([before])))
        actions = apply_edit(trace, trace.devices[0], edit).devices[0].events.action.tolist()
        assert actions[place : place + 2] == [Action.FREE_REQUESTED, Action.FREE_COMPLETED]


def test_a_block_that_ends_earlier_is_free_in_the_end():
    trace = trace_of([alloc(0, ONE), alloc(TWO, 5), free(TWO, 5)], [segment(0, 20 * ONE, [block(0, ONE)])])
    made = apply_edit(trace, trace.devices[0], Edit(earlier=Earlier(np.array([0]), np.array([2]))))
    assert made.devices[0].blocks.state.tolist() == [State.INACTIVE, State.INACTIVE]
    assert [(address, end) for address, _, end, _ in of(made)] == [(0, 3), (TWO, 5)]
