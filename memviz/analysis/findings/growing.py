"""What is more after every step than after the one before: a leak, or something that is collected on purpose."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from memviz.analysis.annotations import ended_steps
from memviz.analysis.findings.facts import Facts, made_by, site_name
from memviz.analysis.findings.finding import Finding, FindingKind
from memviz.analysis.lifetimes import BEFORE
from memviz.analysis.sums import sum_by
from memviz.trace.model import NO_STACK, Category, Ints8
from memviz.units import bytes_text, count_text

_FEWEST_MOMENTS = 3
_NOTICEABLE = 0.001
"""Of the peak: a trace holds a few steps, and a leak goes on."""


def growing(facts: Facts) -> Iterator[Finding]:
    moments = _told_apart(facts, _between_steps(facts))
    if len(moments) < _FEWEST_MOMENTS:
        return
    rows = facts.rows
    first, past = np.searchsorted(moments, rows.start), np.searchsorted(moments, rows.end)
    seen = np.flatnonzero((first < past) & ~facts.has_purpose(Category.KV_CACHE))
    for site, part in facts.by_site(seen):
        change = sum_by(first[part], rows.size[part], len(moments) + 1)
        change -= sum_by(past[part], rows.size[part], len(moments) + 1)
        grown = change[1:-1]
        total = int(grown.sum())
        if (grown <= 0).any() or total < _least(facts):
            continue
        added = part[(rows.start[part] > moments[0]) & (rows.end[part] > moments[-1])]
        yield Finding(
            FindingKind.GROWING,
            total,
            f"What{_made(made_by(site))} lives on grows by {_each_step(grown)}: {bytes_text(total)} in "
            f"{count_text(len(grown))} steps.",
            "If it is not meant to be collected, look for a list, a cache or a sum of losses that keeps it: "
            ".item() or .detach() lets go of what hangs on it.",
            added,
            int(moments[-1]),
            site_name(site),
        )


def _made(who: str) -> str:
    return f" is{who} and" if who else ""


def _each_step(grown: Ints8) -> str:
    least, most = int(grown.min()), int(grown.max())
    if least == most:
        return f"{bytes_text(most)} each step"
    return f"{bytes_text(least)} to {bytes_text(most)} each step"


def _told_apart(facts: Facts, moments: Ints8) -> Ints8:
    """The moments from which on it is known who made what is live.

    What was there before the first event and is freed later has no stack, and what takes its place has one: between
    two such moments every place would seem to grow.
    """
    if not len(facts.trace.stacks):
        return moments
    rows = facts.rows
    unknown = (rows.start == BEFORE) & (rows.stack == NO_STACK) & (rows.end <= moments.max(initial=BEFORE))
    end, size = rows.end[unknown], rows.size[unknown]
    later = np.array([size[end > moment].sum() for moment in moments], dtype=np.int64)
    return moments[later < _least(facts)]


def _least(facts: Facts) -> float:
    return max(_NOTICEABLE * facts.line.peak_bytes, 1)


def _between_steps(facts: Facts) -> Ints8:
    """Events after which no step's activations are live: ends of marked steps, else just before each forward."""
    marked = [step.end_event for step in ended_steps(facts.trace, facts.device)]
    if len(marked) >= _FEWEST_MOMENTS:
        return np.unique(np.array(marked, dtype=np.int64))
    if not facts.phases.is_training:
        return np.zeros(0, dtype=np.int64)
    return np.array([span.first - 1 for span in facts.forwards], dtype=np.int64)
