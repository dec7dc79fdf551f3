"""The different numbers of a column, against numpy's own."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memviz.trace.intern import distinct, first_of_each, is_among
from memviz.trace.unpickle.rows import translated


@given(st.lists(st.integers(-5, 5) | st.sampled_from([4095, 4096, 2**62, -(2**63)]), max_size=12))
def test_integers_are_as_numpy_finds_them(numbers):
    column = np.array(numbers, dtype=np.int64)
    assert distinct(column).tolist() == sorted(set(numbers))


@pytest.mark.parametrize("kind", [np.uint8, np.int32, np.int64, np.bool_])
@pytest.mark.parametrize("count", [0, 1, 9])
def test_the_kind_of_number_stays(kind, count):
    column = (np.arange(count) % 3).astype(kind)
    assert distinct(column).dtype == np.unique(column).dtype
    assert distinct(column).tolist() == np.unique(column).tolist()


_NUMBERS = st.integers(-3, 12) | st.sampled_from([300, 4095, 4096, 2**62, -(2**63)])


@given(st.lists(_NUMBERS, max_size=12), st.lists(_NUMBERS, max_size=24))
def test_what_is_among_others_is_as_numpy_finds_it(numbers, wanted):
    columns = np.array(numbers, dtype=np.int64), np.array(wanted, dtype=np.int64)
    assert is_among(*columns).tolist() == np.isin(*columns).tolist()


@given(st.lists(st.integers(0, 255), max_size=12), st.lists(st.integers(0, 600), max_size=24))
def test_so_it_is_of_small_numbers(numbers, wanted):
    column = np.array(numbers, dtype=np.uint8)
    assert is_among(column, wanted).tolist() == np.isin(column, wanted).tolist()


_HASHES = st.integers(0, 9) | st.integers(0, 2**64 - 1) | st.sampled_from([2**63, 2**63 + 1, 2**64 - 1])


@given(st.lists(_HASHES, max_size=40))
def test_each_finds_the_first_that_is_the_same(numbers):
    """Also where they share a place in the table, as those below ten do."""
    hashes = np.array(numbers, dtype=np.uint64)
    assert first_of_each(hashes).tolist() == [numbers.index(number) for number in numbers]


@given(st.lists(_NUMBERS, max_size=24))
def test_each_different_value_is_translated_once(numbers):
    asked: list[int] = []

    def translate(value: int) -> int:
        asked.append(value)
        return value % 1000 - 7

    found = translated(np.array(numbers, dtype=np.int64), translate)
    assert found.tolist() == [number % 1000 - 7 for number in numbers]
    assert asked == sorted(set(numbers))
