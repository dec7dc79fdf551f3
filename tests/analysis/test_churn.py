"""Allocations freed by the very next alloc or free."""

from __future__ import annotations

from memviz.analysis.leaks import freed_at_once
from tests.traces import alloc, event, frame, free, trace_of

LINE = frame("f", "train.py", 3)


def churned(*events) -> list[tuple[str, int, int]]:
    trace = trace_of(list(events))
    return [(group.label, group.bytes, group.count) for group in freed_at_once(trace, trace.devices[0]).groups]


def test_a_free_right_after_the_alloc_counts():
    once = [alloc(1, 10, frames=[LINE]), *free(1, 10)]
    assert churned(*once, *once) == [("train.py:3 f", 20, 2)]


def test_another_alloc_in_between_makes_a_difference():
    assert churned(alloc(1, 10), alloc(2, 5), free(1, 10)) == []


def test_segments_in_between_make_none():
    assert churned(alloc(1, 10), event("segment_alloc", 0, 99), free(1, 10)) == [("no stack recorded", 10, 1)]


def test_what_is_never_freed_does_not_count():
    assert churned(alloc(1, 10)) == []


def test_a_file_without_free_requested_events_counts_the_same():
    assert churned(alloc(1, 10), event("free_completed", 1, 10)) == [("no stack recorded", 10, 1)]
