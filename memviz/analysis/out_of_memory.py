"""Each failed allocation: what was asked, what the driver still had, and what filled the device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from memviz.analysis.callstacks.frames import DEFAULT_RULE, SiteRule
from memviz.analysis.callstacks.sites import sites
from memviz.analysis.peak import LiveSet, at
from memviz.trace.model import NO_STACK, Action, DeviceTrace, Trace, driver_free


@dataclass(frozen=True)
class OutOfMemory:
    asked_bytes: int
    """Rounded up to the allocator's blocks, as PyTorch records it."""
    device_free_bytes: int | None
    """What the driver called free, for all programs together; None where the file does not say."""
    site: str
    stack: int | None
    then: LiveSet


def out_of_memory(
    trace: Trace,
    device: DeviceTrace,
    by: str = "site",
    *,
    top: int | None = None,
    chosen: slice = slice(None),
    rule: SiteRule = DEFAULT_RULE,
) -> tuple[OutOfMemory, ...]:
    """`chosen`: which of them, because a program can go on failing thousands of times, and each takes a while."""
    events, table = device.events, sites(trace, rule)
    return tuple(
        OutOfMemory(
            asked_bytes=int(events.size[event]),
            device_free_bytes=driver_free(events, event),
            site=table.of(int(events.stack[event])).label,
            stack=int(events.stack[event]) if events.stack[event] != NO_STACK else None,
            then=at(trace, device, event, by, top=top, rule=rule),
        )
        for event in np.flatnonzero(events.action == Action.OOM)[chosen].tolist()
    )
