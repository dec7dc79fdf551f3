"""How much of the gradients is there from a forward's begin to its middle, counted for all forwards in one pass."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from memviz.analysis.findings.retention import _live_until_middle
from memviz.analysis.purpose.activity import Activity
from memviz.analysis.purpose.phases import PhaseSpan

LIVES = st.lists(st.tuples(st.integers(-1, 30), st.integers(1, 30), st.integers(1, 1000)), max_size=30)
BORDERS = st.lists(st.integers(0, 40), max_size=12, unique=True).map(sorted)


@given(LIVES, BORDERS)
def test_it_is_what_counting_each_forward_alone_gives(lives: list[tuple[int, int, int]], borders: list[int]) -> None:
    lives = sorted(lives)
    start, length, size = (np.array([live[i] for live in lives], dtype=np.int64) for i in range(3))
    end = start + length
    spans = [
        PhaseSpan(Activity.FORWARD, 1, first, last) for first, last in zip(borders[::2], borders[1::2], strict=False)
    ]
    one_by_one = [int(size[(start < span.first) & (end > (span.first + span.last) // 2)].sum()) for span in spans]
    assert _live_until_middle(spans, start, end, size) == one_by_one
