"""What Explore says of a device in a sentence, as figures: its peak, what most of it is, and how it ran out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from memviz.analysis.annotations import steps
from memviz.analysis.callstacks.frames import DEFAULT_RULE, SiteRule
from memviz.analysis.callstacks.sites import NO_SITE, sites
from memviz.analysis.health import history
from memviz.analysis.peak import peak
from memviz.analysis.purpose.kinds import SAYS_NOTHING
from memviz.analysis.timeline import timeline
from memviz.analysis.which_device import Which, which
from memviz.trace.model import Action, DeviceTrace, Trace

_LEAST_SHARE = 0.2
"""Of the peak: a kind that makes less of it does not say what the peak is."""


@dataclass(frozen=True)
class RanOut:
    """The last allocation that failed."""

    times: int
    event: int
    asked_bytes: int
    site: str
    """Empty where no stack was recorded."""
    live_bytes: int
    reserved_bytes: int


@dataclass(frozen=True)
class MostOfIt:
    category: str
    bytes: int


@dataclass(frozen=True)
class Overview:
    device: Which
    event_count: int
    """0 where only the state at the end is known."""
    trace_has_events: bool
    """Another device may have them."""
    peak_bytes: int
    peak_event: int
    """-1 where the peak was there before the first event."""
    reserved_peak_bytes: int
    step: str
    """In which the peak comes; empty where no steps are known."""
    most_of_it: MostOfIt | None
    """Of the peak: the largest category, where it is known and makes a good part."""
    ran_out: RanOut | None


def overview(trace: Trace, device: DeviceTrace) -> Overview:
    line = timeline(device)
    return Overview(
        device=which(trace, device),
        event_count=len(device.events),
        trace_has_events=trace.event_count > 0,
        peak_bytes=line.peak_bytes,
        peak_event=line.peak_event,
        reserved_peak_bytes=line.reserved_peak_bytes,
        step=_step(trace, device, line.peak_event),
        most_of_it=_most_of_it(trace, device),
        ran_out=_ran_out(trace, device),
    )


def _step(trace: Trace, device: DeviceTrace, event: int) -> str:
    around = [each.name for each in steps(trace, device) if each.start_event <= event <= each.end_event]
    if not around or event < 0:
        return ""
    # Counted by us, from where the recording begins.
    is_ours = around[0].startswith("step ") and history(device) == "late"
    return f"recorded {around[0]}" if is_ours else around[0]


def _most_of_it(trace: Trace, device: DeviceTrace) -> MostOfIt | None:
    for each in peak(trace, device, "category", top=1).live.groups:
        if each.key not in SAYS_NOTHING and each.bytes > _LEAST_SHARE * timeline(device).peak_bytes:
            return MostOfIt(each.label, each.bytes)
    return None


def _ran_out(trace: Trace, device: DeviceTrace, rule: SiteRule = DEFAULT_RULE) -> RanOut | None:
    events, line = device.events, timeline(device)
    failed = np.flatnonzero(events.action == Action.OOM).tolist()
    if not failed:
        return None
    last = failed[-1]
    site = sites(trace, rule).of(int(events.stack[last])).label
    return RanOut(
        times=len(failed),
        event=last,
        asked_bytes=int(events.size[last]),
        site="" if site == NO_SITE.label else site,
        live_bytes=int(line.live[last + 1]),
        reserved_bytes=int(line.reserved[last + 1]),
    )
