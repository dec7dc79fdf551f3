"""Bytes reserved after each event, and whether a recording tells them.

A profile of the host does not, nor does a list of allocations alone.
"""

from __future__ import annotations

import numpy as np

from memviz.trace.model import Action, DeviceTrace, Ints8


def reserved_after(device: DeviceTrace) -> Ints8:
    """Row 0 is before the first event."""
    action, size = device.events.action, device.events.size
    grows = (action == Action.SEGMENT_ALLOC) | (action == Action.SEGMENT_MAP)
    shrinks = (action == Action.SEGMENT_FREE) | (action == Action.SEGMENT_UNMAP)
    change = np.where(grows, size, np.where(shrinks, -size, 0))
    after = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(change)])
    # Never less than nothing, even where a file has events but no final segments, or contradicts itself.
    start = max(int(device.segments.size.sum() - after[-1]), -int(after.min()))
    return np.asarray(after + start, dtype=np.int64)


def is_reserved_known(live_bytes: int, reserved_bytes: int) -> bool:
    """What is live lies in reserved bytes: none of these is none that the file knows of."""
    return bool(reserved_bytes) or not live_bytes
