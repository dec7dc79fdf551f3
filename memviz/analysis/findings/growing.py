"""What is more after every step than after the one before: a leak, or something that is collected on purpose."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memviz.analysis.annotations import ended_steps
from memviz.analysis.callstacks.sites import Site
from memviz.analysis.findings.facts import Facts, made_by, site_name
from memviz.analysis.findings.finding import Finding, FindingKind
from memviz.analysis.lifetimes import BEFORE
from memviz.analysis.purpose.activity import Doing
from memviz.analysis.purpose.phases import doing_of_rows
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
    grown_at = [
        _Growth((site,), grown, part[(rows.start[part] > moments[0]) & (rows.end[part] > moments[-1])])
        for site, part in facts.by_site(seen)
        if (grown := _grown(facts, part, first, past, len(moments))) is not None
    ]
    for growth in _by_cause(facts, grown_at):
        site = site_name(growth.sites[0])
        made = _made(made_by(growth.sites[0]))
        if len(growth.sites) > 1:
            mostly = f", mostly {site}," if site else ""
            made = f" is made in forwards at {count_text(len(growth.sites))} places{mostly} and"
        yield Finding(
            FindingKind.GROWING,
            int(growth.bytes.sum()),
            f"What{made} lives on grows by {_each_step(growth.bytes)}: {bytes_text(int(growth.bytes.sum()))} in "
            f"{count_text(len(growth.bytes))} steps.",
            "If it is not meant to be collected, look for a list, a cache or a sum of losses that keeps it: "
            ".item() or .detach() lets go of what hangs on it.",
            growth.added,
            int(moments[-1]),
            site,
        )


@dataclass(frozen=True, eq=False)
class _Growth:
    sites: tuple[Site, ...]
    """The one that adds most first."""
    bytes: Ints8
    """From each moment to the next."""
    added: Ints8


def _grown(facts: Facts, part: Ints8, first: Ints8, past: Ints8, moments: int) -> Ints8 | None:
    """How much more these rows hold at each moment than at the one before; None unless it is more each time."""
    size = facts.rows.size[part]
    grown = (sum_by(first[part], size, moments + 1) - sum_by(past[part], size, moments + 1))[1:-1]
    return None if (grown <= 0).any() or int(grown.sum()) < _least(facts) else np.asarray(grown)


def _by_cause(facts: Facts, growths: list[_Growth]) -> list[_Growth]:
    """Merge growths made in forwards at several places: one kept graph holds them. Others stay apart."""
    doing = doing_of_rows(facts.trace, facts.device)
    graph = [one for one in growths if len(one.added) and bool((doing[one.added] == Doing.FORWARD).all())]
    if len(graph) < 2:
        return growths
    graph.sort(key=lambda one: -int(one.bytes.sum()))
    together = _Growth(
        tuple(one.sites[0] for one in graph),
        np.sum([one.bytes for one in graph], axis=0),
        np.sort(np.concatenate([one.added for one in graph])),
    )
    return [together, *(one for one in growths if one not in graph)]


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
