"""Groups with the kind that most of their bytes belong to."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given

from memviz.analysis.breakdown import Dominant, breakdown, dominant_of
from memviz.analysis.groups import grouped
from memviz.analysis.lifetimes import lifetimes
from memviz.analysis.purpose.categories import KINDS, kinds
from memviz.analysis.purpose.reasons import Certainty
from memviz.trace.model import Category, Labels, Trace
from tests.analysis.replays import sound_traces
from tests.traces import MiB, alloc, block, frame, segment, trace_of

MODEL, TRAIN = frame("forward", "/p/model.py", 3), frame("step", "/p/train.py", 9)


def labelled(categories: list[Category]) -> Trace:
    """One allocation of 10, 20, 30 ... bytes each, in turns at two sites."""
    events = [alloc(i, 10 * (i + 1), frames=[MODEL if i % 2 else TRAIN]) for i in range(len(categories))]
    trace = trace_of(events)
    empty = np.zeros(len(categories), np.int32)
    labels = Labels(np.array(categories, np.uint8), empty, empty.astype(np.uint8))
    return replace(trace, devices=(replace(trace.devices[0], event_labels=labels),))


def all_rows(trace: Trace) -> np.ndarray:
    return np.arange(len(lifetimes(trace.devices[0])))


def test_the_kind_with_most_bytes_stands_for_the_group():
    trace = labelled([Category.GRADIENT, Category.INPUT, Category.PARAMETER, Category.INPUT])
    found = breakdown(trace, trace.devices[0], all_rows(trace), "site")
    assert found.groups == grouped(trace, trace.devices[0], all_rows(trace), "site")
    assert found.dominant == {
        "/p/train.py:9 step": Dominant("parameter", 30, Certainty.STATED, "recorded by the run itself"),
        "/p/model.py:3 forward": Dominant("input", 60, Certainty.STATED, "recorded by the run itself"),
    }


def test_a_group_without_bytes_is_of_the_kind_that_its_rows_have():
    """Files say so of blocks; each table of the peak ended in an error."""
    trace = trace_of([alloc(0, 10, frames=[TRAIN]), alloc(16, 0, frames=[MODEL])])
    found = breakdown(trace, trace.devices[0], all_rows(trace), "site").dominant
    kind = KINDS[int(kinds(trace, trace.devices[0], np.array([1]))[0])]
    assert (found["/p/model.py:3 forward"].kind, found["/p/model.py:3 forward"].bytes) == (kind, 0)
    labels = labelled([Category.GRADIENT] * 2)
    events = replace(labels.devices[0].events, size=np.array([10, 0]))
    empty = replace(labels, devices=(replace(labels.devices[0], events=events),))
    told = breakdown(empty, empty.devices[0], all_rows(empty), "site").dominant["/p/model.py:3 forward"]
    assert told == Dominant("gradient", 0, Certainty.STATED, "recorded by the run itself")


def test_of_two_equals_the_known_kind_is_named():
    sums = np.zeros((1, len(KINDS)), np.int64)
    sums[0, [Category.UNKNOWN, Category.OUTPUT]] = 5
    assert dominant_of(sums) == [Dominant("output", 5)]


def test_what_was_there_before_without_a_stack_has_a_kind_of_its_own():
    trace = trace_of([alloc(4096, 5)], segments=[segment(0, 2 * MiB, [block(0, 512, 500), block(4096, 512, 5)])])
    found = breakdown(trace, trace.devices[0], all_rows(trace), "category")
    assert found.dominant == {
        "unknown": Dominant("unknown", 5, reason="no stack was recorded"),
        "before recording": Dominant("before recording", 500, reason="no stack was recorded"),
    }


@given(sound_traces())
def test_it_never_exceeds_its_group_and_follows_the_kinds_of_all_rows(trace):
    device = trace.devices[0]
    rows = all_rows(trace)
    found = breakdown(trace, device, rows, "site")
    of_kind = np.bincount(kinds(trace, device), weights=lifetimes(device).size, minlength=len(KINDS))
    for group in found.groups.groups:
        mostly = found.dominant[group.key]
        assert 0 <= mostly.bytes <= min(group.bytes, of_kind[KINDS.index(mostly.kind)])
