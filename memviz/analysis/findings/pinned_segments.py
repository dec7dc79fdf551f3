"""Segments that are mostly free and cannot go back to the device, because a block in them lives on."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from memviz.analysis.findings.facts import Facts, made_by, site_name
from memviz.analysis.findings.finding import Finding, FindingKind
from memviz.analysis.reserved.segments import TileKind, segments_at
from memviz.analysis.sums import sum_by
from memviz.trace.model import Action, Ints8
from memviz.trace.rounding import LARGE_SEGMENT
from memviz.units import bytes_text, counted

_MUCH = 0.05
"""Of what is reserved."""


def pinned_segments(facts: Facts) -> Iterator[Finding]:
    event = _fullest(facts)
    if event < 0:
        return
    blocks, free = _pins(facts, event)
    reserved = int(facts.line.reserved[event + 1])
    for site, rows in facts.by_site(blocks):
        # Rows come in the order of their sites; the free bytes have to follow them.
        idle = int(free[np.searchsorted(blocks, rows)].sum())
        # One or two segments are always partly free.
        if idle <= max(LARGE_SEGMENT, _MUCH * reserved):
            continue
        one = len(rows) == 1
        yield Finding(
            FindingKind.PINNED_SEGMENTS,
            idle,
            f"{bytes_text(idle)} lie free in {counted(len(rows), 'segment')} that cannot go back to the device when "
            f"{bytes_text(reserved)} are reserved: {'a block' if one else counted(len(rows), 'block')} of "
            f"{bytes_text(int(facts.rows.size[rows].sum()))}{'' if one else ' together'}{made_by(site)} "
            f"{'lives' if one else 'live'} on {'in it' if one else 'in them'}.",
            "Make what lives long before what comes and goes, or let segments expand (expandable_segments:True).",
            np.sort(rows),
            event,
            site_name(site),
        )


def _fullest(facts: Facts) -> int:
    """The alloc for which most was reserved, or the peak where that came before."""
    reserved, action = facts.line.reserved, facts.device.events.action
    grown = int(reserved.argmax()) - 1
    if grown < 0:
        return facts.line.peak_event
    allocs = np.flatnonzero(action[grown:] == Action.ALLOC)
    return grown + int(allocs[0]) if len(allocs) else grown


def _pins(facts: Facts, event: int) -> tuple[Ints8, Ints8]:
    """Of each segment that is at least half free, the block that lives longest, and the free bytes; by block."""
    moment = segments_at(facts.trace, facts.device, event)
    tiles, segments = moment.tiles, moment.segments
    used = tiles.kind != TileKind.FREE
    free = sum_by(tiles.segment[~used], tiles.size[~used], len(segments))
    is_idle = (2 * free >= segments.size) & ~segments.is_expandable
    rows, segment = tiles.row[used], tiles.segment[used]
    # What was taken for this very request has not been there to be used.
    is_idle[segment[facts.rows.start[rows] == event]] = False
    of_idle = is_idle[segment]
    rows, segment = rows[of_idle], segment[of_idle]
    order = np.lexsort((facts.rows.end[rows], segment))
    rows, segment = rows[order], segment[order]
    last = np.append(segment[1:] != segment[:-1], True)[: len(rows)]
    by_row = np.argsort(rows[last], kind="stable")
    return rows[last][by_row], free[segment[last]][by_row]
