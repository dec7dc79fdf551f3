"""Units in the last place, against the neighbours that PyTorch itself finds."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from memviz.runner.output_check.difference import UlpCounts, Ulps, ulps_between

TYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]
each_type = pytest.mark.parametrize("dtype", TYPES, ids=str)


@each_type
def test_a_number_and_the_next_are_one_apart(dtype):
    one = torch.ones(1).to(dtype)
    next_one = torch.tensor([1 + torch.finfo(dtype).eps], dtype=torch.float64).to(dtype)
    assert ulps_between(one, next_one).tolist() == [1]


@each_type
def test_every_finite_number_of_a_narrow_type_is_one_from_its_neighbour(dtype):
    kind = {1: torch.int8, 2: torch.int16}.get(one_size(dtype))
    if kind is None:
        dtype, kind = torch.float16, torch.int16
    every = torch.arange(torch.iinfo(kind).min, torch.iinfo(kind).max + 1).to(kind).view(dtype)
    values = every.to(torch.float64)
    ordered = torch.unique(values[values.isfinite()]).to(dtype)
    assert ulps_between(ordered[:-1], ordered[1:]).unique().tolist() == [1]


def one_size(dtype: torch.dtype) -> int:
    return torch.empty(0, dtype=dtype).element_size()


@each_type
def test_both_zeros_are_the_same_number(dtype):
    zero = torch.zeros(1).to(dtype)
    assert ulps_between(zero, (-torch.zeros(1)).to(dtype)).tolist() == [0]


def test_the_two_ends_of_float64_are_as_far_apart_as_can_be_counted():
    ends = torch.tensor([torch.finfo(torch.float64).max], dtype=torch.float64)
    assert ulps_between(ends, -ends).tolist() == [2**63 - 1]


@given(st.floats(width=32, allow_nan=False), st.floats(width=32, allow_nan=False))
def test_distance_is_the_same_from_both_sides(one, other):
    first, second = torch.tensor([one]), torch.tensor([other])
    assert ulps_between(first, second).tolist() == ulps_between(second, first).tolist()


def test_whole_numbers_and_different_types_are_not_counted():
    assert ulps_between(torch.ones(1, dtype=torch.int32), torch.ones(1, dtype=torch.int32)) is None
    assert ulps_between(torch.ones(1), torch.ones(1, dtype=torch.bfloat16)) is None


def test_each_bin_holds_what_lies_above_the_one_before():
    counted = UlpCounts()
    counted.add(torch.tensor([0, 0, 1, 2, 3, 4]))
    counted.add(torch.tensor([5, 1024, 5000]))
    counted.add(torch.empty(0, dtype=torch.int64))
    assert counted.result() == Ulps(5000, ((0, 2), (1, 1), (2, 1), (4, 2), (8, 1), (1024, 1), (None, 1)))
