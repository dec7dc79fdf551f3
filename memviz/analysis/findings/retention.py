"""Findings about tensors that live too long: growth over steps, results and gradients kept into the next forward, and
what holds them where the run recorded that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from memviz.analysis.annotations import ended_steps
from memviz.analysis.callstacks.sites import Site
from memviz.analysis.findings.finding import (
    NOTICEABLE,
    Facts,
    Finding,
    FindingKind,
    origin_text,
    short_label,
    site_name,
)
from memviz.analysis.holders import container_growth, held_rows, held_until, holder_rows
from memviz.analysis.lifetimes import BEFORE
from memviz.analysis.purpose.activity import Activity
from memviz.analysis.purpose.phases import PhaseSpan, activity_of_rows, step_name
from memviz.analysis.purpose.reasons import Certainty
from memviz.analysis.sums import sum_by
from memviz.trace.model import GRAPH_SUFFIX, NO_STACK, Action, Category, HolderKind, Holders, Ints8
from memviz.units import bytes_text, count_text, counted

# Bytes that grow with every step: a leak, or something that is collected on purpose.

_FEWEST_MOMENTS = 3
_NOTICEABLE_GROWTH = 0.001
"""Share of the peak: a trace holds a few steps, and a leak goes on."""


def growing(facts: Facts) -> Iterator[Finding]:
    moments = _attributable_moments(facts, between_steps(facts))
    if len(moments) < _FEWEST_MOMENTS:
        return
    rows = facts.rows
    first, past = np.searchsorted(moments, rows.start), np.searchsorted(moments, rows.end)
    # Caches grow as they are meant to, and workspaces are taken once.
    seen = np.flatnonzero((first < past) & ~facts.has_purpose(Category.KV_CACHE, Category.WORKSPACE))
    grown_at = []
    for site, part in facts.by_site(seen):
        size, width = rows.size[part], len(moments) + 1
        grown = (sum_by(first[part], size, width) - sum_by(past[part], size, width))[1:-1]
        if (grown > 0).all() and int(grown.sum()) >= _least_growth(facts):
            stays = (rows.start[part] > moments[0]) & (rows.end[part] > moments[-1])
            grown_at.append(_Growth((site,), grown, part[stays]))
    for growth in _by_cause(facts, grown_at):
        largest, origin = site_name(growth.sites[0]), origin_text(growth.sites[0])
        if len(growth.sites) > 1:
            site_text = f", mostly {largest}," if largest else ""
            origin = f" made in forwards at {count_text(len(growth.sites))} places{site_text}"
        holder, line = last_holder(facts, growth.added)
        keeper = (
            f"{holder} keeps it{_at(line)}" if holder else "look for a list, a cache or a sum of losses that keeps it"
        )
        yield Finding(
            FindingKind.GROWING,
            int(growth.bytes.sum()),
            f"Memory{origin} that stays allocated grows by {range_text(growth.bytes)} per step: "
            f"{bytes_text(int(growth.bytes.sum()))} in {count_text(len(growth.bytes))} steps.",
            f"If this is not intended, {keeper}: .item() or .detach() releases its autograd graph.",
            growth.added,
            int(moments[-1]),
            largest,
            holder=holder,
            line=line,
        )


@dataclass(frozen=True, eq=False)
class _Growth:
    sites: tuple[Site, ...]
    """Sorted by growth, largest first."""
    bytes: Ints8
    """Growth from each moment to the next."""
    added: Ints8


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
    return moments[later < _least_growth(facts)]


def _least_growth(facts: Facts) -> float:
    return max(_NOTICEABLE_GROWTH * facts.line.peak_bytes, 1)


def between_steps(facts: Facts) -> Ints8:
    """Events after which no step's activations are live: ends of marked steps, else just before each forward."""
    marked = [step.end_event for step in ended_steps(facts.trace, facts.device)]
    if len(marked) >= _FEWEST_MOMENTS:
        return np.unique(np.array(marked, dtype=np.int64))
    if not facts.phases.is_training:
        return np.zeros(0, dtype=np.int64)
    return facts.forward_begins - 1


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
        holder, line = last_holder(facts, rows)
        stored = f"; {line} stores it" if line else ""
        remedy = f"If it is not used there, `del` {holder or 'it'} before the {following}{stored}."
        if places >= _GRAPH:
            remedy = f"Probably one output or loss keeps its whole graph: `del` or detach it before the {following}."
        yield Finding(
            FindingKind.KEPT_TOO_LONG,
            size,
            f"{bytes_text(size)} made in {name}{by} stay live through most of the {following}"
            f"{', all at once' if places > 1 else ''}.",
            remedy,
            rows,
            facts.forwards[step + 1].first,
            who,
            facts.certainty(rows),
            holder=holder,
            line=line,
        )


