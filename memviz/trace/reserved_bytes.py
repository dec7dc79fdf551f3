"""Bytes reserved after each event, and whether a recording tells them.

A profile of the host does not, nor does a list of allocations alone.
"""

from __future__ import annotations

import numpy as np

from memviz.trace.model import Action, DeviceTrace, Ints8


def reserved_after(device: DeviceTrace) -> Ints8:
    """Row 0 is before the first event."""
    action, size = device.events.action, device.events.size
    after = np.zeros(len(action) + 1, dtype=np.int64)
    grows = np.flatnonzero((action == Action.SEGMENT_ALLOC) | (action == Action.SEGMENT_MAP))
    after[grows + 1] = size[grows]
    shrinks = np.flatnonzero((action == Action.SEGMENT_FREE) | (action == Action.SEGMENT_UNMAP))
    after[shrinks + 1] = -size[shrinks]
    np.cumsum(after, out=after)
    # Never less than nothing, even where a file has events but no final segments, or contradicts itself.
    after += max(int(device.segments.size.sum() - after[-1]), -int(after.min()))
    return after


def is_reserved_known(live_bytes: int, reserved_bytes: int) -> bool:
    """What is live lies in reserved bytes: none of these is none that the file knows of."""
    return bool(reserved_bytes) or not live_bytes
