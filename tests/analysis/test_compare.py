"""Two or more traces, the first as the baseline."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memviz.analysis.compare import Comparison, Moment, Row, Setting, compare
from memviz.errors import UsageError
from memviz.trace.load import load_trace
from memviz.trace.model import Trace
from tests.real import FOLDER, requires_real
from tests.traces import alloc, block, event, frame, free, segment, trace_of


def program(home: str, *, forward: int, cache: int | None = None, moved: int = 0) -> Trace:
    """The same source in some home, with lines that may have moved down."""
    model, train = f"{home}/proj/model.py", f"{home}/proj/train.py"
    events = [alloc(1, forward, frames=[frame("forward", model, 10 + moved), frame("main", train, 50 + moved)])]
    if cache is not None:
        events.append(alloc(2, cache, frames=[frame("keep", f"{home}/proj/cache.py", 3), frame("main", train, 60)]))
    return trace_of([*events, alloc(3, 7)])


def compared(*traces: Trace, **options) -> Comparison:
    return compare([(trace, trace.devices[0]) for trace in traces], **options)


def brief(found: Comparison) -> list[tuple[str, tuple[int, ...], tuple[int, ...]]]:
    return [(row.label, row.bytes, row.delta_bytes) for row in found.rows]


def test_growth_at_the_same_place_is_one_row_though_home_and_line_differ():
    found = compared(program("/home/a", forward=100), program("/srv/b", forward=200, cache=30, moved=2))
    assert found == Comparison(
        by="site",
        moments=(
            Moment("hand-made", "0", 1, live_bytes=107, reserved_bytes=0, reserved_peak_bytes=0, event_count=2),
            Moment("hand-made", "0", 2, live_bytes=237, reserved_bytes=0, reserved_peak_bytes=0, event_count=3),
        ),
        rows=(
            Row("model.py forward", "model.py:10, 12 forward", (100, 200), (1, 1)),
            Row("cache.py:3 keep", "cache.py:3 keep", (0, 30), (0, 1)),
            Row("no stack recorded", "no stack recorded", (7, 7), (1, 1)),
        ),
        rest_bytes=(0, 0),
        rest_counts=(0, 0),
        settings=(),
    )
    assert found.delta_bytes == (0, 130)


def test_what_is_beyond_the_top_is_the_rest():
    found = compared(program("/a", forward=100), program("/a", forward=200, cache=30), top=1)
    assert (found.rest_bytes, found.rest_delta_bytes, found.rest_counts) == ((7, 37), (0, 30), (1, 2))


def test_many_traces_are_ordered_by_their_largest_difference():
    found = compared(program("/a", forward=100), program("/a", forward=90), program("/a", forward=100, cache=30))
    assert brief(found)[:2] == [
        ("cache.py:3 keep", (0, 0, 30), (0, 0, 30)),
        ("model.py:10 forward", (100, 90, 100), (0, -10, 0)),
    ]


def test_by_line_a_moved_line_is_another():
    found = compared(program("/a", forward=100), program("/b", forward=100, moved=2), by="line")
    assert brief(found)[:2] == [("model.py:10", (100, 0), (0, -100)), ("model.py:12", (0, 100), (0, 100))]


def test_by_stack_the_python_frames_count_and_not_their_lines():
    found = compared(program("/a", forward=100), program("/b", forward=150, moved=2), by="stack")
    assert brief(found)[0] == ("model.py:10 forward", (100, 150), (0, 50))


def test_by_stack_without_python_the_cpp_functions_count():
    one, two = (trace_of([alloc(1, n, frames=[frame(f"at::_ops::mm::call({n})", "??", 0)])]) for n in (5, 8))
    assert brief(compared(one, two, by="stack")) == [("at::_ops::mm", (5, 8), (0, 3))]


def test_other_groupings_compare_by_their_names():
    found = compared(program("/a", forward=100), program("/b", forward=150), by="category")
    assert brief(found) == [("unknown", (107, 157), (0, 50))]


def test_any_moments_can_be_compared():
    trace = trace_of([alloc(1, 10), free(1, 10), alloc(2, 30)])
    found = compared(trace, trace, events=[0, 3])
    assert (found.delta_bytes, [moment.event for moment in found.moments]) == ((0, 20), [0, 3])
    with pytest.raises(UsageError, match="no event 9"):
        compared(trace, trace, events=[0, 9])


def test_reserved_bytes_and_their_gap_stand_beside():
    events = [event("segment_alloc", 0, 100), alloc(1, 60), event("segment_free", 0, 100)]
    moment = compared(trace_of(events, [segment(0x100, 512, [block(0x100, 512, 500)])])).moments[0]
    assert (moment.live_bytes, moment.reserved_bytes, moment.gap_bytes, moment.reserved_peak_bytes) == (
        560,
        612,
        52,
        612,
    )


def test_settings_that_differ_are_listed():
    one, two = program("/a", forward=1), program("/a", forward=1)
    settings = {"expandable_segments": False, "same": 1, "roundup": {"1": 0, "2": 0}}
    one = replace(one, settings=settings)
    two = replace(two, settings={**settings, "expandable_segments": True, "roundup": {"1": 0, "2": 4}, "new": "x"})
    assert compared(one, two).settings == (
        Setting("expandable_segments", ("False", "True")),
        Setting("new", (None, "x")),
        Setting("roundup.2", ("0", "4")),
    )


some_frames = st.lists(
    st.builds(
        frame,
        st.sampled_from(["f", "g"]),
        st.sampled_from(["/a/x.py", "/b/x.py", "/a/y.py", "/l/site-packages/z.py", "??"]),
        st.integers(1, 3),
    ),
    max_size=3,
)
some_programs = st.lists(st.tuples(st.integers(1, 2**40), some_frames), min_size=1, max_size=6).map(
    lambda rows: trace_of([alloc(i, size, frames=frames) for i, (size, frames) in enumerate(rows)])
)


@given(
    st.lists(some_programs, min_size=2, max_size=3),
    st.sampled_from(["site", "line", "stack", "category", "size", "module"]),
    st.none() | st.integers(0, 3),
)
def test_rows_and_rest_add_up_to_every_difference(traces, by, top):
    found = compared(*traces, by=by, top=top)
    for i, moment in enumerate(found.moments):
        assert sum(row.bytes[i] for row in found.rows) + found.rest_bytes[i] == moment.live_bytes
        assert sum(row.delta_bytes[i] for row in found.rows) + found.rest_delta_bytes[i] == found.delta_bytes[i]
    assert len({row.key for row in found.rows}) == len(found.rows)


@given(some_programs, st.sampled_from(["site", "line", "stack"]))
def test_a_trace_does_not_differ_from_itself(trace, by):
    found = compared(trace, trace, by=by)
    assert all(row.bytes[0] == row.bytes[1] and row.counts[0] == row.counts[1] for row in found.rows)


@requires_real
def test_two_real_programs_on_one_machine_share_their_sites():
    traces = [load_trace(FOLDER / name) for name in ("forward-bf16.pickle", "forward-fp32.pickle")]
    found = compared(*traces)
    assert found.delta_bytes == (0, 556_843_008 - 779_837_440)
    shared = [row.label for row in found.rows if row.bytes[0] and row.bytes[1]]
    assert {"swiglu.py:32 forward", "swiglu.py:33 forward"} <= set(shared)


def one_file(lines: dict[int, int]) -> Trace:
    """A model in one file: every allocation in some class's `forward`."""
    return trace_of(
        [
            alloc(512 * i, size, frames=[frame("forward", "model.py", line)])
            for i, (line, size) in enumerate(lines.items())
        ]
    )


def test_lines_of_a_function_that_has_not_changed_are_sites_of_their_own():
    found = compared(one_file({10: 100, 20: 50, 30: 7}), one_file({10: 300, 20: 50, 40: 1}))
    assert [(row.label, row.bytes) for row in found.rows] == [
        ("model.py:10 forward", (100, 300)),
        ("model.py:30 forward", (7, 0)),
        ("model.py:40 forward", (0, 1)),
        ("model.py:20 forward", (50, 50)),
    ]


def test_lines_that_moved_are_one_site():
    found = compared(one_file({10: 100, 20: 50}), one_file({11: 300, 21: 50}))
    assert [(row.label, row.bytes) for row in found.rows] == [("model.py:10-21 forward", (150, 350))]