def last_holder(facts: Facts, rows: Ints8) -> tuple[str, str]:
    """Return the variable that kept most of these bytes when that was recorded last, and its line; empty if unknown."""
    holders = facts.device.holders
    if holders is None:
        return "", ""
    at = holder_rows(facts.device)[rows]
    at = at[at >= 0]
    at = at[holders.kind[at] < HolderKind.UNCOLLECTED_CYCLE]
    owners, code = np.unique(holders.owner[at], return_inverse=True)
    total = sum_by(code, facts.rows.size[held_rows(facts.device)[at]], len(owners))
    if 2 * int(total.max(initial=0)) <= int(facts.rows.size[rows].sum()):
        return "", ""
    return _owner_and_line(facts, holders, at[code == int(total.argmax())])


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
    rows, begins = facts.rows, facts.forward_begins
    # Counted in allocs, so that short-lived allocations are on one side of it.
    allocs = np.flatnonzero(facts.device.events.action == Action.ALLOC)
    ends = np.array([span.last for span in facts.forwards], dtype=np.int64)
    middles = allocs[(np.searchsorted(allocs, begins) + np.searchsorted(allocs, ends, "right") - 1) // 2]
    never = facts.count
    step = np.searchsorted(begins, rows.start, side="right") - 1
    middle = np.append(middles[1:], [never, never])[step]
    following_end = np.append(begins[2:], [never, never, never])[step]
    outlives_middle = (step >= 0) & (rows.end > middle) & (rows.end < np.minimum(following_end, never))
    return np.flatnonzero(outlives_middle & ~facts.has_purpose(*_STAYS))


def step_of(facts: Facts, rows: Ints8) -> Ints8:
    """The step within which each row begins, counted from 0."""
    return np.searchsorted(facts.forward_begins, facts.rows.start[rows], side="right") - 1


# Gradients that are live in the next forward, although the optimizer has used them.


def gradients_in_forward(facts: Facts) -> Iterator[Finding]:
    rows, spans = facts.rows, facts.phases.spans
    # Between two backwards without a step they are being added up, as they should.
    after_step = [
        now for before, now in pairwise(spans)
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
        f"{bytes_text(most)} of {word} are live during the forward of {name}, after the optimizer step has used them.",
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


# Holders that a run recorded: what grows at its moments, outlives an optimizer step, or waits for Python.

_MOST_OWNERS = 200
"""Holders with the most bytes; the others are not looked at."""
_FEWEST_RISES = 2
_MEANT_TO_STAY = (
    Category.PARAMETER, Category.GRADIENT, Category.OPTIMIZER_STATE, Category.KV_CACHE, Category.WORKSPACE,
)  # fmt: skip


def held(facts: Facts) -> Iterator[Finding]:
    holders = facts.device.holders
    if holders is None or not facts.count:
        return
    found = held_rows(facts.device) >= 0
    known = np.flatnonzero(found)
    known = known[~facts.has_purpose(*_MEANT_TO_STAY)[held_rows(facts.device)[known]]]
    # At its end a program lets go of everything: what waits there does no harm, unless memory ran out.
    was_running = (holders.event[known] < holders.event.max()) | np.isin(holders.event[known] - 1, facts.failed_events)
    for kind in (HolderKind.EXCEPTION, HolderKind.UNCOLLECTED_CYCLE):
        yield from _held_by_python(facts, holders, known[was_running & (holders.kind[known] == kind)])
    known = known[holders.kind[known] < HolderKind.EXCEPTION]
    for part in _by_owner(facts, holders, known):
        growth = _growth_of(facts, holders, part)
        if growth is not None:
            yield _growing_holder(facts, holders, part, *growth)
        elif holders.kind[part[0]] == HolderKind.AUTOGRAD_GRAPH:
            yield from _retained_graph(facts, holders, part)


def _by_owner(facts: Facts, holders: Holders, known: Ints8) -> Iterator[Ints8]:
    """Split rows of holders by their owner, those with the most bytes first."""
    owners, code = np.unique(holders.owner[known], return_inverse=True)
    total = sum_by(code, facts.rows.size[held_rows(facts.device)[known]], len(owners))
    order = np.argsort(code, kind="stable")
    bounds = np.searchsorted(code[order], np.arange(len(owners) + 1))
    for owner in np.argsort(-total, kind="stable")[:_MOST_OWNERS].tolist():
        if total[owner] >= _least_growth(facts):
            yield known[order[bounds[owner] : bounds[owner + 1]]]


def _growth_of(facts: Facts, holders: Holders, part: Ints8) -> tuple[Ints8, Ints8] | None:
    """Return how much a holder's bytes rise up to their highest, and at which moments; None unless they only rise."""
    moments = np.unique(holders.event)
    size, until = facts.rows.size[held_rows(facts.device)[part]], held_until(facts.device)[part]
    first, past = np.searchsorted(moments, holders.event[part]), np.searchsorted(moments, until)
    change = sum_by(first, size, len(moments) + 1) - sum_by(past, size, len(moments) + 1)
    live, begin = np.cumsum(change)[:-1], int(first.min())
    rises = np.diff(live[begin : int(live.argmax()) + 1])
    if (rises < 0).any() or int((rises > 0).sum()) < _FEWEST_RISES or int(rises.sum()) < _least_growth(facts):
        return None
    return rises[rises > 0], moments[begin + 1 + np.flatnonzero(rises > 0)]


def _growing_holder(facts: Facts, holders: Holders, part: Ints8, rises: Ints8, moments: Ints8) -> Finding:
    owner, line = _owner_and_line(facts, holders, part)
    total = int(rises.sum())
    steps = np.searchsorted(facts.forward_begins, moments)
    when = f"per step: {bytes_text(total)} in {counted(len(rises), 'step')}"
    if (np.diff(steps) != 1).any():
        when = f"at {counted(len(rises), 'moment')} of the program: {bytes_text(total)} in total"
    items = container_growth(facts.trace, facts.device, int(holders.owner[part[0]]))
    is_graph = holders.kind[part[0]] == HolderKind.AUTOGRAD_GRAPH
    remedy = f"If this is not intended, keep less of it or move it to CPU memory (.cpu()){_at(line)}."
    if is_graph:
        remedy = f"Keep .item() or .detach() instead{_at(line)}: a loss or an output keeps its whole autograd graph."
    return Finding(
        FindingKind.KEPT_BY_GRAPH if is_graph else FindingKind.KEPT_BY_LIST,
        total,
        f"{f'The autograd graph of {owner}' if is_graph else owner} grows by {range_text(rises)} {when}"
        f"{f' (length {items})' if items else ''}.",
        remedy,
        np.unique(held_rows(facts.device)[part]),
        int(holders.event[part].max()) - 1,
        holder=owner,
        line=line,
    )


def _retained_graph(facts: Facts, holders: Holders, part: Ints8) -> Iterator[Finding]:
    """Saved tensors that are live at a moment after the next forward, and that no backward frees."""
    row, until = held_rows(facts.device)[part], held_until(facts.device)[part]
    backwards = [span for span in facts.phases.spans if span.doing == Activity.BACKWARD]
    first, last = (np.array([getattr(span, name) for span in backwards], np.int64) for name in ("first", "last"))
    within = np.searchsorted(first, facts.rows.free_requested[row], side="right") - 1
    is_used = (within >= 0) & (facts.rows.free_requested[row] <= np.append(last, -1)[within])
    # A name that the next forward binds again is what `kept_too_long` reports.
    begins = facts.forward_begins
    next_forward = np.append(begins, facts.count)[np.searchsorted(begins, holders.event[part])]
    moments = np.unique(holders.event)
    next_moment = np.append(moments, facts.count + 1)[np.searchsorted(moments, next_forward + 1)]
    kept = np.flatnonzero((until > next_moment) & ~is_used)
    if not len(kept):
        return
    rows = np.unique(row[kept])
    size, event = facts.most_together(rows)
    if size < facts.noticeable_bytes:
        return
    owner, line = _owner_and_line(facts, holders, part[kept])
    yield Finding(
        FindingKind.KEPT_BY_GRAPH,
        size,
        f"{bytes_text(size)} saved for backward are still live after the next forward: "
        f"the autograd graph of {owner} keeps them.",
        f"`del` it after its backward, or keep .detach() or .item() of it{_at(line)}.",
        rows,
        event,
        holder=owner,
        line=line,
    )


def _held_by_python(facts: Facts, holders: Holders, part: Ints8) -> Iterator[Finding]:
    """Tensors that an exception's traceback keeps, or a cycle of objects that Python has not collected yet."""
    for of_owner in _by_owner(facts, holders, part):
        rows = np.unique(held_rows(facts.device)[of_owner])
        size, event = facts.most_together(rows)
        if size < facts.noticeable_bytes:
            continue
        owner, line = _owner_and_line(facts, holders, of_owner)
        if holders.kind[of_owner[0]] == HolderKind.EXCEPTION:
            kind, sentence = FindingKind.KEPT_BY_EXCEPTION, f"are kept by the traceback of the exception {owner}"
            remedy = f"`del` the exception once it is handled, or keep str() of it{_at(line)}."
        else:
            kind, sentence = FindingKind.WAITS_FOR_COLLECTION, "wait for garbage collection: no variable leads to them"
            remedy = (
                f"Objects refer to one another in a cycle{_at(line)}: break it, or call gc.collect() after their use."
            )
        yield Finding(kind, size, f"{bytes_text(size)} {sentence}.", remedy, rows, event, holder=owner, line=line)


def _owner_and_line(facts: Facts, holders: Holders, part: Ints8) -> tuple[str, str]:
    """Return the owner, and the line that stores most of these bytes."""
    size = facts.rows.size[held_rows(facts.device)[part]]
    places, code = np.unique(holders.place[part], return_inverse=True)
    place = places[int(sum_by(code, size, len(places)).argmax())]
    strings = facts.trace.strings
    owner = strings[holders.owner[part[0]]].removesuffix(GRAPH_SUFFIX)
    return short_label(owner), short_label(strings[place])


def range_text(sizes: Ints8) -> str:
    """ "2.00 MiB to 10.1 MiB", or one size where all are the same."""
    least, most = int(sizes.min()), int(sizes.max())
    return f"{'' if least == most else f'{bytes_text(least)} to '}{bytes_text(most)}"


def _at(line: str) -> str:
    return f" ({line})" if line else ""
