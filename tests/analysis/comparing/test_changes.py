"""Changes from one peak to the others: rows that add up."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memviz.analysis.comparing.changes import (
    Change,
    Moment,
    Score,
    Setting,
    best_grouping,
    changes,
    scores,
    setting_differences,
)
from memviz.analysis.comparing.matching import GROUPINGS, MatchKey
from memviz.analysis.devices import DeviceName
from memviz.trace.model import Trace
from tests.real import FOLDER, read_once, requires_real
from tests.traces import alloc, block, event, frame, pairs_of, segment, trace_of


def at(function: str, line: int = 1) -> list[dict]:
    return [frame(function, "model.py", line)]


def before_and_after() -> list:
    first = trace_of([alloc(1, 100, frames=at("f")), alloc(2, 30, frames=at("g", 2))])
    second = trace_of([alloc(1, 250, frames=at("f")), alloc(3, 40, frames=at("h", 3)), alloc(4, 2, frames=at("f"))])
    return pairs_of(first, second)


def test_rows_are_ordered_by_their_change_and_add_up():
    found = changes(before_and_after())
    assert found.rows == (
        Change(MatchKey("model.py:1 f\n", "model.py:1", "", "f"), "unknown", (100, 252), (1, 2)),
        Change(MatchKey("model.py:3 h\n", "model.py:3", "", "h"), "unknown", (0, 40), (0, 1)),
        Change(MatchKey("model.py:2 g\n", "model.py:2", "", "g"), "unknown", (30, 0), (1, 0)),
    )
    assert [row.delta(1) for row in found.rows] == [152, 40, -30]
    assert found.delta(1) == 162 == sum(row.delta(1) for row in found.rows)


def test_sites_come_first_where_both_have_them():
    assert best_grouping(before_and_after()) == "site"


def test_categories_that_nobody_knows_come_never_first():
    first, second = (trace_of([alloc(1, 100, frames=at(name))]) for name in ("f", "g"))
    assert best_grouping(pairs_of(first, second)) == "site"


@requires_real
@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [("forward-fp32", "forward-bf16", "site"), ("train-complete", "train-mixed-precision", "category")],
)
def test_two_different_steps_are_compared_by_category(first, second, expected):
    assert best_grouping(pairs_of(*(read_once(FOLDER / f"{name}.pickle") for name in (first, second)))) == expected


@requires_real
def test_the_copies_of_autocast_are_rows_of_their_own():
    pair = pairs_of(*(read_once(FOLDER / f"{name}.pickle") for name in ("forward-fp32", "forward-bf16")))
    found = changes(pair)
    assert found.delta(1) == 222_994_432
    assert [(row.thing.label, row.thing.operator, row.delta(1)) for row in found.rows[:2]] == [
        ("linear.py:15", "_to_copy", 72_769_536),
        ("swiglu.py:32", "_to_copy", 56_623_104),
    ]


def test_a_score_is_the_peak_by_kind_what_was_reserved_and_how_long_it_took():
    reserve = event("segment_alloc", 0, 4096, time_us=10)
    trace = trace_of([reserve, alloc(0, 1000, time_us=70)], [segment(0, 4096, [block(0, 1024, 1000)])])
    baseline = trace_of([alloc(0, 600)])
    assert scores(pairs_of(baseline, trace)) == (
        Score((("unknown", 600),), {"unknown": 600}, 600, reserved_bytes=0, delta_bytes=0, duration_us=None),
        Score(
            (("unknown", 1000),),
            {"unknown": 1000},
            live_bytes=1000,
            reserved_bytes=4096,
            delta_bytes=400,
            duration_us=60,
        ),
    )
    assert scores(pairs_of(trace))[0].gap_bytes == 3096


# -- the same place in two versions of a program


def program(home: str, *, forward: int, cache: int | None = None, moved: int = 0) -> Trace:
    """The same source in some home, with lines that may have moved down."""
    model, train = f"{home}/proj/model.py", f"{home}/proj/train.py"
    events = [alloc(1, forward, frames=[frame("forward", model, 10 + moved), frame("main", train, 50 + moved)])]
    if cache is not None:
        events.append(alloc(2, cache, frames=[frame("keep", f"{home}/proj/cache.py", 3), frame("main", train, 60)]))
    return trace_of([*events, alloc(3, 7)])


def brief(*traces: Trace, by: str = "site") -> list[tuple[str, tuple[int, ...]]]:
    return [(row.thing.name, row.bytes) for row in changes(pairs_of(*traces), by).rows]


def test_growth_at_the_same_place_is_one_row_though_home_and_line_differ():
    found = changes(pairs_of(program("/home/a", forward=100), program("/srv/b", forward=200, cache=30, moved=2)))
    assert found.moments == (
        Moment("hand-made", DeviceName("0"), 1, live_bytes=107, reserved_peak_bytes=0, event_count=2),
        Moment("hand-made", DeviceName("0"), 2, live_bytes=237, reserved_peak_bytes=0, event_count=3),
    )
    assert [(row.thing.name, row.bytes, row.counts) for row in found.rows] == [
        ("model.py:10, 12 forward", (100, 200), (1, 1)),
        ("cache.py:3 keep", (0, 30), (0, 1)),
        ("no stack recorded", (7, 7), (1, 1)),
    ]


def test_many_traces_are_ordered_by_their_largest_difference():
    found = brief(program("/a", forward=100), program("/a", forward=90), program("/a", forward=100, cache=30))
    assert found[:2] == [("cache.py:3 keep", (0, 0, 30)), ("model.py:10 forward", (100, 90, 100))]


def test_by_line_a_moved_line_is_another():
    found = brief(program("/a", forward=100), program("/b", forward=100, moved=2), by="line")
    assert found[:2] == [("model.py:10", (100, 0)), ("model.py:12", (0, 100))]


def test_by_stack_without_python_the_operators_count():
    one, two = (trace_of([alloc(1, n, frames=[frame(f"at::_ops::mm::call({n})", "??", 0)])]) for n in (5, 8))
    assert brief(one, two, by="stack") == [("at::_ops::mm mm", (5, 8))]


def test_other_groupings_compare_by_their_names():
    one = trace_of([alloc(1, 5), alloc(9, 5), alloc(17, 4)])
    two = trace_of([alloc(1, 5, stream=7), alloc(9, 3, stream=7)])
    assert brief(one, two, by="size") == [("5 B each", (10, 5)), ("4 B each", (4, 0)), ("3 B each", (0, 3))]
    assert brief(one, two, by="stream") == [("default stream", (14, 0)), ("stream 7", (0, 8))]
    assert brief(one, two, by="phase") == [("unknown", (14, 8))]
    assert brief(one, two, by="annotation") == [("no annotation", (14, 8))]
    assert brief(one, two, by="pool") == [("default pool", (14, 8))]


def test_settings_that_differ_are_listed():
    one, two = program("/a", forward=1), program("/a", forward=1)
    settings = {"expandable_segments": False, "same": 1, "roundup": {"1": 0, "2": 0}}
    one = replace(one, settings=settings)
    two = replace(two, settings={**settings, "expandable_segments": True, "roundup": {"1": 0, "2": 4}, "new": "x"})
    assert setting_differences([one, two]) == (
        Setting("expandable_segments", ("False", "True")),
        Setting("new", (None, "x")),
        Setting("roundup.2", ("0", "4")),
    )


some_frames = st.lists(
    st.builds(
        frame,
        st.sampled_from(["f", "g", "at::_ops::mm::call()"]),
        st.sampled_from(["/a/x.py", "/b/x.py", "/a/y.py", "/l/site-packages/z.py", "??"]),
        st.integers(1, 3),
    ),
    max_size=3,
)
some_programs = st.lists(st.tuples(st.integers(1, 2**40), some_frames), min_size=1, max_size=6).map(
    lambda rows: trace_of([alloc(i, size, frames=frames) for i, (size, frames) in enumerate(rows)])
)


@given(st.lists(some_programs, min_size=2, max_size=3), st.sampled_from(GROUPINGS), st.none() | st.integers(0, 3))
def test_rows_and_rest_add_up_to_every_difference(traces, by, top):
    found = changes(pairs_of(*traces), by)
    for i, moment in enumerate(found.moments):
        assert sum(row.bytes[i] for row in found.rows[:top]) + found.after(top).bytes[i] == moment.live_bytes
        assert sum(row.delta(i) for row in found.rows[:top]) + found.after(top).delta(i) == found.delta(i)
        count = len(traces[i].devices[0].events)
        assert sum(row.counts[i] for row in found.rows[:top]) + found.after(top).counts[i] == count
    assert len({row.thing.key for row in found.rows}) == len(found.rows)


@given(some_programs, st.sampled_from(GROUPINGS))
def test_a_trace_does_not_differ_from_itself(trace, by):
    found = changes(pairs_of(trace, trace), by)
    assert all(row.bytes[0] == row.bytes[1] and row.counts[0] == row.counts[1] for row in found.rows)


def one_file(lines: dict[int, int]) -> Trace:
    """A model in one file: every allocation in some class's `forward`."""
    return trace_of(
        [
            alloc(512 * i, size, frames=[frame("forward", "model.py", line)])
            for i, (line, size) in enumerate(lines.items())
        ]
    )


def test_lines_that_moved_are_one_site():
    assert brief(one_file({10: 100, 20: 50}), one_file({11: 300, 21: 50})) == [("model.py:10-21 forward", (150, 350))]
