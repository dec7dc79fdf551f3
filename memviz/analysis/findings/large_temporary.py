"""A block that lives only a moment and makes the peak: without it, the peak would be lower."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from memviz.analysis.findings.facts import Facts, made_by, site_name
from memviz.analysis.findings.finding import Finding, FindingKind
from memviz.trace.model import Action, Category, Ints8
from memviz.units import bytes_text, count_text

_MOMENT = 8
"""Allocs and frees that come while it lives, at most."""
_LARGE = 0.1
"""Of the peak."""
_LOWERS = 0.05
"""Of the peak: by so much it would be lower."""
_MOST_SITES = 3


def large_temporary(facts: Facts) -> Iterator[Finding]:
    line, rows, event = facts.line, facts.rows, facts.line.peak_event
    brief = _brief(facts)
    large = brief[rows.size[brief] >= max(_LARGE * line.peak_bytes, 1)]
    at_peak = large[(rows.start[large] <= event) & (rows.end[large] > event)]
    parts = [(site, part) for site, part in facts.by_site(large) if np.isin(part, at_peak).any()]
    for site, part in sorted(parts, key=lambda pair: -int(rows.size[pair[1]].max()))[:_MOST_SITES]:
        lower = line.peak_bytes - _peak_without(facts, part)
        if lower < max(_LOWERS * line.peak_bytes, 1):
            continue
        # The same place may make larger ones elsewhere, which make no peak.
        there = part[np.isin(part, at_peak)]
        yield Finding(
            FindingKind.LARGE_TEMPORARY,
            lower,
            _sentence(int(rows.size[there].max()), len(there), made_by(site), lower),
            "Compute it in parts, in place, or with a fused operator that does not write it out.",
            part,
            event,
            site_name(site),
        )


def _sentence(size: int, at_peak: int, who: str, lower: int) -> str:
    several = at_peak > 1
    what = f"{count_text(at_peak)} temporaries of up to" if several else "A temporary of"
    without = "make the peak: without them" if several else "makes the peak: without it"
    return f"{what} {bytes_text(size)}{who} {without}, it would be {bytes_text(lower)} lower."


def _brief(facts: Facts) -> Ints8:
    """Freed within few allocs and frees of its own alloc."""
    rows, action = facts.rows, facts.device.events.action
    # A free that no other stream delays is one thing, in two events.
    number = np.append(np.cumsum((action == Action.ALLOC) | (action == Action.FREE_REQUESTED)), 0)
    ended = (rows.start >= 0) & (rows.end < facts.count)
    freed = np.minimum(rows.free_requested, rows.end)
    ended &= ~facts.has_purpose(Category.PARAMETER, Category.GRADIENT, Category.OPTIMIZER_STATE, Category.INPUT)
    return np.flatnonzero(ended & (number[np.minimum(freed, facts.count)] - number[rows.start] <= _MOMENT))


def _peak_without(facts: Facts, part: Ints8) -> int:
    change = np.zeros(facts.count + 1, dtype=np.int64)
    change[facts.rows.start[part] + 1] = facts.rows.size[part]
    change[facts.rows.end[part] + 1] -= facts.rows.size[part]
    return int((facts.line.live - np.cumsum(change)).max())
