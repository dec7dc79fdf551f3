"""Live set at the peak and at any other event, and the requests that failed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from memviz.analysis.callstacks.sites import NO_SITE, sites
from memviz.analysis.groups import Groups, grouped
from memviz.analysis.lifetimes import live_rows, time_of_event
from memviz.analysis.timeline import timeline
from memviz.trace.model import Action, DeviceTrace, Trace, driver_free


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
class FailedRequest:
    """An allocation that ran out of memory."""

    event: int
    time_us: int | None
    requested_bytes: int
    """Rounded up to the allocator's blocks, as PyTorch records it."""
    device_free_bytes: int | None
    """Free device memory by the driver's count, for all programs together; None where the file does not say."""
    live_bytes: int
    reserved_bytes: int
    site: str
    """Empty where no stack was recorded."""


def failed_requests(trace: Trace, device: DeviceTrace, chosen: slice = slice(None)) -> tuple[FailedRequest, ...]:
    """`chosen` are those wanted, because a program can go on failing thousands of times."""
    events = np.flatnonzero(device.events.action == Action.OOM)[chosen].tolist()
    return tuple(failed_request(trace, device, event) for event in events)


def failed_request(trace: Trace, device: DeviceTrace, event: int) -> FailedRequest:
    events, line = device.events, timeline(device)
    site = sites(trace).of(int(events.stack[event]))
    return FailedRequest(
        event=event,
        time_us=time_of_event(device, event),
        requested_bytes=int(events.size[event]),
        device_free_bytes=driver_free(events, event),
        live_bytes=int(line.live[event + 1]),
        reserved_bytes=int(line.reserved[event + 1]),
        site="" if site is NO_SITE else site.label,
    )
