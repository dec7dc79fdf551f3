"""The largest findings of a trace as sentences, with actions and what they would save, estimated once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from memviz.allocator.replayer import ReplayedEstimate, Replayer
from memviz.analysis.actions.proposals import ActionKind, kinds_of, limit_of_start, proposal
from memviz.analysis.cache import cached_on
from memviz.analysis.findings.finding import NOTICEABLE, Facts, Finding, FindingKind
from memviz.analysis.findings.ranking import finding_by_key, findings
from memviz.errors import UsageError
from memviz.results.headline import trace_name
from memviz.text import Html, cut, joined, rounded, tag
from memviz.trace.model import DeviceTrace, Trace
from memviz.ui.explore.live_set import lights
from memviz.ui.html.elements import button
from memviz.ui.shell.session import Context, Session, estimate_name, open_derived_trace
from memviz.units import counted, delta_text

MOST_EVENTS = 100_000
"""Longer recordings are not replayed without a click: each estimate takes seconds there."""


@dataclass(frozen=True)
class Offer:
    kind: ActionKind
    name: str
    assumptions: tuple[str, ...]
    estimate: ReplayedEstimate

    @property
    def saves(self) -> bool:
        """A noticeable part of one peak, and nothing of the other is lost."""
        before, live, reserved = self.estimate.before, self.estimate.requested_change, self.estimate.reserved_change
        some = -live >= NOTICEABLE * before.peak_requested_bytes or -reserved >= NOTICEABLE * before.peak_reserved_bytes
        return some and live <= 0 and reserved <= 0 and live + reserved < 0


def offers(trace: Trace, device: DeviceTrace, *, most_events: int = MOST_EVENTS) -> dict[str, tuple[Offer, ...]]:
    """Return estimated fixes by the finding's key, without those that save nothing; estimates themselves get none."""
    if device.kind != "gpu" or len(device.events) > most_events or trace.is_estimate:
        return {}
    return cached_on(trace, (offers, device), lambda: _make_offers(trace, device))


def offers_at_hand(trace: Trace, device: DeviceTrace) -> dict[str, tuple[Offer, ...]]:
    """Without working anything out."""
    found: dict[str, tuple[Offer, ...]] = trace.__dict__.get("_kept", {}).get((offers, device), {})
    return found


def _make_offers(trace: Trace, device: DeviceTrace) -> dict[str, tuple[Offer, ...]]:
    ranked = [finding for finding in findings(trace, device) if kinds_of(finding)]
    if not ranked:
        return {}
    replayer = Replayer(trace, device)
    before = replayer.estimate()
    made: dict[str, tuple[Offer, ...]] = {}
    of_whole_trace: set[ActionKind] = set()
    for finding in ranked:
        # A saving listed twice looks like twice the saving.
        kinds = [kind for kind in kinds_of(finding) if kind not in of_whole_trace]
        of_whole_trace.update(kind for kind in kinds if kind is not ActionKind.FREE_EARLIER)
        row = []
        for kind in kinds:
            if (what := proposal(trace, device, finding, kind)) is not None:
                after = replayer.estimate(what.trace, expandable=kind is ActionKind.EXPANDABLE_SEGMENTS)
                row.append(Offer(kind, what.name, what.assumptions, ReplayedEstimate(before, after)))
        made[finding.key] = tuple(offer for offer in row if offer.saves)
    return made


def with_estimate(context: Context, session: Session, data: Mapping[str, str]) -> Session:
    """Open the estimate of the clicked fix as another trace, compared with its recording."""
    current = context.current(session)
    if current is None or session.current is None or data.get("kind") not in list(ActionKind):
        return session
    kind = ActionKind(data["kind"])
    try:
        finding = finding_by_key(*current, data.get("finding", ""))
        what = proposal(*current, finding, kind)
        if what is None:
            return session
        is_expandable = kind is ActionKind.EXPANDABLE_SEGMENTS
        made = Replayer(*current).estimated_trace(what.trace, what.name, what.assumptions, expandable=is_expandable)
    except UsageError:
        # Of another trace than the one that is open now.
        return session
    estimate = replace(made, about=replace(made.about, source=f"{trace_name(current[0].about.source)}, {what.name}"))
    sample = estimate_name(session.current.sample, finding.key, kind)
    return open_derived_trace(context.store, session, session.current.key, estimate, compared=True, sample=sample)


