"""Findings about tensors that live too long: growth over steps, results and gradients kept into the next forward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from memviz.analysis.annotations import ended_steps
from memviz.analysis.callstacks.sites import Site
from memviz.analysis.findings.finding import NOTICEABLE, Facts, Finding, FindingKind, site_name
from memviz.analysis.lifetimes import BEFORE
from memviz.analysis.purpose.activity import Activity
from memviz.analysis.purpose.phases import PhaseSpan, activity_of_rows, step_name
from memviz.analysis.purpose.reasons import Certainty
from memviz.analysis.sums import sum_by
from memviz.trace.model import NO_STACK, Action, Category, Ints8
from memviz.units import bytes_text, count_text

# Bytes that grow with every step: a leak, or something that is collected on purpose.

_FEWEST_MOMENTS = 3
_NOTICEABLE_GROWTH = 0.001
"""Share of the peak: a trace holds a few steps, and a leak goes on."""


def growing(facts: Facts) -> Iterator[Finding]:
    moments = _attributable_moments(facts, _between_steps(facts))
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
        origin = f" is made by {site} and" if site else ""
        if len(growth.sites) > 1:
            site_text = f", mostly {site}," if site else ""
            origin = f" is made in forwards at {count_text(len(growth.sites))} places{site_text} and"
        least, most = int(growth.bytes.min()), int(growth.bytes.max())
        each_step = f"{'' if least == most else f'{bytes_text(least)} to '}{bytes_text(most)} each step"
        yield Finding(
            FindingKind.GROWING,
            int(growth.bytes.sum()),
            f"What{origin} lives on grows by {each_step}: {bytes_text(int(growth.bytes.sum()))} in "
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
    """Sorted by growth, largest first."""
    bytes: Ints8
    """Growth from each moment to the next."""
    added: Ints8


def _grown(facts: Facts, part: Ints8, first: Ints8, past: Ints8, moments: int) -> Ints8 | None:
    """Growth of these rows from each moment to the next; None unless all are positive."""
    size = facts.rows.size[part]
    grown = (sum_by(first[part], size, moments + 1) - sum_by(past[part], size, moments + 1))[1:-1]
    return None if (grown <= 0).any() or int(grown.sum()) < _least(facts) else np.asarray(grown)


def _by_cause(facts: Facts, growths: list[_Growth]) -> list[_Growth]:
    """Merge growths made in forwards at several sites: one retained graph holds them. Others stay separate."""
    doing = activity_of_rows(facts.trace, facts.device)
    graph = [one for one in growths if len(one.added) and bool((doing[one.added] == Activity.FORWARD).all())]
    if len(graph) < 2:
        return growths
    graph.sort(key=lambda one: -int(one.bytes.sum()))
    together = _Growth(
        tuple(one.sites[0] for one in graph),
        np.sum([one.bytes for one in graph], axis=0),
        np.sort(np.concatenate([one.added for one in graph])),
    )
    return [together, *(one for one in growths if one not in graph)]


def _attributable_moments(facts: Facts, moments: Ints8) -> Ints8:
    """Keep the moments at which nearly all live bytes have a known origin.

    Blocks from before the first event have no stack, and the blocks that replace them have one: between two such
    moments every site would seem to grow.
    """
    if not len(facts.trace.stacks):
        return moments
    rows = facts.rows
    unknown = (rows.start == BEFORE) & (rows.stack == NO_STACK) & (rows.end <= moments.max(initial=BEFORE))
    end, size = rows.end[unknown], rows.size[unknown]
    later = np.array([size[end > moment].sum() for moment in moments], dtype=np.int64)
    return moments[later < _least(facts)]


def _least(facts: Facts) -> float:
    return max(_NOTICEABLE_GROWTH * facts.line.peak_bytes, 1)


def _between_steps(facts: Facts) -> Ints8:
    """Events after which no step's activations are live: ends of marked steps, else just before each forward."""
    marked = [step.end_event for step in ended_steps(facts.trace, facts.device)]
    if len(marked) >= _FEWEST_MOMENTS:
        return np.unique(np.array(marked, dtype=np.int64))
    if not facts.phases.is_training:
        return np.zeros(0, dtype=np.int64)
    return np.array([span.first - 1 for span in facts.forwards], dtype=np.int64)


