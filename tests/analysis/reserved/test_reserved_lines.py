"""A recording and its replays as lines over the same columns."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memviz.analysis.decimate import PAST_END, ReplayedBytes, reserved_by_event, reserved_by_time
from memviz.trace.model import DeviceTrace
from tests.traces import alloc, trace_of


def device(times: list[int]) -> DeviceTrace:
    return trace_of([alloc(4096 * i, 100, time_us=time) for i, time in enumerate(times)]).devices[0]


def replay(*reserved: int, stopped: bool = False) -> ReplayedBytes:
    return ReplayedBytes("r", np.array(reserved, dtype=np.int64), stopped)


def test_each_column_shows_the_most_of_its_events():
    line = reserved_by_event(device([1, 2, 3, 4, 5]), [replay(0, 7, 3, 9, 2, 4)], columns=3).lines[0]
    assert (line.reserved.tolist(), line.stops_at, line.last_column) == ([7, 9, 4], None, 2)


def test_a_line_ends_where_memory_ran_out():
    line = reserved_by_event(device([1, 2, 3, 4, 5]), [replay(0, 7, 3, stopped=True)], columns=6).lines[0]
    assert (line.reserved.tolist(), line.stops_at, line.last_column) == ([0, 7, 3, *[PAST_END] * 3], 1, 2)


def test_it_may_end_before_the_first_event():
    line = reserved_by_event(device([1, 2]), [replay(5, stopped=True)], columns=3).lines[0]
    assert (line.reserved.tolist(), line.stops_at, line.last_column) == ([5, PAST_END, PAST_END], -1, 0)


def test_a_time_in_which_nothing_happens_repeats_what_was_before():
    line = reserved_by_time(device([10, 11, 20]), [replay(0, 7, 3, 9)], columns=5).lines[0]
    assert line.reserved.tolist() == [7, 3, 3, 3, 9]


@pytest.mark.parametrize("columns", [1, 3, 7, 100])
@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 1000)), min_size=1, max_size=30))
def test_no_peak_is_lost_on_either_axis(columns, steps):
    traced, reserved = device(sorted(time for time, _ in steps)), [0, *(size for _, size in steps)]
    for lines in (reserved_by_event, reserved_by_time):
        line = lines(traced, [replay(*reserved)], columns=columns).lines[0]
        assert int(line.reserved.max()) == max(reserved)
