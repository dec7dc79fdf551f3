"""What is worth knowing about the trace: the largest findings as sentences, each of which lights what it speaks of."""

from __future__ import annotations

from collections.abc import Sequence

from memviz.analysis.findings.finding import Finding, FindingKind
from memviz.analysis.findings.ranked import findings
from memviz.trace.model import DeviceTrace, Trace
from memviz.ui.explore.live_set import lights
from memviz.ui.html.markup import Html, tag
from memviz.ui.html.words import cut, rounded
from memviz.units import count_text

FEW = 5
_LONGEST = 400
_WHAT_IF, _RUN = ("what-if", "What if"), ("run", "Run")
_TABS = {
    FindingKind.PINNED_SEGMENTS: _WHAT_IF,
    FindingKind.SPIKE: _WHAT_IF,
    FindingKind.PRIVATE_POOLS: _WHAT_IF,
    FindingKind.WAITING_FREES: _WHAT_IF,
    FindingKind.WIDER_COPIES: _RUN,
    FindingKind.LARGE_TEMPORARY: _RUN,
    FindingKind.DUPLICATED_WEIGHTS: _RUN,
}
"""The tab that shows what would help: other settings, or another way to run."""


def findings_html(trace: Trace, device: DeviceTrace, key: str = "") -> Html:
    """`key` is the open trace's; without it nothing can be lit and no other tab reached, as in a saved page."""
    ranked = findings(trace, device)
    if not ranked:
        return Html("")
    first, rest = _list(ranked[:FEW], key), ranked[FEW:]
    more = tag("details", tag("summary", f"{count_text(len(rest))} more"), _list(rest, key)) if rest else ""
    heading = tag("h2", "Findings")
    return tag("section", heading, first, more, class_="mv-findings", data_trace=key or None)


def _list(shown: Sequence[Finding], key: str) -> Html:
    return tag("ul", *(_item(finding, key) for finding in shown))


def _item(finding: Finding, key: str) -> Html:
    words, remedy = cut(finding.sentence, _LONGEST), tag("span", finding.remedy, class_="mv-soft")
    size = tag("b", rounded(finding.bytes), class_="mv-number")
    if not key:
        return tag("li", size, tag("p", words, " ", remedy))
    said = tag("button", words, type="button", class_="mv-finding", data_keep="")
    return tag("li", size, tag("p", said, " ", remedy), _way(finding), **lights("finding", finding.key))


def _way(finding: Finding) -> Html:
    tab, words = _TABS.get(finding.kind, ("", ""))
    if not tab:
        return Html("")
    return tag("button", words, type="button", class_="mv-quiet", data_act="turn", data_tab=tab)
