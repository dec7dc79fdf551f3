"""Allocations that are never freed, that grow from step to step, or that are freed at once."""

import tracemalloc

import pytest
from hypothesis import given

from memviz.analysis.cache import cached_on, size_in_bytes
from memviz.analysis.groups import Group, Groups, group_rows
from memviz.analysis.leaks import Growth, GrowthRow, freed_at_once, growth, never_freed_rows
from memviz.analysis.lifetimes import lifetimes
from memviz.analysis.timeline import timeline
from memviz.trace.model import Trace
from tests.analysis.replays import sound_traces
from tests.traces import alloc, block, event, frame, free, ranges, segment, trace_of

CACHE, WORK = frame("remember", "cache.py", 3), frame("work", "train.py", 9)


def test_only_what_was_made_in_the_trace_and_never_asked_back_counts():
    final = [segment(0, 512, [block(9, 50, 50), block(1, 10, 10), block(3, 7, 7, "active_pending_free")])]
    events = [alloc(1, 10, frames=[CACHE]), alloc(2, 5), free(2, 5), alloc(3, 7), event("free_requested", 3, 7)]
    trace = trace_of(events, final)
    row = Group("/cache.py:3 remember", "cache.py:3 remember", 10, 1, 0, 0)
    device = trace.devices[0]
    assert group_rows(trace, device, never_freed_rows(device)) == Groups("site", (row,), 10, 1)


@given(sound_traces())
def test_leaks_are_the_rows_that_a_loop_finds(trace):
    device = trace.devices[0]
    rows, end = lifetimes(device), len(device.events)
    spans = zip(rows.start, rows.free_requested, rows.end, rows.size, strict=True)
    lost = lifetimes(device).size[never_freed_rows(device)].sum()
    assert lost == sum(s for a, r, e, s in spans if a >= 0 and e == end == r)


def three_steps() -> Trace:
    """Three steps, each of which caches 10 bytes more and frees its other 100."""
    events, annotations = [], []
    for step in range(3):
        begin = 100 * step + 100
        annotations += ranges((f"ProfilerStep#{step}", begin, begin + 50))
        events += [alloc(step, 10, frames=[CACHE], time_us=begin + 1), alloc(99, 100, frames=[WORK], time_us=begin + 2)]
        events += free(99, 100, time_us=begin + 60)
    return trace_of(events, external_annotations=annotations)


def test_growth_is_live_bytes_at_the_end_of_each_step():
    trace = three_steps()
    assert growth(trace, trace.devices[0]) == Growth(
        by="site",
        steps=("ProfilerStep#0", "ProfilerStep#1", "ProfilerStep#2"),
        live_bytes=(110, 120, 130),
        rows=(GrowthRow("/cache.py:3 remember", "cache.py:3 remember", (10, 20, 30)),),
        rest_bytes=(100, 100, 100),
    )
    assert growth(trace, trace.devices[0]).rows[0].grown_bytes == 20
    found = growth(trace, trace.devices[0], top=0)
    assert (found.rows, found.rest_bytes) == ((), found.live_bytes)


def test_without_steps_nothing_is_said_about_growth():
    trace = trace_of([alloc(1, 10)])
    assert growth(trace, trace.devices[0]) == Growth("site", (), (), (), ())


def test_a_step_that_ended_before_the_first_event_is_no_growth():
    """The live bytes at that step's end are unknown: recording began in the next step."""
    annotations = ranges(("ProfilerStep#0", 10, 60), ("ProfilerStep#1", 100, 150))
    trace = trace_of([alloc(1, 10, frames=[CACHE], time_us=120)], external_annotations=annotations)
    found = growth(trace, trace.devices[0])
    assert (found.steps, found.live_bytes, found.rows) == (("ProfilerStep#1",), (10,), ())


def test_a_step_that_the_recording_cut_off_is_no_growth():
    """Its activations are live because it had not ended."""
    events, annotations = [], []
    for step, end in ((0, 150), (1, 250), (2, None)):
        begin = 100 * step + 100
        annotations.append({"name": f"ProfilerStep#{step}", "stage": "START", "device": 0, "time_us": begin})
        events.append(alloc(99, 100, frames=[WORK], time_us=begin + 1))
        if end is not None:
            events += free(99, 100, time_us=begin + 2)
            annotations.append({"name": f"ProfilerStep#{step}", "stage": "END", "device": 0, "time_us": end})
    trace = trace_of(events, external_annotations=annotations)
    found = growth(trace, trace.devices[0])
    assert (found.steps, found.live_bytes, found.rows) == (("ProfilerStep#0", "ProfilerStep#1"), (0, 0), ())


LINE = frame("f", "train.py", 3)


@pytest.mark.parametrize(
    ("events", "found"),
    [
        (2 * [alloc(1, 10, frames=[LINE]), *free(1, 10)], [("train.py:3 f", 20, 2)]),
        ([alloc(1, 10), alloc(2, 5), free(1, 10)], []),
        ([alloc(1, 10), event("segment_alloc", 0, 99), free(1, 10)], [("no stack recorded", 10, 1)]),
        ([alloc(1, 10)], []),
        ([alloc(1, 10), event("free_completed", 1, 10)], [("no stack recorded", 10, 1)]),
    ],
    ids=["at once", "another alloc between", "a segment between", "never freed", "no free_requested events"],
)
def test_what_is_freed_before_the_next_alloc_counts(events, found):
    trace = trace_of(events)
    groups = freed_at_once(trace, trace.devices[0]).groups
    assert [(group.label, group.bytes, group.count) for group in groups] == found


def test_named_moments_are_compared_where_there_are_no_steps_or_a_range_has_two():
    steps = three_steps()
    marks = ranges(("before", 155, 155), ("after", 255, 255), ("end", 355, 355))
    own = [alloc(step, 10, frames=[CACHE], time_us=100 * step + 101) for step in range(3)]
    trace = trace_of(own, external_annotations=marks)
    found = growth(trace, trace.devices[0])
    assert (found.unit, found.steps, found.live_bytes) == ("mark", ("before", "after", "end"), (10, 20, 30))
    within = growth(trace, trace.devices[0], within=(1, 2))
    assert (within.unit, within.steps, within.rows[0].grown_bytes) == ("mark", ("after", "end"), 10)
    assert growth(trace, trace.devices[0], within=(2, 2)) == found
    assert growth(steps, steps.devices[0], within=(5, 11)).steps == ("ProfilerStep#1", "ProfilerStep#2")


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
