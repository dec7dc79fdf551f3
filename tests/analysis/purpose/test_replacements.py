"""Blocks that are freed where the first of their kind were freed."""

import numpy as np
import pytest

from memviz.analysis.purpose.evidence import freed_like
from memviz.trace.model import Category
from tests.traces import alloc, frame, free, trace_of

FIRST, NEW, GONE, ELSEWHERE = (frame(name) for name in ("first", "new", "gone", "elsewhere"))
P, S, U = Category.PARAMETER, Category.OPTIMIZER_STATE, Category.UNKNOWN


@pytest.mark.parametrize(
    ("first", "new", "category"),
    [(GONE, GONE, P), (GONE, ELSEWHERE, U), (FIRST, NEW, U), (NEW, NEW, P)],
    ids=["same place", "another place", "frees repeat their allocs", "line of the alloc"],
)
def test_blocks_freed_where_the_first_were_are_alike(first, new, category):
    events = [alloc(1, 5, frames=[FIRST]), alloc(2, 5, frames=[NEW]), free(1, 5, frames=[first])]
    device = trace_of([*events, free(2, 5, frames=[new])]).devices[0]
    rows = np.array([0]), np.array([1])
    assert Category(freed_like(device, np.array([P, S], dtype=np.uint8), *rows)[0]) is category
