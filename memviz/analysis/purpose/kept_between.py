"""A cache of keys and values: what a forward replaces by something larger at the same place, again and again.

What merely outlives its forward may be a list of outputs or activations that no backward uses, so that is no evidence.
"""

from __future__ import annotations

import numpy as np

from memviz.analysis.lifetimes import Lifetimes
from memviz.analysis.purpose.forward_passes import Passes
from memviz.analysis.sums import sum_by
from memviz.trace.model import Bools, Ints4, Ints8

_FEWEST_PASSES = 3
_MOSTLY = 0.75
"""Share of the changes from pass to pass that are growth. The rest are new sequences."""


def kept_between_passes(rows: Lifetimes, passes: Passes, pass_of: Ints4, outlives: Bools) -> Bools:
    """Among rows that outlive the pass that made them, those that a later pass frees where it makes larger ones."""
    is_cache = np.zeros(len(rows), dtype=np.bool_)
    left = np.flatnonzero(outlives & (pass_of >= 0))
    if len(left):
        is_replaced = passes.around(np.minimum(rows.end[left], passes.last[-1] + 1)) > pass_of[left]
        grows = _growing_stacks(rows, left, pass_of[left].astype(np.int64))
        # The last ones are still there at the end.
        is_cache[left] = (is_replaced | (rows.end[left] >= passes.last[-1])) & np.isin(rows.stack[left], grows)
    return is_cache


def _growing_stacks(rows: Lifetimes, left: Ints8, made_in: Ints8) -> Ints8:
    """Stacks that leave more in nearly every pass than in the pass before."""
    width = int(rows.stack.max(initial=0)) + 2
    passes = int(made_in.max()) + 1
    keys, key_of = np.unique((rows.stack[left].astype(np.int64) + 1) * passes + made_in, return_inverse=True)
    size = sum_by(key_of, rows.size[left], len(keys))
    stack = keys // passes
    same = stack[1:] == stack[:-1]
    changes = np.bincount(stack[1:][same], minlength=width)
    growth = np.bincount(stack[1:][same & (size[1:] > size[:-1])], minlength=width)
    return np.flatnonzero((changes >= _FEWEST_PASSES - 1) & (growth >= _MOSTLY * changes)) - 1
