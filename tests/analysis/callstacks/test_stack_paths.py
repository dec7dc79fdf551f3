"""Paths from the root of a stack tree."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memviz.analysis.breakdown import Dominant, dominant_by_node, parse_path, path_text, rows_below, stack_breakdown
from memviz.analysis.callstacks.stack_tree import NO_FRAMES, OTHER, StackTree, TreeOptions, frame_name, stack_tree
from memviz.analysis.lifetimes import lifetimes
from memviz.analysis.purpose.categories import KINDS, kinds
from memviz.errors import UsageError
from memviz.trace.model import Trace
from tests.traces import alloc, frame, trace_of

MAIN, TRAIN, MODEL = frame("main", "train.py", 1), frame("train", "train.py", 2), frame("forward", "model.py", 3)


def three_stacks() -> Trace:
    return trace_of(
        [
            alloc(1, 10, frames=[MODEL, TRAIN, MAIN]),
            alloc(2, 30, frames=[TRAIN, MAIN]),
            alloc(3, 5, frames=[MODEL, MAIN]),
            alloc(4, 1),
        ]
    )


def all_rows(trace: Trace) -> np.ndarray:
    return np.arange(len(lifetimes(trace.devices[0])))


def path_of(trace: Trace, *functions: str) -> tuple[int, ...]:
    """Frames by their functions, which are all different here."""
    frames = range(len(trace.stacks.frames))
    return tuple(next(each for each in frames if frame_name(trace, each) == name) for name in functions)


def path_to(tree: StackTree, node: int) -> tuple[int, ...]:
    path: list[int] = []
    while node > 0:
        path.insert(0, int(tree.frame[node]))
        node = int(tree.parent[node])
    return tuple(path)


def test_below_a_path_lies_what_begins_with_it():
    trace = three_stacks()
    below = [
        rows_below(trace, trace.devices[0], all_rows(trace), path).tolist()
        for path in ((), path_of(trace, "main"), path_of(trace, "main", "train"), path_of(trace, "train"), (NO_FRAMES,))
    ]
    assert below == [[0, 1, 2, 3], [0, 1, 2], [0, 1], [], [3]]


def test_a_path_survives_its_text():
    trace = three_stacks()
    assert parse_path(trace, path_text((2, 0, 1))) == (2, 0, 1)
    assert parse_path(trace, "") == ()
    assert parse_path(trace, path_text((NO_FRAMES,))) == (NO_FRAMES,)


@pytest.mark.parametrize("text", ["99", "-1", "0,-3", "a", "1,,2", "1e3", "<b>"])
def test_a_text_that_is_no_path_is_refused(text):
    with pytest.raises(UsageError, match="no such path"):
        parse_path(three_stacks(), text)


def test_looking_at_a_node_leaves_its_callers_as_a_chain():
    trace = three_stacks()
    path = path_of(trace, "main", "train")
    found = stack_breakdown(trace, trace.devices[0], all_rows(trace), path)
    assert (found.path, found.node) == (path, 2)
    assert found.tree == stack_tree(trace, trace.devices[0], np.array([0, 1]), TreeOptions(most_nodes=202))
    assert found.dominant == (Dominant("output", 40),) * 3 + (Dominant("output", 10),)


def test_a_path_where_nothing_is_live_shows_nothing():
    trace = three_stacks()
    found = stack_breakdown(trace, trace.devices[0], all_rows(trace), path_of(trace, "forward"))
    assert (found.node, found.tree.bytes.tolist()) == (0, [0])


FRAMES = [frame(name, f"{name}.py", 1) for name in "abc"]
STACKS = st.lists(st.sampled_from(FRAMES), max_size=4)


@given(st.lists(st.tuples(STACKS, st.integers(1, 99)), min_size=1, max_size=12), st.integers(1, 12))
def test_a_node_is_dominated_by_what_lies_below_it(allocations, most_nodes):
    trace = trace_of([alloc(i, size, frames=stack) for i, (stack, size) in enumerate(allocations)])
    device = trace.devices[0]
    rows = all_rows(trace)
    tree = stack_tree(trace, device, rows, TreeOptions(most_nodes=most_nodes))
    size, kind = lifetimes(device).size, kinds(trace, device)
    for node, mostly in enumerate(dominant_by_node(trace, device, rows, tree)):
        assert mostly.bytes <= tree.bytes[node]
        if tree.frame[node] != OTHER:
            below = rows_below(trace, device, rows, path_to(tree, node))
            assert size[below].sum() == tree.bytes[node]
            assert size[below][kind[below] == KINDS.index(mostly.kind)].sum() == mostly.bytes
