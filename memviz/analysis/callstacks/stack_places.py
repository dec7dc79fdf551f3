"""Questions to every stack at once. A place is an index into `Stacks.indices`: one frame within one stack."""

from __future__ import annotations

import numpy as np

from memviz.trace.model import Bools, Ints8, Stacks

NOWHERE = -1


def first_in_stack(stacks: Stacks, frames: Bools) -> Ints8:
    """For each stack the place of its innermost frame among these; NOWHERE for none."""
    hits = np.flatnonzero(frames[stacks.indices])
    # Behind all places, where no stack ends.
    first = np.append(hits, len(stacks.indices))[np.searchsorted(hits, stacks.offsets[:-1])]
    return np.where(first < stacks.offsets[1:], first, NOWHERE)


def last_in_stack(stacks: Stacks, frames: Bools) -> Ints8:
    """The same for the outermost one."""
    return last_place(stacks, frames[stacks.indices])


def last_place(stacks: Stacks, places: Bools) -> Ints8:
    """For each stack the outermost of these places; NOWHERE for none."""
    hits = np.append(NOWHERE, np.flatnonzero(places))
    last = hits[np.searchsorted(hits[1:], stacks.offsets[1:])]
    return np.where(last >= stacks.offsets[:-1], last, NOWHERE)


def only_places(stacks: Stacks, places: Bools) -> Stacks:
    """The same stacks with only these places."""
    before = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(places)])
    return Stacks(stacks.frames, before[stacks.offsets], stacks.indices[places])
