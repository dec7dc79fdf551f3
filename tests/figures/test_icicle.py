"""The stack tree, callers on top."""

import numpy as np
import pytest

from memviz.analysis.callstacks.stack_tree import StackTree, stack_tree
from memviz.analysis.lifetimes import live_rows
from memviz.figures.plots.icicle import plot_icicle
from memviz.trace.model import Trace
from tests.figures.drawn import HARMLESS, MARKUP, markup_in, notes, spec, texts, titles
from tests.traces import MiB, alloc, frame, trace_of

MAIN = frame("main", "train.py", 9)


@pytest.fixture
def trace() -> Trace:
    """main calls two functions; one allocation has no stack."""
    return trace_of(
        [
            alloc(0, 3 * MiB, frames=[frame("forward", "src/model.py", 5), MAIN]),
            alloc(4 * MiB, 2 * MiB, frames=[frame(MARKUP, "src/model.py", 7), MAIN]),
            alloc(8 * MiB, MiB, frames=[]),
        ]
    )


def tree_of(trace: Trace) -> StackTree:
    device = trace.devices[0]
    return stack_tree(trace, device, live_rows(device, len(device.events) - 1))


def test_title_is_the_sum(trace):
    assert titles(plot_icicle(tree_of(trace), trace)) == "6.00 MiB by call stack, callers on top"


def test_frames_are_named_with_their_place(trace):
    labels = plot_icicle(tree_of(trace), trace).data[0].labels
    assert labels[:3] == ("all", "main train.py:9", "no stack recorded")
    assert "forward model.py:5" in labels


def test_the_first_level_adds_up_to_the_root(trace):
    icicle = plot_icicle(tree_of(trace), trace).data[0]
    level = [value for value, of in zip(icicle.values, icicle.parents, strict=True) if of == icicle.ids[0]]
    assert sum(level) == icicle.values[0] == 6 * MiB


def test_a_function_name_is_shown_as_it_stands(trace):
    drawing = plot_icicle(tree_of(trace), trace)
    assert markup_in(drawing) == []
    assert any(HARMLESS in text for text in texts(drawing))


def test_nothing_live_is_an_empty_figure_that_says_so(trace):
    device = trace.devices[0]
    nothing = stack_tree(trace, device, np.zeros(0, np.int64))
    assert notes(plot_icicle(nothing, trace, dark=True)) == ["Nothing is live here."]


def test_only_the_largest_nodes_are_drawn():
    events = [
        alloc(i * MiB, 1000 - i % 1000, frames=[frame("x" * 500, "y" * 500 + ".py", i), MAIN]) for i in range(3000)
    ]
    trace = trace_of(events)
    drawing = plot_icicle(tree_of(trace), trace)
    spec(drawing)
    assert len(drawing.data[0].ids) == 500
