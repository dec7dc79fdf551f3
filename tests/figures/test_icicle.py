"""The stack tree, callers on top."""

import pytest

from memviz.analysis.callstacks.stack_tree import StackTree, stack_tree
from memviz.analysis.lifetimes import live_rows
from memviz.figures.plots.icicle import plot_icicle
from memviz.trace.model import Trace
from tests.figures.drawn import titles
from tests.traces import MiB, alloc, frame, trace_of

MAIN = frame("main", "train.py", 9)


@pytest.fixture
def trace() -> Trace:
    """main calls two functions; one allocation has no stack."""
    return trace_of(
        [
            alloc(0, 3 * MiB, frames=[frame("forward", "src/model.py", 5), MAIN]),
            alloc(4 * MiB, 2 * MiB, frames=[frame("loss", "src/model.py", 7), MAIN]),
            alloc(8 * MiB, MiB, frames=[]),
        ]
    )


def tree_of(trace: Trace) -> StackTree:
    device = trace.devices[0]
    return stack_tree(trace, device, live_rows(device, len(device.events) - 1))


def test_frames_are_named_with_their_place_and_the_first_level_adds_up(trace):
    drawing = plot_icicle(tree_of(trace), trace)
    labels = drawing.data[0].labels
    assert titles(drawing) == "6.00 MiB by call stack, callers on top"
    assert labels[:3] == ("all", "main train.py:9", "no stack recorded")
    assert "forward model.py:5" in labels
    icicle = plot_icicle(tree_of(trace), trace).data[0]
    level = [value for value, of in zip(icicle.values, icicle.parents, strict=True) if of == icicle.ids[0]]
    assert sum(level) == icicle.values[0] == 6 * MiB
