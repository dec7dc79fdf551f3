"""Questions to every stack at once. A place is an index into `Stacks.indices`: one frame within one stack."""

from __future__ import annotations

import numpy as np

from memviz.trace.model import Bools, Ints8, Stacks

NOWHERE = -1


def first_in_stack(stacks: Stacks, frames: Bools) -> Ints8:
    """For each stack the place of its innermost frame among these; NOWHERE for none."""
    count = len(stacks.indices)
    # Counted from the far end, the innermost place is the largest.
    largest = _largest(stacks, np.where(frames[stacks.indices], count - np.arange(count), NOWHERE))
    return np.where(largest == NOWHERE, NOWHERE, count - largest)


def last_in_stack(stacks: Stacks, frames: Bools) -> Ints8:
    """The same for the outermost one."""
    return last_place(stacks, frames[stacks.indices])


def last_place(stacks: Stacks, places: Bools) -> Ints8:
    """For each stack the outermost of these places; NOWHERE for none."""
    return _largest(stacks, np.where(places, np.arange(len(places)), NOWHERE))


def only_places(stacks: Stacks, places: Bools) -> Stacks:
    """The same stacks with only these places."""
    before = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(places)])
    return Stacks(stacks.frames, before[stacks.offsets], stacks.indices[places])


def _largest(stacks: Stacks, values: Ints8) -> Ints8:
    found = np.full(len(stacks), NOWHERE)
    filled = np.flatnonzero(np.diff(stacks.offsets))
    if len(filled):
        # Empty stacks lie between the others without a place of their own.
        found[filled] = np.maximum.reduceat(values, stacks.offsets[filled])
    return found
