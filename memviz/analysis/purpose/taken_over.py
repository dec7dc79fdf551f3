"""What was found of a recording, carried to requests that were edited: it holds there, whatever stacks seem to say.

What is made a second time has the stack of the first, so it would look like a forward within the backward.
"""

from __future__ import annotations

import numpy as np

from memviz.analysis.lifetimes import Lifetimes, lifetimes
from memviz.trace.model import DeviceTrace, Ints8, Purposes
from memviz.trace.picked import first_or_second, picked


def known_of_rows(device: DeviceTrace) -> Purposes | None:
    """Per row of `lifetimes`; None for what was recorded."""
    known = device.taken_over
    if known is None:
        return None
    rows = lifetimes(device)
    event = first_events(rows, len(device.events))
    return first_or_second(event >= 0, picked(known.events, event), picked(known.blocks, rows.block.astype(np.int64)))


def first_events(rows: Lifetimes, count: int) -> Ints8:
    """Of each its alloc, or of what was there before its free; -1 where it has none."""
    is_asked_for = (rows.free_requested >= 0) & (rows.free_requested < count)
    freed = np.where(is_asked_for, rows.free_requested, np.where(rows.end < count, rows.end, -1))
    return np.where(rows.start >= 0, rows.start, freed)
