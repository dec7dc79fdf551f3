"""Memory that is handed back at once: allocations freed by the very next alloc or free. They cost time, not room."""

from __future__ import annotations

import numpy as np

from memviz.analysis.callstacks.frames import DEFAULT_RULE, SiteRule
from memviz.analysis.groups import Groups, grouped
from memviz.analysis.lifetimes import lifetimes
from memviz.trace.model import Action, DeviceTrace, Ints8, Trace


def freed_at_once(
    trace: Trace, device: DeviceTrace, by: str = "site", *, top: int | None = None, rule: SiteRule = DEFAULT_RULE
) -> Groups:
    """Bytes are summed over all such allocations: traffic, never live together."""
    return grouped(trace, device, _rows_freed_at_once(device), by, top=top, rule=rule)


def _rows_freed_at_once(device: DeviceTrace) -> Ints8:
    rows, count = lifetimes(device), len(device.events)
    # The order among allocs and frees alone: a segment may be made in between.
    order = np.append(np.cumsum(device.events.action <= Action.FREE_COMPLETED), count + 1)
    freed = np.minimum(rows.free_requested, rows.end)
    return np.flatnonzero((rows.start >= 0) & (freed < count) & (order[freed] == order[rows.start] + 1))
