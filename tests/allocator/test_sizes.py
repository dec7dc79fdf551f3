"""Rounded sizes are equal for single requests and for columns."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memviz.allocator.caching import rounding, segment_size
from memviz.trace.rounding import round_sizes
from tests.allocator.driver import MiB

divisions = st.tuples(*[st.sampled_from([0, 1, 2, 4, 8, 64])] * 16)
sizes = st.integers(1, 4096) | st.integers(1, 1 << 40) | st.integers(9, 40).map(lambda power: 1 << power)


@given(divisions, sizes)
def test_requests_round_alike_alone_and_in_columns(table, size):
    assert rounding(table)(size) == int(round_sizes(np.array([size]), table)[0])


@pytest.mark.parametrize(
    ("rounded", "segment"),
    [(512, 2), (MiB, 2), (MiB + 512, 20), (10 * MiB - 512, 20), (10 * MiB, 10), (21 * MiB, 22), (22 * MiB, 22)],
)
def test_a_segment_is_shared_or_made_to_measure(rounded, segment):
    assert segment_size(rounded) == segment * MiB


def test_the_shared_large_segment_is_a_setting():
    assert segment_size(5 * MiB, 32 * MiB) == 32 * MiB
