"""Results of one step that are live in the next one's forward: logits, losses, outputs that a name still holds."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from memviz.analysis.callstacks.sites import Site
from memviz.analysis.findings.facts import NOTICEABLE, Facts, site_name
from memviz.analysis.findings.finding import Finding, FindingKind
from memviz.analysis.step_names import step_name
from memviz.trace.model import Action, Category, Ints8
from memviz.units import bytes_text, count_text

_STAYS = (
    Category.PARAMETER,
    Category.GRADIENT,
    Category.OPTIMIZER_STATE,
    Category.INPUT,
    Category.WORKSPACE,
    Category.AUTOCAST_WEIGHT_COPIES,
    Category.WEIGHT_COPIES,
    Category.KV_CACHE,
    Category.COLLECTIVE,
    Category.GRAPH_POOL,
    Category.HOST_COPY,
)
"""What may well outlive a step: it is used again, or the next batch waits already."""
_GRAPH = 3
"""Places. So many results that go at once hang on one another."""


def kept_too_long(facts: Facts) -> Iterator[Finding]:
    if len(facts.forwards) < 2:
        return
    following = "next step’s forward" if facts.phases.is_training else "next forward"
    for site, groups in _causes(facts, kept_rows(facts)).items():
        largest = max(groups, key=lambda group: int(facts.rows.size[group].sum()))
        size = int(facts.rows.size[largest].sum())
        if size < facts.noticeable_bytes:
            continue
        step = int(step_of(facts, largest[:1])[0])
        name = step_name(facts.trace, facts.device, facts.forwards[step])
        places, who = sum(1 for _ in facts.by_site(largest)), site_name(site)
        by = f" by {who}" if who else ""
        if places > 1:
            by = f" at {count_text(places)} places{f', mostly {who},' if who else ''}"
        rows = np.sort(np.concatenate(groups))
        yield Finding(
            FindingKind.KEPT_TOO_LONG,
            size,
            f"{bytes_text(size)} made in {name}{by} are live for most of the {following}, and freed only then"
            f"{', all at once' if places > 1 else ''}.",
            _remedy(following, places),
            rows,
            facts.forwards[step + 1].first,
            who,
            facts.certainty(rows),
        )


def _remedy(following: str, places: int) -> str:
    if places < _GRAPH:
        return f"If nothing reads it there, delete it (del) before the {following}."
    return f"Probably one output or loss holds its whole graph: delete (del) or detach it before the {following}."


def _causes(facts: Facts, late: Ints8) -> dict[Site, list[Ints8]]:
    """Under the place that made most of it, what one step left and was freed at once: one name held all of it."""
    allocs = np.flatnonzero(facts.device.events.action == Action.ALLOC)
    freed_after = np.searchsorted(allocs, facts.rows.free_requested[late])
    groups = step_of(facts, late) * (len(allocs) + 1) + freed_after
    order = np.argsort(groups, kind="stable")
    bounds = np.flatnonzero(np.diff(groups[order])) + 1
    causes: dict[Site, list[Ints8]] = {}
    for group in np.split(late[order], bounds) if len(late) else ():
        least = NOTICEABLE * int(facts.rows.size[group].sum())
        group = np.sort(
            np.concatenate(
                [part for _, part in facts.by_site(group) if int(facts.rows.size[part].sum()) >= least] or [group]
            )
        )
        causes.setdefault(facts.largest_site(group), []).append(group)
    return causes


def kept_rows(facts: Facts) -> Ints8:
    """Made in one step, live beyond the middle of the next one's first forward, and freed before that step ends."""
    rows = facts.rows
    begins = np.array([span.first for span in facts.forwards], dtype=np.int64)
    # Counted in allocs, so that what is freed at once lies on one side of it.
    allocs = np.flatnonzero(facts.device.events.action == Action.ALLOC)
    bounds = np.array([(span.first, span.last) for span in facts.forwards], dtype=np.int64).reshape(-1, 2)
    middles = allocs[(np.searchsorted(allocs, bounds[:, 0]) + np.searchsorted(allocs, bounds[:, 1], "right") - 1) // 2]
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