# Results of one step that are live in the next forward: logits, losses, outputs that a name still holds.

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
"""Categories that may outlive a step: used again, or the next batch is loaded already."""
_GRAPH = 3
"""Places. So many results that go at once hang on one another."""


def kept_too_long(facts: Facts) -> Iterator[Finding]:
    if len(facts.forwards) < 2:
        return
    following = "next step’s forward" if facts.phases.is_training else "next forward"
    for site, groups in _causes(facts, retained_rows(facts)).items():
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
        remedy = f"If nothing reads it there, delete it (del) before the {following}."
        if places >= _GRAPH:
            remedy = (
                f"Probably one output or loss holds its whole graph: delete (del) or detach it before the {following}."
            )
        yield Finding(
            FindingKind.KEPT_TOO_LONG,
            size,
            f"{bytes_text(size)} made in {name}{by} are live for most of the {following}, and freed only then"
            f"{', all at once' if places > 1 else ''}.",
            remedy,
            rows,
            facts.forwards[step + 1].first,
            who,
            facts.certainty(rows),
        )


def _causes(facts: Facts, late: Ints8) -> dict[Site, list[Ints8]]:
    """Groups of rows of one step that were freed together, as by one reference, under their largest site."""
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


def retained_rows(facts: Facts) -> Ints8:
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
    outlives_middle = (step >= 0) & (rows.end > middle) & (rows.end < np.minimum(following_end, never))
    return np.flatnonzero(outlives_middle & ~facts.has_purpose(*_STAYS))


def step_of(facts: Facts, rows: Ints8) -> Ints8:
    """The step within which each row begins, counted from 0."""
    begins = np.array([span.first for span in facts.forwards], dtype=np.int64)
    return np.asarray(np.searchsorted(begins, facts.rows.start[rows], side="right") - 1, dtype=np.int64)


# Gradients that are live in the next forward, although the optimizer has used them.


def gradients_in_forward(facts: Facts) -> Iterator[Finding]:
    rows, spans = facts.rows, facts.phases.spans
    # Between two backwards without a step they are being added up, as they should.
    after_step = [
        now for before, now in zip(spans, spans[1:], strict=False)
        if before.doing == Activity.STEP and now.doing == Activity.FORWARD
    ]  # fmt: skip
    gradients = np.flatnonzero(facts.has_purpose(Category.GRADIENT))
    sizes = _live_until_middle(after_step, *(column[gradients] for column in (rows.start, rows.end, rows.size)))
    if not sizes or max(sizes) < facts.noticeable_bytes:
        return
    most = max(sizes)
    span = after_step[sizes.index(most)]
    live = gradients[(rows.start[gradients] < span.first) & (rows.end[gradients] > _middle(span))]
    certainty = facts.certainty(live)
    word = "probably gradients" if certainty is Certainty.PROBABLE else "gradients"
    name = step_name(facts.trace, facts.device, span)
    yield Finding(
        FindingKind.GRADIENTS_IN_FORWARD,
        most,
        f"{bytes_text(most)} of {word} are live during the forward of {name}, after an optimizer step has used them.",
        "Call optimizer.zero_grad(set_to_none=True) right after the step, before the next forward.",
        live,
        span.first,
        certainty=certainty,
    )


def _live_until_middle(spans: Sequence[PhaseSpan], start: Ints8, end: Ints8, size: Ints8) -> list[int]:
    """Bytes live from the start of each span to its middle; spans do not overlap."""
    by_end = np.argsort(end, kind="stable")
    ends = end[by_end]
    begun, ended = (np.concatenate([[0], np.cumsum(column)]) for column in (size, size[by_end]))
    live_bytes = []
    for span in spans:
        at_first, at_middle = np.searchsorted(ends, [span.first, _middle(span)], side="right")
        between = by_end[at_first:at_middle]
        gone = ended[at_first] + size[between[start[between] < span.first]].sum()
        live_bytes.append(int(begun[np.searchsorted(start, span.first)] - gone))
    return live_bytes


def _middle(span: PhaseSpan) -> int:
    return (span.first + span.last) // 2
