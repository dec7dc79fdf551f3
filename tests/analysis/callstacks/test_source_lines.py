"""Bytes by line of source."""

from __future__ import annotations

import numpy as np

from memviz.analysis.callstacks.source_lines import source_lines
from memviz.analysis.lifetimes import lifetimes
from memviz.trace.model import Trace
from tests.traces import alloc, frame, trace_of

LINEAR = frame("linear", "/x/site-packages/torch/functional.py", 7)
MAIN, HELP, LOOP = frame("main", "train.py", 1), frame("help", "train.py", 2), frame("loop", "train.py", 2)
NATIVE = frame("at::_ops::mm::call(int)", "??", 0)


def lines(trace: Trace) -> list[tuple[str, int, int, int, int]]:
    """File, line, bytes, own bytes, allocations."""
    device = trace.devices[0]
    found = source_lines(trace, device, np.arange(len(lifetimes(device))))
    names = [trace.strings[code] for code in found.filename]
    columns = (found.line, found.bytes, found.own_bytes, found.count)
    return list(zip(names, *(column.tolist() for column in columns), strict=True))


def test_a_line_has_what_passed_through_it_and_what_it_took_itself():
    trace = trace_of([alloc(1, 10, frames=[NATIVE, LINEAR, HELP, MAIN]), alloc(2, 30, frames=[NATIVE, MAIN])])
    assert lines(trace) == [
        ("/x/site-packages/torch/functional.py", 7, 10, 0, 1),
        ("train.py", 1, 40, 30, 2),
        ("train.py", 2, 10, 10, 1),
    ]


def test_a_line_counts_once_per_allocation_however_often_it_is_in_the_stack():
    assert lines(trace_of([alloc(1, 10, frames=[HELP, HELP, LOOP])])) == [("train.py", 2, 10, 10, 1)]


def test_without_stacks_there_are_no_lines():
    assert lines(trace_of([alloc(1, 10)])) == []
