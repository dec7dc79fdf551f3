"""Live set at the peak, at any other event, and at each failed allocation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from memviz.analysis.callstacks.sites import sites
from memviz.analysis.groups import Groups, grouped
from memviz.analysis.lifetimes import live_rows, time_of_event
from memviz.analysis.timeline import timeline
from memviz.trace.model import NO_STACK, Action, DeviceTrace, Trace, driver_free


@dataclass(frozen=True)
class LiveSet:
    device: str
    event: int
    """The moment is after this event; -1 is before the first."""
    time_us: int | None
    live_bytes: int
    """Requested bytes from each alloc until its free is complete, so it includes `waiting_bytes`."""
    waiting_bytes: int
    """Asked to be freed while another stream may still use them."""
    reserved_bytes: int
    live: Groups
    """Adds up to `live_bytes`."""


def peak(trace: Trace, device: DeviceTrace, by: str = "site", *, top: int | None = None) -> LiveSet:
    """Return the live allocations at the first event with peak live bytes."""
    return at(trace, device, timeline(device).peak_event, by, top=top)


def at(
    trace: Trace,
    device: DeviceTrace,
    event: int,
    by: str = "site",
    *,
    top: int | None = None,
) -> LiveSet:
    rows, bytes_then = live_rows(device, event), timeline(device)
    return LiveSet(
        device=device.name,
        event=event,
        time_us=time_of_event(device, event),
        live_bytes=int(bytes_then.live[event + 1]),
        waiting_bytes=int(bytes_then.waiting[event + 1]),
        reserved_bytes=int(bytes_then.reserved[event + 1]),
        live=grouped(trace, device, rows, by, top=top),
    )


@dataclass(frozen=True)
class OutOfMemory:
    asked_bytes: int
    """Rounded up to the allocator's blocks, as PyTorch records it."""
    device_free_bytes: int | None
    """Free device memory by the driver's count, for all programs together; None where the file does not say."""
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
) -> tuple[OutOfMemory, ...]:
    """`chosen`: which of them, because a program can go on failing thousands of times, and each takes a while."""
    events, table = device.events, sites(trace)
    return tuple(
        OutOfMemory(
            asked_bytes=int(events.size[event]),
            device_free_bytes=driver_free(events, event),
            site=table.of(int(events.stack[event])).label,
            stack=int(events.stack[event]) if events.stack[event] != NO_STACK else None,
            then=at(trace, device, event, by, top=top),
        )
        for event in np.flatnonzero(events.action == Action.OOM)[chosen].tolist()
    )
