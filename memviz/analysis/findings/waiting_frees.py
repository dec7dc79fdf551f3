"""Frees that wait for another stream: how long, and what the allocator took anew meanwhile."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from memviz.analysis.findings.facts import Facts, site_name
from memviz.analysis.findings.finding import Finding, FindingKind
from memviz.analysis.live import clock, has_times
from memviz.analysis.timeline import sum_of_spans
from memviz.trace.model import Action, Ints8
from memviz.units import bytes_text, count_text, counted, duration_text


def waiting_frees(facts: Facts) -> Iterator[Finding]:
    rows = facts.rows
    waits = np.flatnonzero(
        (rows.free_requested < facts.count) & ((rows.end - rows.free_requested > 1) | (rows.end == facts.count))
    )
    # Only of these: between its two events every other free is asked for and not complete, too.
    waiting = sum_of_spans(rows.free_requested[waits], rows.end[waits], rows.size[waits], facts.count)
    most = int(waiting.max())
    if not len(waits) or most < facts.noticeable_bytes:
        return
    held_back = _taken_meanwhile(facts, waiting)
    meanwhile = f"; while they did, the allocator took {bytes_text(held_back)} more" if held_back else ""
    site = site_name(facts.largest_site(waits))
    mostly = f", mostly of {site}," if site else ""
    count = f"{count_text(len(waits))} frees" if len(waits) > 1 else "A free"
    yield Finding(
        FindingKind.WAITING_FREES,
        most,
        f"{count}{mostly} waited for another stream, {_how_long(facts, waits)}: up to {bytes_text(most)} at once"
        f"{meanwhile}.",
        "Let the streams wait for each other before the tensors are dropped, so that their memory is free at once.",
        waits,
        int(waiting.argmax()) - 1,
        site,
    )


def _how_long(facts: Facts, waits: Ints8) -> str:
    last = facts.count - 1
    begin = np.maximum(facts.rows.free_requested[waits], 0)
    end = np.minimum(facts.rows.end[waits], last)
    if (begin == end).all():
        return "still at the end"
    if has_times(facts.device):
        times = clock(facts.device)
        return f"the longest {duration_text(int((times[end] - times[begin]).max()))}"
    return f"the longest {counted(int((end - begin).max()), 'event')}"


def _taken_meanwhile(facts: Facts, waiting: Ints8) -> int:
    """From the device, for requests that would have fitted into what was waiting."""
    events = facts.device.events
    grows = np.flatnonzero((events.action == Action.SEGMENT_ALLOC) | (events.action == Action.SEGMENT_MAP))
    allocs = np.flatnonzero(events.action == Action.ALLOC)
    place = np.searchsorted(allocs, grows)
    grows, place = grows[place < len(allocs)], place[place < len(allocs)]
    requested = events.size[allocs[place]]
    return int(events.size[grows[waiting[grows] >= requested]].sum())
