"""Bytes times lifetime, to the byte: however they are grouped, they are what was live after each event."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memviz.analysis.breakdown import WeightedRows, rows_in_range, weighted_breakdown, weighted_stacks
from memviz.analysis.lifetimes import BEFORE, lifetimes
from memviz.analysis.timeline import timeline
from memviz.errors import UsageError
from memviz.figures.colouring import MEANINGS, colouring
from memviz.trace.model import Trace
from tests.traces import MiB, alloc, frame, free, trace_of

FRAMES = [frame("forward", "/p/model.py", 3), frame("train", "/p/train.py", 2)]


def late() -> Trace:
    """2 MiB from before the first event; 3 MiB live for four events; 1 MiB at the end."""
    events = [free(100 * MiB, 2 * MiB), alloc(0, 3 * MiB, frames=FRAMES), alloc(8 * MiB, MiB), free(0, 3 * MiB)]
    return trace_of([*events, alloc(16 * MiB, 5, frames=FRAMES[1:])])


@given(st.integers(-1, 6), st.integers(-1, 6))
def test_byte_events_add_up_to_the_live_bytes_after_each_event(one: int, other: int) -> None:
    device = late().devices[0]
    first, last = min(one, other), max(one, other)
    held = rows_in_range(device, first, last)
    live = timeline(device).live[first + 1 : last + 2]
    assert int(held.byte_events.sum()) == int(live.sum())
    assert held.events == len(live)
    spans = lifetimes(device)
    at_some_moment = [
        row
        for row in range(len(spans))
        if any(spans.start[row] <= event < spans.end[row] for event in range(first, last + 1))
    ]
    assert held.rows.tolist() == at_some_moment


def test_what_was_there_before_counts_from_the_moment_before_the_first_event() -> None:
    device = late().devices[0]
    held = rows_in_range(device, BEFORE, 6)
    assert dict(zip(lifetimes(device).size[held.rows].tolist(), held.byte_events.tolist(), strict=True)) == {
        2 * MiB: 2 * MiB * 2,
        3 * MiB: 3 * MiB * 3,
        MiB: MiB * 4,
        5: 5,
    }
    with pytest.raises(UsageError):
        rows_in_range(device, 0, 99)


@pytest.mark.parametrize("meaning", MEANINGS)
@pytest.mark.parametrize("by", ["site", "category", "line"])
def test_groups_and_stacks_share_one_sum_whatever_colours_mean(meaning: str, by: str) -> None:
    trace = late()
    device = trace.devices[0]
    colours = colouring(trace, device, meaning)
    held = rows_in_range(device, BEFORE, len(device.events) - 1)
    weighed = WeightedRows(held.rows, held.byte_events, colours.group[held.rows], colours.labels)
    groups = weighted_breakdown(trace, device, weighed, by)
    stacks = weighted_stacks(trace, device, weighed)
    whole = int(timeline(device).live.sum())
    assert groups.groups.bytes == sum(group.bytes for group in groups.groups.groups) == whole
    assert int(stacks.tree.bytes[0]) == whole
    for group in groups.groups.groups:
        mostly = groups.dominant[group.key]
        assert mostly.kind in colours.labels and 0 < mostly.bytes <= group.bytes
    assert all(mostly.bytes <= size for mostly, size in zip(stacks.dominant, stacks.tree.bytes.tolist(), strict=True))


def test_counted_by_one_a_node_weighs_its_allocations() -> None:
    trace = late()
    device = trace.devices[0]
    colours, rows = colouring(trace, device), np.arange(4)
    weighed = WeightedRows(rows, np.ones(4, dtype=np.int64), colours.group, colours.labels)
    tree = weighted_stacks(trace, device, weighed).tree
    assert tree.bytes.tolist() == tree.count.tolist()
    assert tree.bytes[0] == 4
