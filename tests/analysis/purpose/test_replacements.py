"""What is freed where the first of its kind were freed."""

from __future__ import annotations

import numpy as np
import pytest

from memviz.analysis.purpose.evidence import agreed, freed_like
from memviz.trace.model import Category
from tests.traces import alloc, frame, free, trace_of

FIRST, NEW, GONE, ELSEWHERE = (frame(name) for name in ("first", "new", "gone", "elsewhere"))
P, S, U = Category.PARAMETER, Category.OPTIMIZER_STATE, Category.UNKNOWN


@pytest.mark.parametrize(
    ("keys", "categories", "found"),
    [([3], [P], P), ([3, 3], [P, P], P), ([3, 3], [P, S], U), ([3, 3], [P, U], P), ([2], [P], U), ([], [], U)],
)
def test_a_key_has_the_category_that_all_agree_on(keys, categories, found):
    given = np.array(keys, dtype=np.int32), np.array(categories, dtype=np.uint8)
    assert agreed(*given, np.array([3], dtype=np.int32)).tolist() == [found]


def test_no_key_has_no_category():
    keys = np.array([-1], dtype=np.int32)
    assert agreed(keys, np.array([P], dtype=np.uint8), keys).tolist() == [U]


def like_first(first_freed_at, new_freed_at) -> Category:
    """The category of row 1, given that row 0 is a parameter."""
    events = [alloc(1, 5, frames=[FIRST]), alloc(2, 5, frames=[NEW]), free(1, 5, frames=[first_freed_at])]
    device = trace_of([*events, free(2, 5, frames=[new_freed_at])]).devices[0]
    rows = np.array([0]), np.array([1])
    return Category(freed_like(device, np.array([P, S], dtype=np.uint8), *rows)[0])


def test_what_is_freed_at_the_same_place_is_alike():
    assert like_first(GONE, GONE) is P
    assert like_first(GONE, ELSEWHERE) is U


def test_frees_that_only_repeat_their_allocs_say_nothing():
    assert like_first(FIRST, NEW) is U


def test_a_free_in_the_line_of_its_alloc_counts_where_others_differ():
    assert like_first(NEW, NEW) is P
