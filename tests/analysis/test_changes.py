"""From one peak to the others: rows that add up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memviz.analysis.alike import GROUPINGS, Thing
from memviz.analysis.changes import Change, changes, says_most
from memviz.analysis.scores import Score, scores
from memviz.trace.load import load_trace
from memviz.trace.model import Trace
from tests.real import FOLDER, requires_real
from tests.traces import alloc, block, event, frame, free, segment, trace_of


def at(function: str, line: int = 1) -> list[dict]:
    return [frame(function, "model.py", line)]


def sides(*traces: Trace) -> list:
    return [(trace, trace.devices[0]) for trace in traces]


def before_and_after() -> list:
    first = trace_of([alloc(1, 100, frames=at("f")), alloc(2, 30, frames=at("g", 2))])
    second = trace_of([alloc(1, 250, frames=at("f")), alloc(3, 40, frames=at("h", 3)), alloc(4, 2, frames=at("f"))])
    return sides(first, second)


def test_rows_are_ordered_by_their_change_and_add_up():
    found = changes(before_and_after())
    assert found.rows == (
        Change(Thing("model.py:1 f\n", "model.py:1", "", "f"), "unknown", (100, 252), (1, 2)),
        Change(Thing("model.py:3 h\n", "model.py:3", "", "h"), "unknown", (0, 40), (0, 1)),
        Change(Thing("model.py:2 g\n", "model.py:2", "", "g"), "unknown", (30, 0), (1, 0)),
    )
    assert [row.delta(1) for row in found.rows] == [152, 40, -30]
    assert found.delta(1) == 162 == sum(row.delta(1) for row in found.rows)


sizes = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 2**50)), min_size=1, max_size=12)


def made(chosen: list[tuple[int, int]]) -> Trace:
    events: list = []
    for address, (line, size) in enumerate(chosen):
        events.append(alloc(address, size, frames=at("f", line)))
        if line == 0:
            events.append(free(address, size, frames=at("f", line)))
    return trace_of(events)


@given(st.lists(sizes, min_size=2, max_size=4), st.sampled_from(GROUPINGS))
def test_rows_always_add_up_to_every_peak(each, by):
    found = changes(sides(*map(made, each)), by)
    for number, moment in enumerate(found.moments):
        assert sum(row.bytes[number] for row in found.rows) == moment.live_bytes


def test_sites_come_first_where_both_have_them():
    assert says_most(before_and_after()) == "site"


def test_categories_that_nobody_knows_come_never_first():
    first, second = (trace_of([alloc(1, 100, frames=at(name))]) for name in ("f", "g"))
    assert says_most(sides(first, second)) == "site"


@requires_real
@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [("forward-fp32", "forward-bf16", "site"), ("train-complete", "train-mixed-precision", "category")],
)
def test_two_different_steps_are_compared_by_category(first, second, expected):
    assert says_most(sides(*(load_trace(FOLDER / f"{name}.pickle") for name in (first, second)))) == expected


@requires_real
def test_the_copies_of_autocast_are_rows_of_their_own():
    pair = sides(*(load_trace(FOLDER / f"{name}.pickle") for name in ("forward-fp32", "forward-bf16")))
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
    assert scores(sides(baseline, trace)) == (
        Score((("unknown", 600),), live_bytes=600, reserved_bytes=0, delta_bytes=0, duration_us=None),
        Score((("unknown", 1000),), live_bytes=1000, reserved_bytes=4096, delta_bytes=400, duration_us=60),
    )
    assert scores(sides(trace))[0].gap_bytes == 3096
