"""Findings about reserved memory that cannot be used: pinned segments, private pools, frees that wait for a stream; and
about the host's memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from memviz.analysis.findings.finding import Facts, Finding, FindingKind, origin_text, site_name
from memviz.analysis.findings.retention import between_steps, range_text
from memviz.analysis.lifetimes import clock, delayed_frees, has_times
from memviz.analysis.segments import TileKind, reserved_segments, segments_at
from memviz.analysis.sums import sum_by
from memviz.analysis.timeline import sum_of_spans
from memviz.trace.memviz_labels import LOCAL_WORLD_FACT
from memviz.trace.model import DEFAULT_POOL, Action, HostBytes, Ints8
from memviz.trace.reserved import LARGE_SEGMENT
from memviz.units import bytes_text, count_text, counted, duration_text, whole_number

# Segments that are mostly free but stay reserved because a block in them is live.

_PINNED_SHARE = 0.05
"""Least share of reserved memory."""


def pinned_segments(facts: Facts) -> Iterator[Finding]:
    event = _event_of_most_reserved(facts)
    if event < 0:
        return
    blocks, free = _pinning_blocks(facts, event)
    reserved = int(facts.line.reserved[event + 1])
    for site, rows in facts.by_site(blocks):
        # Rows come in the order of their sites; the free bytes have to follow them.
        idle = int(free[np.searchsorted(blocks, rows)].sum())
        # One or two segments are always partly free.
        if idle <= max(LARGE_SEGMENT, _PINNED_SHARE * reserved):
            continue
        one = len(rows) == 1
        yield Finding(
            FindingKind.PINNED_SEGMENTS,
            idle,
            f"{bytes_text(idle)} are free in {counted(len(rows), 'segment')} but cannot be released when "
            f"{bytes_text(reserved)} are reserved: {'a block' if one else counted(len(rows), 'block')} of "
            f"{bytes_text(int(facts.rows.size[rows].sum()))}{'' if one else ' together'}{origin_text(site)} "
            f"{'is' if one else 'are'} still live in {'it' if one else 'them'}.",
            "Allocate long-lived tensors first, or set expandable_segments:True.",
            np.sort(rows),
            event,
            site_name(site),
        )


def _event_of_most_reserved(facts: Facts) -> int:
    """The alloc for which most was reserved, or the peak where that came before."""
    reserved, action = facts.line.reserved, facts.device.events.action
    grown = int(reserved.argmax()) - 1
    if grown < 0:
        return facts.line.peak_event
    allocs = np.flatnonzero(action[grown:] == Action.ALLOC)
    return grown + int(allocs[0]) if len(allocs) else grown


def _pinning_blocks(facts: Facts, event: int) -> tuple[Ints8, Ints8]:
    """Return the longest-lived block of each segment that is at least half free, and the free bytes, by block."""
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


# Free memory in private pools, as CUDA graphs keep them, is of no use outside of them.

_POOL_SHARE = 0.01
"""Least share of reserved memory."""


def private_pools(facts: Facts) -> Iterator[Finding]:
    """At the end, where graphs that are kept have their pools."""
    trace, device, event = facts.trace, facts.device, facts.count - 1
    segments = reserved_segments(device, event, trace.settings)
    default = [number for number, pool in enumerate(trace.pools) if pool == DEFAULT_POOL]
    private = ~np.isin(segments.pool, default)
    reserved = int(segments.size[private].sum())
    if reserved < max(_POOL_SHARE * int(segments.size.sum()), 1):
        return
    tiles = segments_at(trace, device, event).tiles
    inside = private[tiles.segment] & (tiles.kind != TileKind.FREE)
    rows = np.sort(tiles.row[inside])
    live = int(tiles.requested[inside].sum())
    pools = len(np.unique(segments.pool[private]))
    where = "a private pool" if pools == 1 else f"{count_text(pools)} private pools"
    yield Finding(
        FindingKind.PRIVATE_POOLS,
        reserved,
        f"{bytes_text(reserved)} are reserved in {where} (CUDA graphs, MemPool) at the end, and {bytes_text(live)} of "
        "it are live; allocations outside the pool cannot use the rest.",
        "Let graphs share a pool (torch.cuda.graph_pool_handle), and capture the largest one first.",
        rows,
        event,
        site_name(facts.largest_site(rows)) if len(rows) else "",
    )


# Frees that wait for another stream: for how long, and the bytes reserved during that time.


def waiting_frees(facts: Facts) -> Iterator[Finding]:
    rows = facts.rows
    waits = np.flatnonzero(delayed_frees(facts.device))
    # Only these: any other free is also pending between its two consecutive events.
    waiting = sum_of_spans(rows.free_requested[waits], rows.end[waits], rows.size[waits], facts.count)
    most = int(waiting.max())
    if not len(waits) or most < facts.noticeable_bytes:
        return
    # Bytes reserved for requests that would have fitted into the blocks waiting.
    events = facts.device.events
    grows = np.flatnonzero((events.action == Action.SEGMENT_ALLOC) | (events.action == Action.SEGMENT_MAP))
    allocs = np.flatnonzero(events.action == Action.ALLOC)
    place = np.searchsorted(allocs, grows)
    grows, place = grows[place < len(allocs)], place[place < len(allocs)]
    requested = events.size[allocs[place]]
    reserved_during = int(events.size[grows[waiting[grows] >= requested]].sum())
    reserved_text = f"; meanwhile the allocator reserved {bytes_text(reserved_during)} more" if reserved_during else ""
    site = site_name(facts.largest_site(waits))
    site_text = f", mostly of {site}," if site else ""
    count = f"{count_text(len(waits))} frees" if len(waits) > 1 else "A free"
    yield Finding(
        FindingKind.WAITING_FREES,
        most,
        f"{count}{site_text} waited for another stream, {_how_long(facts, waits)}: up to {bytes_text(most)} at once"
        f"{reserved_text}.",
        "Make the streams wait for each other before the tensors are deleted, so that their memory is freed at once.",
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


# Host memory: weights that each process loads, growth from step to step, pinned blocks larger than their tensors.

_FEWEST_MOMENTS = 3
_HOST_SHARE = 0.02
"""Least growth of the host's memory, as a share of its peak: a process that runs grows a little."""
_PINNED_WASTE = 0.25
_MOST_DIGITS = 6
_NO_ROWS: Ints8 = np.zeros(0, dtype=np.int64)


