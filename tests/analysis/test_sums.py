"""Sums per group and maxima of ranges, against plain loops."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from memviz.analysis.sums import max_of_ranges, sum_by

LARGE = st.integers(-(2**58), 2**58)


@given(st.lists(st.tuples(st.integers(0, 3), LARGE), max_size=8))
def test_sums_are_exact_beyond_what_a_float_can_hold(pairs):
    codes = np.array([code for code, _ in pairs], dtype=np.int64)
    values = np.array([value for _, value in pairs], dtype=np.int64)
    assert sum_by(codes, values, 4).tolist() == [sum(v for c, v in pairs if c == code) for code in range(4)]


@given(st.lists(LARGE, min_size=1, max_size=20), st.data())
def test_the_largest_of_any_short_ranges(values, data):
    bound = st.tuples(st.integers(0, len(values) - 1), st.integers(1, len(values)))
    ranges = [(start, max(start + 1, stop)) for start, stop in data.draw(st.lists(bound, max_size=6))]
    found = max_of_ranges(
        np.array(values), *(np.array([range_[i] for range_ in ranges], dtype=np.int64) for i in (0, 1))
    )
    assert found.tolist() == [max(values[start:stop]) for start, stop in ranges]


def test_the_largest_of_long_ranges():
    random = np.random.default_rng(0)
    values = random.integers(0, 2**40, 10_000)
    start = random.integers(0, 9_999, 300)
    stop = start + 1 + random.integers(0, 10_000 - start)
    expected = [int(values[a:b].max()) for a, b in zip(start, stop, strict=True)]
    assert max_of_ranges(values, start, stop).tolist() == expected
