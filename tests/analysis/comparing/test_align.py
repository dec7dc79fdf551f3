"""The alignment of several traces' instants."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memviz.analysis.comparing.align import PEAK, SCALE, START, Aligned, Alignment, align, list_alignments
from memviz.errors import UsageError
from memviz.trace.model import Trace
from tests.traces import alloc, free, pairs_of, read, snapshot


def run(count: int, *steps: tuple[str, int, int], first_us: int = 1000, step_us: int = 10) -> Trace:
    """Allocations one after the other, and annotations as (name, first event, last event)."""
    events = [alloc(i, 8, time_us=first_us + step_us * i) for i in range(count)]
    marks = [
        {"name": name, "stage": stage, "device": 0, "time_us": first_us + step_us * at}
        for name, first, last in steps
        for stage, at in (("START", first), ("END", last))
    ]
    return read(snapshot(events, external_annotations=marks))


def test_whole_runs_stand_beginning_over_beginning_and_end_over_end():
    assert align(pairs_of(run(9), run(99))) == Aligned("event", ((0, 10), (0, 100)), (0, 1), (0, 1))


def test_on_one_scale_the_shorter_run_ends_earlier():
    found = align(pairs_of(run(9), run(99)), SCALE)
    assert found == Aligned("event", ((0, 100), (0, 100)), (0, 1), (0, 1))


def test_peaks_stand_in_one_line_on_one_scale():
    late = run(9)
    early = read(snapshot([alloc(0, 99), free(0, 99), *(alloc(i, 1) for i in range(1, 4))]))
    found = align(pairs_of(late, early), PEAK)
    assert found.spans == ((9, 19), (1, 11))
    assert found.extent == found.focus == (-0.9, 0.6)


def test_a_step_stands_over_the_same_step_however_many_events_it_takes():
    short = run(10, ("ProfilerStep#0", 0, 4), ("ProfilerStep#1", 5, 9))
    long = run(30, ("ProfilerStep#7", 0, 9), ("ProfilerStep#8", 10, 29))
    found = align(pairs_of(short, long), Alignment("step", number=1))
    assert found.spans == ((6, 11), (11, 31))
    assert found.extent == (-1.2, 1)
    assert found.focus == (-0.04, 1)


def test_an_annotation_stands_where_it_comes_first():
    found = align(pairs_of(run(10, ("a", 2, 3), ("a", 5, 6)), run(10, ("a", 4, 8))), Alignment("annotation", name="a"))
    assert found.spans == ((3, 5), (5, 10))


def test_on_the_axis_of_time_places_are_microseconds_since_the_first_event():
    first, second = run(10, ("a", 2, 3)), run(10, ("a", 4, 8), first_us=7, step_us=1000)
    assert align(pairs_of(first, second), Alignment("annotation", name="a"), "time").spans == ((20, 30), (4000, 8000))
    assert align(pairs_of(first, second), START, "time").spans == ((0, 90), (0, 9000))


def test_a_step_within_one_microsecond_still_has_a_width():
    assert align(pairs_of(run(10, ("a", 3, 3))), Alignment("annotation", name="a"), "time").spans == ((30, 31),)


def test_only_what_all_have_is_offered():
    first = run(20, ("ProfilerStep#0", 0, 9), ("ProfilerStep#1", 10, 19), ("b", 2, 3), ("a", 1, 4))
    second = run(20, ("ProfilerStep#0", 0, 9), ("a", 1, 4), ("c", 5, 6))
    assert list_alignments(pairs_of(first, second)) == (
        START,
        SCALE,
        PEAK,
        Alignment("step", number=0),
        Alignment("annotation", name="a"),
    )


def test_a_step_that_ended_before_the_recording_is_not_offered():
    late = run(9, ("ProfilerStep#0", -5, -2), ("ProfilerStep#1", 2, 4))
    found = list_alignments(pairs_of(run(9, ("ProfilerStep#0", 0, 1), ("ProfilerStep#1", 2, 4)), late))
    assert [way.number for way in found if way.kind == "step"] == [1]


def test_what_one_of_them_lacks_is_refused_by_name():
    with pytest.raises(UsageError, match="a step 2"):
        align(pairs_of(run(4), run(4)), Alignment("step", number=1))


def test_traces_without_times_have_no_axis_of_time():
    with pytest.raises(UsageError, match="by event"):
        align(pairs_of(read(snapshot([alloc(1, 1)])), run(3)), START, "time")


@given(st.lists(st.integers(1, 40), min_size=1, max_size=5), st.sampled_from([START, SCALE, PEAK]))
def test_every_run_lies_within_the_extent(counts, way):
    found = align(pairs_of(*map(run, counts)), way)
    for (begin, end), count in zip(found.spans, counts, strict=True):
        low, high = (begin + share * (end - begin) for share in found.extent)
        assert low <= 1e-9
        assert high >= count + 1 - 1e-9
