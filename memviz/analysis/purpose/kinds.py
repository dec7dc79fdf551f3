"""What an allocation is, wherever it is shown: its category, or that it was there before the recording began.

What was live at the first event without a stack to say more is a kind of its own, not an unknown one: another
recording could tell.
"""

from __future__ import annotations

from memviz.analysis.lifetimes import BEFORE, lifetimes
from memviz.analysis.purpose.categories import categories
from memviz.trace.model import NO_STACK, Category, DeviceTrace, Ints8, Trace

BEFORE_RECORDING = "before recording"
KINDS = (*(category.label for category in Category), BEFORE_RECORDING)
"""What a row of `kinds` means."""
SAYS_NOTHING = (Category.UNKNOWN.label, BEFORE_RECORDING)
"""Kinds that explain nothing."""


def kinds(trace: Trace, device: DeviceTrace, rows: Ints8 | slice = slice(None)) -> Ints8:
    """Per row of `lifetimes`, or for these rows, an index into KINDS."""
    lives = lifetimes(device)
    kind_codes = categories(trace, device).category[rows].astype("int64")
    unseen = (lives.start[rows] == BEFORE) & (lives.stack[rows] == NO_STACK) & (kind_codes == Category.UNKNOWN)
    kind_codes[unseen] = KINDS.index(BEFORE_RECORDING)
    return kind_codes
