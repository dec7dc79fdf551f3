"""Results of one step that are live in the next one's forward: logits, losses, outputs that a name still holds."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from memviz.analysis.findings.facts import Facts, site_name
from memviz.analysis.findings.finding import Finding, FindingKind
from memviz.analysis.step_names import step_name
from memviz.analysis.sums import sum_by
from memviz.trace.model import Category, Ints8
from memviz.units import bytes_text

_STAYS = (
    Category.PARAMETER,
    Category.GRADIENT,
    Category.OPTIMIZER_STATE,
    Category.INPUT,
    Category.WORKSPACE,
    Category.AUTOCAST_WEIGHT_COPIES,
    Category.KV_CACHE,
    Category.COLLECTIVE,
    Category.GRAPH_POOL,
    Category.HOST_COPY,
)
"""What may well outlive a step: it is used again, or the next batch waits already."""


def kept_too_long(facts: Facts) -> Iterator[Finding]:
    steps = len(facts.forwards)
    if steps < 2:
        return
    begins = np.array([span.first for span in facts.forwards])
    late = kept_rows(facts)
    made_in = step_of(facts, late)
    for site, rows in facts.by_site(late):
        sums = sum_by(made_in[np.searchsorted(late, rows)], facts.rows.size[rows], steps)
        step = int(sums.argmax())
        if sums[step] < facts.noticeable_bytes:
            continue
        following = "next step’s forward" if facts.phases.is_training else "next forward"
        name = step_name(facts.trace, facts.device, facts.forwards[step])
        who = site_name(site)
        by = f" by {who}" if who else ""
        sentence = (
            f"{bytes_text(int(sums[step]))} made in {name}{by} are live for "
            f"most of the {following}, and freed only then."
        )
        yield Finding(
            FindingKind.KEPT_TOO_LONG,
            int(sums[step]),
            sentence,
            f"If nothing reads it there, let it go before (del), so that it does not lie beside the {following}.",
            rows,
            int(begins[step + 1]),
            who,
            facts.certainty(rows),
        )


def kept_rows(facts: Facts) -> Ints8:
    """Made in one step, live beyond the middle of the next one's first forward, and freed before that step ends."""
    rows = facts.rows
    begins = np.array([span.first for span in facts.forwards], dtype=np.int64)
    middles = np.array([(span.first + span.last) // 2 for span in facts.forwards], dtype=np.int64)
    never = facts.count
    step = np.searchsorted(begins, rows.start, side="right") - 1
    middle = np.append(middles[1:], [never, never])[step]
    following_end = np.append(begins[2:], [never, never, never])[step]
    is_kept = (step >= 0) & (rows.end > middle) & (rows.end < np.minimum(following_end, never))
    return np.flatnonzero(is_kept & ~facts.has_purpose(*_STAYS))


def step_of(facts: Facts, rows: Ints8) -> Ints8:
    """The step within which each row begins, counted from 0."""
    begins = np.array([span.first for span in facts.forwards], dtype=np.int64)
    return np.asarray(np.searchsorted(begins, facts.rows.start[rows], side="right") - 1, dtype=np.int64)
