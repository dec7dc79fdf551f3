"""Blocks that are freed where the first of their kind were freed."""

import numpy as np
import pytest

from memviz.analysis.purpose.evidence import freed_like
from memviz.trace.model import Category
from tests.traces import alloc, frame, free, trace_of

FIRST, NEW, GONE, ELSEWHERE = (frame(name) for name in ("first", "new", "gone", "elsewhere"))
P, S, U = Category.PARAMETER, Category.OPTIMIZER_STATE, Category.UNKNOWN


def like_first(first_freed_at, new_freed_at) -> Category:
    """Return the category of row 1 if row 0 is a parameter."""
    events = [alloc(1, 5, frames=[FIRST]), alloc(2, 5, frames=[NEW]), free(1, 5, frames=[first_freed_at])]
    device = trace_of([*events, free(2, 5, frames=[new_freed_at])]).devices[0]
    rows = np.array([0]), np.array([1])
    return Category(freed_like(device, np.array([P, S], dtype=np.uint8), *rows)[0])


@pytest.mark.parametrize(
    ("first", "new", "category"),
    [(GONE, GONE, P), (GONE, ELSEWHERE, U), (FIRST, NEW, U), (NEW, NEW, P)],
    ids=["same place", "another place", "frees repeat their allocs", "line of the alloc"],
)
def test_blocks_freed_where_the_first_were_are_alike(first, new, category):
    assert like_first(first, new) is category
