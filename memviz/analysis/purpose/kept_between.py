"""Keys and values that a model keeps from one forward to the next: a block or two a layer, where all else goes."""

from __future__ import annotations

import numpy as np

from memviz.analysis.lifetimes import Lifetimes
from memviz.analysis.purpose.forward_passes import Passes
from memviz.trace.model import Bools, Ints4, Ints8

_MOST_PLACES = 2
_FEWEST_LAYERS = 2


def kept_between_passes(rows: Lifetimes, passes: Passes, pass_of: Ints4, outlives: Bools) -> Bools:
    """Of rows that outlive the pass that made them: those that look like a cache."""
    is_cache = np.zeros(len(rows), dtype=np.bool_)
    left = np.flatnonzero(outlives & (pass_of >= 0))
    if len(left):
        is_cache[left] = _grows_when_replaced(rows, passes, left, pass_of[left])
        is_cache[left] |= _few_a_layer(rows, left, pass_of[left].astype(np.int64))
    return is_cache


def _grows_when_replaced(rows: Lifetimes, passes: Passes, left: Ints8, made_in: Ints4) -> Bools:
    """Freed within a later pass, and the same place makes larger ones: a token longer each time."""
    freed_in = passes.around(np.minimum(rows.end[left], passes.last[-1] + 1))
    stack = rows.stack[left]
    smallest = np.full(int(stack.max()) + 2, np.iinfo(np.int64).max)
    largest = np.zeros(len(smallest), dtype=np.int64)
    np.minimum.at(smallest, stack, rows.size[left])
    np.maximum.at(largest, stack, rows.size[left])
    return np.asarray((freed_in > made_in) & (largest[stack] > smallest[stack]))


def _few_a_layer(rows: Lifetimes, left: Ints8, made_in: Ints8) -> Bools:
    """No more than two places leave something behind in this pass, as often and as large as one another."""
    width = int(rows.stack.max(initial=0)) + 2
    places, place_of, count = np.unique(made_in * width + rows.stack[left] + 1, return_inverse=True, return_counts=True)
    repeated = count >= _FEWEST_LAYERS
    of_pass = places // width
    passes = int(of_pass.max()) + 1
    several = np.bincount(of_pass[repeated], minlength=passes)
    fewest = np.full(passes, np.iinfo(np.int64).max)
    most = np.zeros(passes, dtype=np.int64)
    np.minimum.at(fewest, of_pass[repeated], count[repeated])
    np.maximum.at(most, of_pass[repeated], count[repeated])
    once = np.bincount(of_pass[~repeated], minlength=passes)
    fits = (several >= 1) & (several <= _MOST_PLACES) & (fewest == most) & (once <= _MOST_PLACES)
    return np.asarray(fits[of_pass[place_of]] & repeated[place_of])