FEW = 2
"""Findings that are seen before the others are asked for."""
_LONGEST = 400
_WHAT_IF, _RUN = ("what-if", "What if"), ("run", "Run")
_TABS = {
    FindingKind.OUT_OF_MEMORY: _WHAT_IF,
    FindingKind.ACTIVATIONS: _RUN,
    FindingKind.PINNED_SEGMENTS: _WHAT_IF,
    FindingKind.SPIKE: _WHAT_IF,
    FindingKind.PRIVATE_POOLS: _WHAT_IF,
    FindingKind.WAITING_FREES: _WHAT_IF,
    FindingKind.WIDER_COPIES: _RUN,
    FindingKind.LARGE_TEMPORARY: _RUN,
    FindingKind.DUPLICATED_WEIGHTS: _RUN,
}
"""The tab that shows what would help: other settings, or another way to run."""


_NO_OFFERS: Mapping[str, tuple[Offer, ...]] = {}
_ESTIMATES = "Estimates: the trace is edited and replayed through PyTorch’s allocator. Click to compare."


def findings_html(
    trace: Trace, device: DeviceTrace, key: str = "", offered: Mapping[str, tuple[Offer, ...]] = _NO_OFFERS
) -> Html:
    """A chip each, which lights its allocations and opens the rest; two, and the others behind their count.

    `key` is the open trace's; without it nothing can be lit and no other tab reached, as in a saved page.
    """
    ranked = findings(trace, device)
    if not ranked:
        return Html("")
    limit = limit_of_start(Facts(trace, device)) if any(offered.values()) else ""
    items = [_item(finding, key, offered.get(finding.key, ()), limit) for finding in ranked]
    if key and ranked[FEW:]:
        # Holds nothing: the styles hide what follows it while it is closed.
        more = tag("summary", f"{counted(len(ranked) - FEW, 'more finding')}")
        items.insert(FEW, tag("li", tag("details", more), class_="mv-fold"))
    return tag("section", tag("h2", "Findings"), tag("ul", *items), class_="mv-findings", data_trace=key or None)


def _item(finding: Finding, key: str, offers: Sequence[Offer], limit: str) -> Html:
    text = tag("p", cut(finding.sentence, _LONGEST), " ", tag("span", finding.remedy, class_="mv-soft"))
    if not key:
        return tag("li", text)
    words = joined(tag("b", rounded(finding.bytes)), " ", finding.kind.title_text)
    chip = button(words, None, "mv-finding", data_keep="")
    estimates = []
    for offer in offers:
        title = " ".join(("An estimate from the trace, which assumes:", *offer.assumptions))
        live, reserved = offer.estimate.requested_change, offer.estimate.reserved_change
        label = f"estimate, {offer.name}: {delta_text(live) if live < 0 else f'{delta_text(reserved)} reserved'}"
        data = {"data_finding": finding.key, "data_kind": str(offer.kind)}
        estimates.append(button(label, "estimate", title=title, **data))
    tab, name = _TABS.get(finding.kind, ("", ""))
    turn = button(name, "turn", data_tab=tab, data_finding=finding.key) if tab else ""
    ways = tag("div", *estimates, turn, class_="mv-ways")
    note = tag("p", f"{_ESTIMATES} {limit}".strip(), class_="mv-estimates") if offers else ""
    whole = tag("div", tag("div", text, note), ways, class_="mv-whole")
    return tag("li", chip, whole, **lights("finding", finding.key))
