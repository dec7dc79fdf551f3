"""What could be done about each finding and what it would save: estimates from the trace, made once and kept on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from memviz.allocator.estimate import ReplayedEstimate, estimate, estimated_trace, unchanged
from memviz.allocator.replay import source_of
from memviz.allocator.replayed import Figures
from memviz.allocator.replayer import Source
from memviz.analysis.actions.proposals import ActionKind, kinds_of, proposal
from memviz.analysis.cache import cached_on
from memviz.analysis.findings.finding import NOTICEABLE, Finding
from memviz.analysis.findings.ranking import finding_named, findings
from memviz.errors import UsageError
from memviz.headlines.names import trace_name
from memviz.trace.model import DeviceTrace, Trace
from memviz.ui.shell.context import Context
from memviz.ui.shell.links import estimate_name
from memviz.ui.shell.opened_beside import with_made
from memviz.ui.shell.session import Session

MOST_EVENTS = 100_000
"""Of a longer recording nothing is replayed unasked: each estimate takes seconds there."""


@dataclass(frozen=True)
class Offer:
    kind: ActionKind
    name: str
    assumptions: tuple[str, ...]
    estimate: ReplayedEstimate

    @property
    def saves(self) -> bool:
        """A noticeable part of one peak, and nothing of the other is lost."""
        before, live, reserved = self.estimate.before, self.estimate.live_change, self.estimate.reserved_change
        some = -live >= NOTICEABLE * before.peak_requested_bytes or -reserved >= NOTICEABLE * before.peak_reserved_bytes
        return some and live <= 0 and reserved <= 0 and live + reserved < 0


def offers(trace: Trace, device: DeviceTrace, *, most_events: int = MOST_EVENTS) -> dict[str, tuple[Offer, ...]]:
    """By the key of a finding; what would save nothing is not offered, and nothing is estimated from an estimate."""
    if device.kind != "gpu" or len(device.events) > most_events or trace.is_estimate:
        return {}
    return cached_on(trace, (offers, device), lambda: _offers(trace, device))


def offers_at_hand(trace: Trace, device: DeviceTrace) -> dict[str, tuple[Offer, ...]]:
    """Without working anything out."""
    cached_on: dict[str, tuple[Offer, ...]] = trace.__dict__.get("_kept", {}).get((offers, device), {})
    return cached_on


def _offers(trace: Trace, device: DeviceTrace) -> dict[str, tuple[Offer, ...]]:
    ranked = [finding for finding in findings(trace, device) if kinds_of(finding)]
    if not ranked:
        return {}
    source = source_of(trace, device)
    before = unchanged(source)
    made: dict[str, tuple[Offer, ...]] = {}
    of_whole_trace: set[ActionKind] = set()
    for finding in ranked:
        # Said twice it would look like twice as much.
        kinds = [kind for kind in kinds_of(finding) if kind not in of_whole_trace]
        of_whole_trace.update(kind for kind in kinds if kind is not ActionKind.FREE_EARLIER)
        row = (_offer(source, before, finding, kind) for kind in kinds)
        made[finding.key] = tuple(offer for offer in row if offer is not None and offer.saves)
    return made


def _offer(source: Source, before: Figures, finding: Finding, kind: ActionKind) -> Offer | None:
    what = proposal(source.trace, source.device, finding, kind)
    if what is None:
        return None
    is_expandable = kind is ActionKind.EXPANDABLE_SEGMENTS
    result = estimate(source, what.trace, expandable=is_expandable, before=before)
    return Offer(kind, what.name, what.assumptions, result)


def with_estimate(context: Context, session: Session, data: Mapping[str, str]) -> Session:
    """What was clicked as one more open trace, compared with its recording."""
    current = context.current(session)
    if current is None or session.current is None or data.get("kind") not in list(ActionKind):
        return session
    kind = ActionKind(data["kind"])
    try:
        found = finding_named(*current, data.get("finding", ""))
        made = _made(source_of(*current), found, kind)
    except UsageError:
        # Of another trace than the one that is open now.
        return session
    if made is None:
        return session
    sample = estimate_name(session.current.sample, found.key, kind)
    return with_made(context.store, session, session.current.key, made, compared=True, sample=sample)


def _made(source: Source, finding: Finding, kind: ActionKind) -> Trace | None:
    what = proposal(source.trace, source.device, finding, kind)
    if what is None:
        return None
    is_expandable = kind is ActionKind.EXPANDABLE_SEGMENTS
    made = estimated_trace(source, what.trace, what.name, what.assumptions, expandable=is_expandable)
    name = f"{trace_name(source.trace.about.source)}, {what.name}"
    return replace(made, about=replace(made.about, source=name))
