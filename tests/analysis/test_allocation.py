"""Details of one allocation."""

from dataclasses import replace

import numpy as np
import pytest

from memviz.analysis.allocations import Allocation, BlockKnown, Span, allocation
from memviz.analysis.purpose.reasons import Certainty, Reason
from memviz.errors import UsageError
from memviz.trace.model import NO_STACK, Category, Labels, Phase, Trace
from tests.traces import MiB, alloc, block, event, frame, free, segment, trace_of

MODEL = frame("forward", "/p/model.py", 3)
EMPTY = frame("at::_ops::empty_memory_format::call(int)", "??", 0)
ADD = frame("at::_ops::add_Tensor::call(at::Tensor const&)", "??", 0)


def of(trace: Trace, row: int) -> Allocation:
    return allocation(trace, trace.devices[0], row)


def test_all_that_is_known_is_told():
    made = alloc(0, 1000, frames=[EMPTY, ADD, MODEL], time_us=10, user_metadata="mine", compile_context="0/1")
    trace = trace_of([made, *free(0, 1000, time_us=35)])
    assert of(trace, 0) == Allocation(
        row=0,
        requested_bytes=1000,
        rounded_bytes=1024,
        block_bytes=1024,
        block_known=BlockKnown.ROUNDED,
        category=Category.OUTPUT,
        reason=Reason.FORWARD_OUTPUT.text,
        certainty=Certainty.PROBABLE,
        site="model.py:3 forward",
        operator="add_Tensor",
        span=Span(start=0, free_requested=1, end=2, never=3, microseconds=25),
        pool=(0, 0),
        is_large=False,
        stream=0,
        stack=0,
        forward_stack=NO_STACK,
        metadata="mine",
        compile_context="0/1",
        alike=1,
    )


def test_a_block_that_is_there_at_the_end_is_known_exactly():
    trace = trace_of([alloc(0, 1000)], segments=[segment(0, 2 * MiB, [block(0, 1536, 1000)])])
    assert (of(trace, 0).block_bytes, of(trace, 0).block_known) == (1536, BlockKnown.RECORDED)


def test_a_block_that_is_gone_is_rebuilt_from_what_lay_around_it():
    """In 20 MiB, 19.5 MiB were requested: the remaining half is too small to split off."""
    size = 19 * MiB + MiB // 2
    trace = trace_of([alloc(0, size), *free(0, size)], segments=[segment(0, 20 * MiB, [])])
    assert (of(trace, 0).block_bytes, of(trace, 0).block_known) == (20 * MiB, BlockKnown.REBUILT)


def test_the_large_pool_begins_above_a_mebibyte():
    trace = trace_of([alloc(0, MiB), alloc(2 * MiB, MiB + 1)])
    assert [of(trace, row).is_large for row in (0, 1)] == [False, True]


def test_what_was_there_before_has_no_event():
    trace = trace_of(
        [event("free_completed", 4096, 9)],
        segments=[segment(0, 2 * MiB, [block(0, 512, 500)])],
    )
    assert [of(trace, row).span for row in (0, 1)] == [
        Span(start=-1, free_requested=1, end=1, never=1, microseconds=None),
        Span(start=-1, free_requested=-1, end=0, never=1, microseconds=None),
    ]
    assert not of(trace, 0).span.is_complete


def test_labels_of_our_own_runs_are_told():
    trace = trace_of([alloc(0, 5)])
    code = np.array([1], np.int32)
    labels = Labels(np.array([Category.GRADIENT], np.uint8), code, np.array([Phase.BACKWARD], np.uint8))
    device = replace(trace.devices[0], event_labels=labels)
    told = of(replace(trace, devices=(device,), strings=("", "layers.0")), 0)
    assert (told.category, told.reason, told.module, told.phase) == (
        Category.GRADIENT,
        "recorded by the run itself",
        "layers.0",
        Phase.BACKWARD,
    )


@pytest.mark.parametrize("row", [-1, 1])
def test_a_row_that_is_not_there_is_refused(row):
    with pytest.raises(UsageError, match="no allocation"):
        of(trace_of([alloc(0, 5)]), row)
