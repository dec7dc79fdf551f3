"""Live set at the peak or any other event, requests that failed, and the state of memory around an event."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from memviz.analysis.annotations import NO_INTERVAL, annotated, annotation_of_events
from memviz.analysis.callstacks.sites import NO_SITE, sites
from memviz.analysis.groups import Groups, group_rows
from memviz.analysis.lifetimes import BEFORE, check_event, clock, has_times, lifetimes, live_rows, time_of_event
from memviz.analysis.segments import Fragmentation, TileKind, fragmentation_at, segments_at
from memviz.analysis.timeline import has_reserved, timeline
from memviz.trace.model import Action, Bools, DeviceTrace, Ints8, Trace, driver_free


@dataclass(frozen=True)
class LiveSet:
    device: str
    event: int
    """The moment is after this event; -1 is before the first."""
    time_us: int | None
    live_bytes: int
    """Requested bytes from each alloc until its free is complete, so it includes `waiting_bytes`."""
    waiting_bytes: int
    """Free requested, but another stream may still use them."""
    reserved_bytes: int
    live: Groups
    """Adds up to `live_bytes`."""


def peak(trace: Trace, device: DeviceTrace, by: str = "site", *, top: int | None = None) -> LiveSet:
    """Return the live allocations at the first event with peak live bytes."""
    return at(trace, device, timeline(device).peak_event, by, top=top)


def at(trace: Trace, device: DeviceTrace, event: int, by: str = "site", *, top: int | None = None) -> LiveSet:
    rows, bytes_then = live_rows(device, event), timeline(device)
    return LiveSet(
        device=device.name,
        event=event,
        time_us=time_of_event(device, event),
        live_bytes=int(bytes_then.live[event + 1]),
        waiting_bytes=int(bytes_then.waiting[event + 1]),
        reserved_bytes=int(bytes_then.reserved[event + 1]),
        live=group_rows(trace, device, rows, by, top=top),
    )


@dataclass(frozen=True)
class FailedRequest:
    """An allocation that ran out of memory."""

    event: int
    time_us: int | None
    requested_bytes: int
    """Rounded up to the allocator's blocks, as PyTorch records it."""
    device_free_bytes: int | None
    """Free device memory by the driver's count, for all programs together; None if not recorded."""
    live_bytes: int
    reserved_bytes: int
    site: str
    """Empty where no stack was recorded."""


def failed_requests(trace: Trace, device: DeviceTrace, chosen: slice = slice(None)) -> tuple[FailedRequest, ...]:
    """`chosen` limits them, because a program can go on failing thousands of times."""
    events = np.flatnonzero(device.events.action == Action.OOM)[chosen].tolist()
    return tuple(failed_request(trace, device, event) for event in events)


def failed_request(trace: Trace, device: DeviceTrace, event: int) -> FailedRequest:
    events, line = device.events, timeline(device)
    return FailedRequest(
        event=event,
        time_us=time_of_event(device, event),
        requested_bytes=int(events.size[event]),
        device_free_bytes=driver_free(events, event),
        live_bytes=int(line.live[event + 1]),
        reserved_bytes=int(line.reserved[event + 1]),
        site=site_label(trace, int(events.stack[event])),
    )


def site_label(trace: Trace, stack: int) -> str:
    """Label of a stack's site; empty where no stack was recorded."""
    site = sites(trace).of(stack)
    return "" if site is NO_SITE else site.label


# State after an event: use of reserved bytes and neighbouring events; and a summary of the events between two.


@dataclass(frozen=True)
class EventSummary:
    event: int
    action: str
    bytes: int
    site: str
    """Empty where no stack was recorded."""


@dataclass(frozen=True)
class EventState:
    event: int
    """-1 is before the first."""
    microseconds: int | None
    """Since the first event; None in a file without times."""
    count: int
    """Live allocations."""
    bytes: Fragmentation
    largest_free: int
    """The largest piece of reserved memory that is free in one stretch."""
    annotation: str
    around: tuple[EventSummary, ...]
    """This event with its neighbours, in order."""
    failed: FailedRequest | None
    is_reserved_known: bool = True
    """False if the recording has no reserved bytes."""


def event_state(trace: Trace, device: DeviceTrace, event: int, *, around: int = 2) -> EventState:
    check_event(device, event)
    events, tiles = device.events, segments_at(trace, device, event).tiles
    near = range(max(event - around, 0), min(event + around + 1, len(events)))
    times = clock(device) if has_times(device) else None
    is_failure = event > BEFORE and events.action[event] == Action.OOM
    annotation = NO_INTERVAL if event == BEFORE else int(annotation_of_events(device, np.array([event]))[0])
    names = annotated(device).name
    return EventState(
        event=event,
        microseconds=None if times is None else int(times[max(event, 0)] - times[0]),
        count=len(live_rows(device, event)),
        bytes=fragmentation_at(trace, device, event),
        largest_free=int(tiles.size[tiles.kind == TileKind.FREE].max(initial=0)),
        annotation="" if annotation == NO_INTERVAL else trace.strings[names[annotation]],
        around=tuple(
            EventSummary(
                event=neighbour,
                action=trace.action_name(int(events.action[neighbour])),
                bytes=int(events.size[neighbour]),
                site=site_label(trace, int(events.stack[neighbour])),
            )
            for neighbour in near
        ),
        failed=failed_request(trace, device, event) if is_failure else None,
        is_reserved_known=has_reserved(device),
    )


@dataclass(frozen=True)
class Total:
    count: int
    bytes: int


@dataclass(frozen=True)
class RangeSummary:
    """Live before the first event, plus `allocated`, minus `freed`, is live after the last one."""

    first: int
    """-1 includes the state before the first event of the trace."""
    last: int
    peak_event: int
    """First event of the range with the highest live bytes after it."""
    allocated: Total
    freed: Total
    throughout: Total
    """Live before the first event, and still live after the last."""


def summarize_range(device: DeviceTrace, first: int, last: int) -> RangeSummary:
    """Both events belong to it."""
    check_event(device, first)
    check_event(device, last)
    rows, live = lifetimes(device), timeline(device).live
    first, last = min(first, last), max(first, last)
    begin = max(first, 0)
    begun = int(np.searchsorted(rows.start, last, side="right"))
    start, end, size = rows.start[:begun], rows.end[:begun], rows.size[:begun]
    return RangeSummary(
        first=first,
        last=last,
        peak_event=first + int(live[first + 1 : last + 2].argmax()),
        allocated=_total(size, start >= begin),
        freed=_total(size, (end >= begin) & (end <= last)),
        throughout=_total(size, (start < begin) & (end > last)),
    )


def _total(size: Ints8, chosen: Bools) -> Total:
    return Total(int(np.count_nonzero(chosen)), int(size[chosen].sum()))
