"""Figures of Explore's headline for a device: its peak, the largest part of it, and how it ran out of memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from memviz.analysis.actions.layers import layers_holding
from memviz.analysis.actions.proposals import limit_of_start
from memviz.analysis.annotations import steps
from memviz.analysis.breakdown import purpose_totals
from memviz.analysis.callstacks.sites import NO_SITE, Site, SiteKind, sites
from memviz.analysis.devices import DeviceName, name_device
from memviz.analysis.findings.finding import Facts
from memviz.analysis.health import history
from memviz.analysis.lifetimes import lifetimes, live_rows
from memviz.analysis.peak import FailedRequest, failed_requests, peak
from memviz.analysis.purpose.activity import Activity
from memviz.analysis.purpose.categories import SAYS_NOTHING, categories
from memviz.analysis.purpose.phases import noted_step, phase_spans, step_name
from memviz.analysis.purpose.reasons import Certainty
from memviz.analysis.sums import sum_by
from memviz.analysis.timeline import timeline
from memviz.trace.model import Action, Category, DeviceTrace, Ints8, Trace

_LEAST_SHARE = 0.2
"""Share of the peak: a smaller kind does not characterize the peak."""
_MOST_PLACES = 3
_ENOUGH = 0.5
"""Least share of the activations that the named places must hold."""
_JUST_BEGUN = 20
"""A twentieth of a backward: a peak in it is due to the forward."""


@dataclass(frozen=True, eq=False)
class KeptBy:
    places: tuple[Site, ...]
    """Sites by bytes, largest first."""
    bytes: int
    """Bytes of activations at these sites at this moment."""
    rows: Ints8
    """Rows of `lifetimes`."""


@dataclass(frozen=True)
class MostOfIt:
    category: str
    bytes: int
    is_probable: bool = False
    """For most of these bytes the purpose is no more than probable."""
    kept_by: KeptBy | None = None
    """Sites that keep them, if they are activations."""
    layers: str = ""
    """'24 equal layers', if these made all activations of those sites."""


@dataclass(frozen=True)
class Overview:
    device: DeviceName
    event_count: int
    """0 where only the state at the end is known."""
    trace_has_events: bool
    """Another device may have them."""
    peak_bytes: int
    peak_event: int
    """-1 where the peak was there before the first event."""
    reserved_peak_bytes: int
    moment: str
    """Step and phase of the peak; empty where unknown."""
    most_of_it: MostOfIt | None
    """Largest category of the peak, if known and large enough."""
    ran_out: FailedRequest | None
    """The last request that failed."""
    failed_count: int = 0
    is_estimate: bool = False
    limit_of_start: str = ""
    """Sentence on memory from before the recording, which an estimate leaves as it is; else empty."""
    largest_site: str = ""
    """At the peak, if most of it has no purpose and its sites are known."""
    largest_site_bytes: int = 0


def overview(trace: Trace, device: DeviceTrace) -> Overview:
    line = timeline(device)
    site, site_bytes = _largest_site(trace, device)
    return Overview(
        device=name_device(trace, device),
        event_count=len(device.events),
        trace_has_events=trace.event_count > 0,
        peak_bytes=line.peak_bytes,
        peak_event=line.peak_event,
        reserved_peak_bytes=line.reserved_peak_bytes,
        moment=_moment(trace, device, line.peak_event),
        most_of_it=_most_of_it(trace, device),
        ran_out=next(iter(failed_requests(trace, device, slice(-1, None))), None),
        failed_count=int((device.events.action == Action.OOM).sum()),
        is_estimate=trace.is_estimate,
        limit_of_start=limit_of_start(Facts(trace, device)) if trace.is_estimate else "",
        largest_site=site,
        largest_site_bytes=site_bytes,
    )


def _largest_site(trace: Trace, device: DeviceTrace) -> tuple[str, int]:
    rows, total = live_rows(device, timeline(device).peak_event), timeline(device).peak_bytes
    unsaid = sum(part.bytes for part in purpose_totals(trace, device, rows) if part.kind in SAYS_NOTHING)
    if 2 * unsaid <= total:
        return "", 0
    largest = next(iter(peak(trace, device, "site", top=1).live.groups), None)
    return ("", 0) if largest is None or largest.label == NO_SITE.label else (largest.label, largest.bytes)


def _moment(trace: Trace, device: DeviceTrace, event: int) -> str:
    phases = phase_spans(trace, device)
    place = phases.around(event)
    if event < 0:
        return ""
    if place < 0:
        if noted := noted_step(trace, device, event):
            return f"in {noted}"
        # The step between two annotated optimizer steps, where no stack shows a phase.
        around = [step.name for step in steps(trace, device) if step.start_event <= event <= step.end_event]
        return f"in {'recorded ' if history(device) == 'late' else ''}{around[0]}" if around else ""
    span = phases.spans[place]
    step = step_name(trace, device, span)
    if not phases.is_training:
        return f"in {step}"
    behind = phases.spans[place - 1] if place else span
    has_just_begun = _JUST_BEGUN * (event - span.first) <= span.last - span.first
    if span.doing == Activity.BACKWARD and behind.doing == Activity.FORWARD and has_just_begun:
        return f"at the end of forward in {step}"
    return f"in the {span.kind} of {step}"


def _most_of_it(trace: Trace, device: DeviceTrace) -> MostOfIt | None:
    for group in peak(trace, device, "category", top=1).live.groups:
        if group.key not in SAYS_NOTHING and group.bytes > _LEAST_SHARE * timeline(device).peak_bytes:
            rows = live_rows(device, timeline(device).peak_event)
            totals = [part for part in purpose_totals(trace, device, rows) if part.kind == group.key]
            probable = sum(part.bytes for part in totals if part.certainty == Certainty.PROBABLE)
            keeps = sites_holding_activations(trace, device, rows) if group.key == Category.ACTIVATION.label else None
            layers = ""
            if keeps is not None:
                holding = layers_holding(Facts(trace, device), keeps.rows, timeline(device).peak_event)
                if holding is not None and len(holding.rows) == len(keeps.rows):
                    layers = holding.description
            return MostOfIt(group.label, group.bytes, 2 * probable > group.bytes, keeps, layers)
    return None


def sites_holding_activations(trace: Trace, device: DeviceTrace, rows: Ints8) -> KeptBy | None:
    """Return the few sites that hold most of the activations among these rows of `lifetimes`, or None."""
    rows = rows[categories(trace, device).category[rows] == Category.ACTIVATION]
    all_rows, table = lifetimes(device), sites(trace)
    distinct, place = np.unique(table.of_stack[all_rows.stack[rows]], return_inverse=True)
    if not len(rows):
        return None
    sums = sum_by(place, all_rows.size[rows], len(distinct))
    order = np.argsort(-sums, kind="stable")
    needed = int(np.searchsorted(np.cumsum(sums[order]), _ENOUGH * sums.sum())) + 1
    chosen = [table.sites[distinct[i]] for i in order[:needed].tolist()]
    if needed > _MOST_PLACES or any(site.kind not in (SiteKind.USER, SiteKind.LIBRARY) for site in chosen):
        return None
    return KeptBy(tuple(chosen), int(sums[order[:needed]].sum()), rows[np.isin(place, order[:needed])])
