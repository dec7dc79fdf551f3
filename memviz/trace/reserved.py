"""Address ranges reserved from the device at any event, in the shape of the final segments.

The final segments are exact, so an event is counted back from them: a range was reserved then if the first later event
that touches it gives it back, was not if that event takes it, and is as it is at the end if no later event touches it.
The same rule serves cudaMalloc/cudaFree and the pages of expandable segments.

All work is per elementary range, between two neighbouring bounds of any event or segment. So the cost is that of the
segment events (few), and many overlapping ranges in a hostile file cost no more than others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from memviz.trace.intern import distinct, is_among
from memviz.trace.model import NO_STACK, Action, Bools, DeviceTrace, Ints8, Segments
from memviz.trace.rounding import SMALL_SEGMENT

_TOP_BIT = np.int64(-(2**63))
_LAST = np.int64(2**63 - 1)


def in_order(address: Ints8) -> Ints8:
    """Addresses are unsigned, kept in int64; flipping the top bit makes int64 compare them rightly. Its own inverse."""
    return np.bitwise_xor(address, _TOP_BIT)


def upto(low: Ints8, size: Ints8) -> Ints8:
    """End of a range; one that would leave the address space ends with it."""
    high = low + size
    return np.where(high < low, _LAST, high)


def segments_after(history: RangeHistory, event: int, large_page: int) -> Segments:
    """Segments held after `event`, by address; -1 is before the first. Large pages have this size."""
    final_count = len(history.sources) - len(history.index)
    cut = int(np.searchsorted(history.index, event, side="right"))
    later = _earliest(len(history.low), history.first[cut:], history.last[cut:])
    by_event = later < len(history.index) - cut
    source = np.where(by_event, final_count + cut + later, history.final_row)
    reserved = by_event.copy()
    reserved[by_event] = history.gives_back[(cut + later)[by_event]]
    reserved |= ~by_event & (history.final_row >= 0)

    ranges = np.flatnonzero(reserved)
    source = source[ranges]
    low = history.low[ranges]
    rows = replace(history.sources.select(source), address=low, size=history.high[ranges] - low)
    if (source >= final_count).any():
        rows = _with_origin(rows, source, _origin(history, cut)[ranges], history, large_page)
    return _merge_neighbours(rows, source, final_count)


@dataclass(frozen=True)
class RangeHistory:
    index: Ints8
    """Events that change the reserved ranges."""
    gives_back: Bools
    first: Ints8
    last: Ints8
    """Elementary ranges touched by each of these events: first <= range < last."""
    low: Ints8
    high: Ints8
    """Bounds of the elementary ranges, by address as `in_order` gives it."""
    final_row: Ints8
    """Final segment of each elementary range, or -1."""
    sources: Segments
    """Sources of the ranges' properties: one row for each final segment, then one for each of these events."""


def range_history(device: DeviceTrace) -> RangeHistory:
    events, segments = device.events, device.segments
    index = np.flatnonzero((events.action >= Action.SEGMENT_ALLOC) & (events.action <= Action.SEGMENT_UNMAP))
    action, size = events.action[index], events.size[index]
    expandable = (action == Action.SEGMENT_MAP) | (action == Action.SEGMENT_UNMAP)
    sources = Segments(
        address=np.concatenate([segments.address, events.address[index]]),
        size=np.concatenate([segments.size, size]),
        stream=np.concatenate([segments.stream, events.stream[index]]),
        pool=np.concatenate([segments.pool, events.pool[index]]),
        is_large=np.concatenate([segments.is_large, size > SMALL_SEGMENT]),
        is_expandable=np.concatenate([segments.is_expandable, expandable]),
        stack=np.concatenate([segments.stack, events.stack[index]]),
    )
    low = in_order(sources.address)
    high = upto(low, sources.size)
    bounds = distinct(np.concatenate([low, high]))
    count = max(len(bounds) - 1, 0)
    first, last = np.searchsorted(bounds, low), np.searchsorted(bounds, high)
    final = _earliest(count, first[: len(segments)], last[: len(segments)])
    return RangeHistory(
        index=index,
        gives_back=is_among(events.action[index], (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)),
        first=first[len(segments) :],
        last=last[len(segments) :],
        low=bounds[:count],
        high=bounds[1:],
        final_row=np.where(final < len(segments), final, -1),
        sources=sources,
    )


def _earliest(count: int, first: Ints8, last: Ints8) -> Ints8:
    """For each of `count` places the lowest row with first <= place < last; the number of rows where there is none.

    A row is written at two overlapping stretches of a power of two; these are then halved down to single places.
    """
    best = np.full(count, len(first), dtype=np.int64)
    used = np.flatnonzero(last > first)
    if not len(used):
        return best
    power = np.frexp((last - first)[used].astype(np.float64))[1] - 1
    for level in range(int(power.max()), -1, -1):
        rows = used[power == level]
        np.minimum.at(best, first[rows], rows)
        np.minimum.at(best, last[rows] - (1 << level), rows)
        if level:
            half = 1 << (level - 1)
            halved = best.copy()
            halved[half:] = np.minimum(best[half:], best[:-half])
            best = halved
    return best


def _origin(history: RangeHistory, cut: int) -> Ints8:
    """Source of the event that took each elementary range, where it was recorded; else -1."""
    origin = cut - 1 - _earliest(len(history.low), history.first[:cut][::-1], history.last[:cut][::-1])
    is_reserved = origin >= 0
    is_reserved[is_reserved] = ~history.gives_back[origin[is_reserved]]
    return np.where(is_reserved, origin + len(history.sources) - len(history.index), -1)


def _with_origin(rows: Segments, source: Ints8, origin: Ints8, history: RangeHistory, large_page: int) -> Segments:
    """Set the stack and the size class of released ranges, which their releasing event does not record.

    The small pool maps one page of 2 MiB at a time. A range mapped before the history began is of the large pool if
    the unmapped size is a multiple of that pool's page.
    """
    sources, has_origin = history.sources, origin >= 0
    released = source >= len(sources) - len(history.index)
    by_page = np.where(has_origin, sources.is_large[origin], sources.size[source] % large_page == 0)
    return replace(
        rows,
        stack=np.where(released, np.where(has_origin, sources.stack[origin], NO_STACK), rows.stack).astype(np.int32),
        is_large=np.where(released & rows.is_expandable, by_page, rows.is_large),
    )


def _merge_neighbours(rows: Segments, source: Ints8, final_count: int) -> Segments:
    """Merge neighbours into one segment where the file's final list would show one.

    Ranges of one source are one segment that the bounds of others cut. Mapped ranges of one stream and pool are
    one expandable segment, except where the file itself lists two.
    """
    high = rows.address + rows.size
    mapped = _equal_neighbours(rows.stream, rows.pool, rows.is_large, rows.is_expandable) & rows.is_expandable[1:]
    mapped &= np.maximum(source[1:], source[:-1]) >= final_count
    touching = rows.address[1:] == high[:-1]
    starts = np.ones(len(rows), dtype=np.bool_)
    starts[1:] = ~(touching & (mapped | _equal_neighbours(source)))
    first = np.flatnonzero(starts)
    last = np.append(first[1:], len(rows))[: len(first)] - 1
    merged = rows.select(first)
    return replace(merged, address=in_order(merged.address), size=high[last] - merged.address)


def _equal_neighbours(*columns: npt.NDArray[Any]) -> Bools:
    same = [column[1:] == column[:-1] for column in columns]
    return np.asarray(np.logical_and.reduce(same), dtype=np.bool_)
