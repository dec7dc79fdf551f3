"""The peak, and what is live then or after any other event."""

from __future__ import annotations

from dataclasses import dataclass

from memviz.analysis.callstacks.frames import DEFAULT_RULE, SiteRule
from memviz.analysis.groups import Groups, grouped
from memviz.analysis.live import live_rows, time_of_event
from memviz.analysis.timeline import timeline
from memviz.trace.model import DeviceTrace, Trace


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


def peak(
    trace: Trace, device: DeviceTrace, by: str = "site", *, top: int | None = None, rule: SiteRule = DEFAULT_RULE
) -> LiveSet:
    """What is live at the first event after which live bytes are at their peak."""
    return at(trace, device, timeline(device).peak_event, by, top=top, rule=rule)


def at(
    trace: Trace,
    device: DeviceTrace,
    event: int,
    by: str = "site",
    *,
    top: int | None = None,
    rule: SiteRule = DEFAULT_RULE,
) -> LiveSet:
    rows, bytes_then = live_rows(device, event), timeline(device)
    return LiveSet(
        device=device.name,
        event=event,
        time_us=time_of_event(device, event),
        live_bytes=int(bytes_then.live[event + 1]),
        waiting_bytes=int(bytes_then.waiting[event + 1]),
        reserved_bytes=int(bytes_then.reserved[event + 1]),
        live=grouped(trace, device, rows, by, top=top, rule=rule),
    )
