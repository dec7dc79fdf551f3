"""The reported size of a trace is what it takes in memory, cached results included."""

import tracemalloc

import pytest

from memviz.analysis.cache import cached_on, size_in_bytes
from memviz.analysis.lifetimes import lifetimes
from memviz.analysis.timeline import timeline
from tests.traces import alloc, frame, free, trace_of

BASE = 0x7000_0000_0000


def many(count: int):
    events = [
        each
        for i in range(count)
        for each in (alloc(BASE + i * 512, 512, time_us=i, frames=[frame(f"f{i}")]), *free(BASE + i * 512, 512))
    ]
    return trace_of(events)


def test_it_is_within_a_quarter_of_what_python_and_numpy_took():
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    trace = many(4_000)
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert 0.75 * taken < size_in_bytes(trace) < 1.25 * taken


def test_what_views_have_computed_counts_too():
    trace = many(5_000)
    before = size_in_bytes(trace)
    device = trace.devices[0]
    lives, line = lifetimes(device), timeline(device)
    computed = sum(column.nbytes for table in (lives, line) for _, column in table.columns())
    assert size_in_bytes(trace) >= before + 0.9 * computed


def test_what_is_kept_twice_counts_once():
    trace = many(100)
    big = "x" * 1_000_000
    cached_on(trace, "a", lambda: [big, big])
    cached_on(trace, "b", lambda: {"again": big})
    assert 1_000_000 < size_in_bytes(trace) < 1_500_000


@pytest.mark.slow
def test_one_value_for_a_whole_column_takes_no_memory():
    assert size_in_bytes(many(2_000)) < size_in_bytes(many(4_000)) < 2.2 * size_in_bytes(many(2_000))
