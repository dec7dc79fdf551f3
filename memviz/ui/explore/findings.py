"""What is worth knowing about the trace: the largest findings as sentences, each of which lights what it speaks of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from memviz.analysis.actions.proposals import limit_of_start
from memviz.analysis.findings.finding import Facts, Finding, FindingKind
from memviz.analysis.findings.ranking import findings
from memviz.trace.model import DeviceTrace, Trace
from memviz.ui.explore.estimates import Offer
from memviz.ui.explore.live_set import lights
from memviz.ui.html.markup import Html, tag
from memviz.ui.html.words import cut, rounded
from memviz.units import count_text, delta_text

FEW = 5
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
    """`key` is the open trace's; without it nothing can be lit and no other tab reached, as in a saved page."""
    ranked = findings(trace, device)
    if not ranked:
        return Html("")
    largest, few, rest = ranked[:1], ranked[1:FEW], ranked[FEW:]
    parts = [tag("h2", "Findings"), _list(largest, key, offered)]
    if few:
        # Holds nothing: its styles hide what follows it while it is closed, and itself where there is room for all.
        narrow = tag("summary", f"{count_text(len(few) + len(rest))} more")
        parts += [tag("details", narrow, class_="mv-fold"), _list(few, key, offered)]
    if rest:
        parts.append(tag("details", tag("summary", f"{count_text(len(rest))} more"), _list(rest, key, offered)))
    if any(offered.values()):
        limit = limit_of_start(Facts(trace, device))
        parts.append(tag("p", f"{_ESTIMATES} {limit}".strip(), class_="mv-estimates"))
    return tag("section", *parts, class_="mv-findings", data_trace=key or None)


def _list(shown: Sequence[Finding], key: str, offered: Mapping[str, tuple[Offer, ...]]) -> Html:
    return tag("ul", *(_item(finding, key, offered.get(finding.key, ())) for finding in shown))


def _item(finding: Finding, key: str, offers: Sequence[Offer]) -> Html:
    words, remedy = cut(finding.sentence, _LONGEST), tag("span", finding.remedy, class_="mv-soft")
    size = tag("b", rounded(finding.bytes), class_="mv-number")
    if not key:
        return tag("li", size, tag("p", words, " ", remedy))
    said = tag("button", words, type="button", class_="mv-finding", data_keep="")
    ways = tag("div", *(_offer(finding, offer) for offer in offers), _way(finding), class_="mv-ways")
    return tag("li", size, tag("p", said, " ", remedy), ways, **lights("finding", finding.key))


def _offer(finding: Finding, offer: Offer) -> Html:
    """Opens the estimate beside the recording."""
    data = {"data_act": "estimate", "data_finding": finding.key, "data_kind": str(offer.kind)}
    title = " ".join(("An estimate from the trace, which assumes:", *offer.assumptions))
    return tag(
        "button", f"estimate, {offer.name}: {_saved(offer)}", type="button", class_="mv-quiet", title=title, **data
    )


def _saved(offer: Offer) -> str:
    live, reserved = offer.estimate.live_change, offer.estimate.reserved_change
    if live < 0:
        return delta_text(live)
    return f"{delta_text(reserved)} reserved"


def _way(finding: Finding) -> Html:
    tab, words = _TABS.get(finding.kind, ("", ""))
    if not tab:
        return Html("")
    return tag(
        "button", words, type="button", class_="mv-quiet", data_act="turn", data_tab=tab, data_finding=finding.key
    )
