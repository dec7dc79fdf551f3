"""Optimizers written by hand make new tensors each step and let the old ones go: which of them are parameters?

`p.data = p.data - update` frees the old parameter at one place, and `m = beta * m + ...` the old state at
another. Frees have stacks of their own where `context="all"` was recorded. So what is freed at the place where
the first parameters were freed is a parameter too, and so are all others made at the same place.
"""

from __future__ import annotations

import numpy as np

from memviz.analysis.lifetimes import lifetimes
from memviz.trace.model import NO_STACK, Bytes1, Category, DeviceTrace, Ints4, Ints8


def freed_like(device: DeviceTrace, category: Bytes1, first: Ints8, rows: Ints8) -> Bytes1:
    """For each of `rows` the category of those of `first` that were freed where its stack's allocations are.

    UNKNOWN where there is none, or where they do not agree.
    """
    stack, freed_at = lifetimes(device).stack, stack_of_frees(device)
    of_free = agreed(freed_at[first], category[first], freed_at[rows])
    return agreed(stack[rows], of_free, stack[rows])


def agreed(keys: Ints4, category: Bytes1, wanted: Ints4) -> Bytes1:
    """For each wanted key the one category seen under it; UNKNOWN where there is none or more than one."""
    seen = (keys >= 0) & (category != Category.UNKNOWN)
    size = int(max(keys.max(initial=0), wanted.max(initial=0))) + 1
    lowest = np.full(size, len(Category), dtype=np.uint8)
    highest = np.full(size, Category.UNKNOWN, dtype=np.uint8)
    np.minimum.at(lowest, keys[seen], category[seen])
    np.maximum.at(highest, keys[seen], category[seen])
    one = (lowest[wanted] == highest[wanted]) & (wanted >= 0)
    return np.where(one, highest[wanted], Category.UNKNOWN).astype(np.uint8)


def stack_of_frees(device: DeviceTrace) -> Ints4:
    """The stack of each row's free. With `context="alloc"` a free only repeats its alloc's, and counts for nothing."""
    rows, count = lifetimes(device), len(device.events)
    has_request = (rows.free_requested >= 0) & (rows.free_requested < count)
    stacks_of_frees = np.full(len(rows), NO_STACK, dtype=np.int32)
    stacks_of_frees[has_request] = device.events.stack[rows.free_requested[has_request]]
    known = (stacks_of_frees != NO_STACK) & (rows.stack != NO_STACK)
    if (stacks_of_frees[known] == rows.stack[known]).all():
        stacks_of_frees[:] = NO_STACK
    return stacks_of_frees