def host_memory(facts: Facts) -> Iterator[Finding]:
    if (host := facts.device.host) is None:
        return
    processes = whole_number(facts.trace.about.facts.get(LOCAL_WORLD_FACT, ""), _MOST_DIGITS) or 1
    most = int(host.loaded.argmax())
    loaded = int(host.loaded[most])
    if processes > 1 and loaded >= facts.noticeable_bytes:
        yield Finding(
            FindingKind.HOST_LOADED_BY_EACH,
            processes * loaded,
            f"Each of {count_text(processes)} processes on a machine loads {bytes_text(loaded)} of weights into "
            f"host memory: {count_text(processes)} × {bytes_text(loaded)}.",
            "Load on one rank and broadcast, load each rank's shard (torch.distributed.checkpoint), or torch.load with "
            "mmap=True, which processes share.",
            _NO_ROWS,
            _event_of(facts, host, most),
        )
    yield from _host_growing(facts, host)
    most = int(np.lexsort((host.requested, host.pinned))[-1])
    pinned, requested = int(host.pinned[most]), int(host.requested[most])
    if requested and pinned - requested >= max(_PINNED_WASTE * pinned, facts.noticeable_bytes):
        yield Finding(
            FindingKind.HOST_PINNED_ROUNDING,
            pinned - requested,
            f"Pinned tensors of {bytes_text(requested)} take {bytes_text(pinned)} of host memory: PyTorch rounds each "
            "block up to a power of two and caches it.",
            "Pin few buffers with power-of-two sizes, or round less with pinned_max_round_threshold_mb.",
            _NO_ROWS,
            _event_of(facts, host, most),
        )


def _host_growing(facts: Facts, host: HostBytes) -> Iterator[Finding]:
    # The first step makes buffers that stay.
    moments = between_steps(facts)[1:]
    if len(moments) < _FEWEST_MOMENTS:
        return
    at = np.searchsorted(host.event, moments + 1, side="right") - 1
    grown = np.diff(host.total[at]) if (at >= 0).all() else np.zeros(1, dtype=np.int64)
    if (grown <= 0).any() or int(grown.sum()) < max(_HOST_SHARE * int(host.total.max()), facts.noticeable_bytes):
        return
    yield Finding(
        FindingKind.HOST_GROWING,
        int(grown.sum()),
        f"Host memory grows by {range_text(grown)} per step: {bytes_text(int(grown.sum()))} in "
        f"{count_text(len(grown))} steps.",
        "Look for a list that keeps outputs on the CPU, or data loader workers that cache what they read.",
        _NO_ROWS,
        _event_of(facts, host, int(at[-1])),
    )


def _event_of(facts: Facts, host: HostBytes, row: int) -> int:
    return min(max(int(host.event[row]) - 1, 0), facts.count - 1)
