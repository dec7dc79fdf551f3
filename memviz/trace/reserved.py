"""Sizes that the caching allocator takes for a request, and the address ranges reserved from the device at any event.

Its constants are the same in every release from 2.0 on. Analysis and simulated allocator both need them, and neither
may import the other.

Ranges have the shape of the final segments. The final segments are exact, so an event is counted back from them: a
range was reserved then if the first later event that touches it gives it back, was not if that event takes it, and is
as it is at the end if no later event touches it. The same rule serves cudaMalloc/cudaFree and the pages of expandable
segments.

All work is per elementary range, between two neighbouring bounds of any event or segment. So the cost is that of the
segment events (few), and many overlapping ranges in a hostile file cost no more than others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from memviz.trace.intern import distinct, is_among
from memviz.trace.model import NO_STACK, Action, Bools, DeviceTrace, Ints8, Segments

MiB = 1 << 20

CUBLAS_WORKSPACE_BYTES = 8_519_680
"""Size of a cuBLAS workspace on NVIDIA GPUs before Hopper (:4096:2:16:8), and of hardly any other request."""
HOPPER_WORKSPACE_BYTES = 33_554_432
"""The same on Hopper (:4096:8), and since torch 2.12 on newer GPUs. Weights may have this size, too."""
MIN_BLOCK = 512
"""Rounding unit and smallest block."""
SMALL_SIZE = 1 * MiB
"""Rounded sizes up to it are served by the small pool. The large pool never leaves a remainder this small."""
SMALL_SEGMENT = 2 * MiB
"""One cudaMalloc for the small pool, and its page where segments are expandable."""
LARGE_SEGMENT = 20 * MiB
"""One cudaMalloc for sizes below MIN_LARGE_ALLOC, and the large pool's page where segments are expandable."""
MIN_LARGE_ALLOC = 10 * MiB
"""From here on a segment is made to measure."""
ROUND_LARGE = 2 * MiB
"""Segments made to measure are rounded up to it."""
LARGEST_REQUEST = 1 << 60
"""From here on a request fails at once ("more than 1EB"), so there is no block to round it to."""

SLOTS = 16
Divisions = tuple[int, ...]
"""`roundup_power2_divisions`: SLOTS numbers; number k is for sizes in [2**k, 2**(k+1)) MiB; the first is
also for everything smaller and the last for everything larger. 0 and 1 mean the plain rule."""
NO_DIVISIONS: Divisions = (0,) * SLOTS

_LARGE_SEGMENT_MB = re.compile(r"\blarge_segment_size_mb\s*:\s*([0-9]{1,6})\b")


def round_sizes(requested: Ints8, divisions: Divisions = NO_DIVISIONS) -> Ints8:
    """Block sizes before any decision not to split. For zero bytes, where PyTorch allocates nothing, MIN_BLOCK."""
    sizes = np.asarray(requested, dtype=np.int64)
    refused = sizes >= LARGEST_REQUEST
    served = np.where(refused, 0, sizes)
    rounded = np.maximum(_round_up(served, np.int64(MIN_BLOCK)), MIN_BLOCK)
    if max(divisions) > 1:
        power = _floor_power(served)
        slot = np.clip(power - 20, 0, SLOTS - 1)
        parts = np.array(divisions, dtype=np.int64)[slot]
        stepped = (parts > 1) & (served > MIN_BLOCK * parts)
        step = np.where(stepped, (np.int64(1) << power) // np.maximum(parts, 1), 1)
        rounded = np.where(stepped, _round_up(served, step), rounded)
    return np.where(refused, sizes, rounded)


def _round_up(sizes: Ints8, step: Any) -> Ints8:
    return np.asarray((sizes + step - 1) // step * step, dtype=np.int64)


def _floor_power(sizes: Ints8) -> Ints8:
    """floor(log2(size)), exact also where a float rounds a size up to the next power of two."""
    power = np.frexp(np.maximum(sizes, 1).astype(np.float64))[1].astype(np.int64) - 1
    return power - ((np.int64(1) << power) > np.maximum(sizes, 1))


def divisions_of(settings: Mapping[str, Any]) -> Divisions:
    """From `allocator_settings`, where they are {"1": n, "2": n, ..., "32768": n} with the slot's MiB as key."""
    table = settings.get("roundup_power2_divisions")
    if not isinstance(table, Mapping):
        return NO_DIVISIONS
    return tuple(_valid_division(table.get(str(1 << slot))) for slot in range(SLOTS))


def _valid_division(value: Any) -> int:
    """PyTorch takes only powers of two; anything else in a file is not a setting it ran with."""
    sound = type(value) is int and 0 < value <= LARGEST_REQUEST and value & (value - 1) == 0
    return value if sound else 0


def max_split_size_of(settings: Mapping[str, Any]) -> int | None:
    """None is unlimited, which files write as -1 or as the largest number of 64 bits."""
    value = settings.get("max_split_size")
    return value if type(value) is int and 0 < value < LARGEST_REQUEST else None


def large_segment_of(settings: Mapping[str, Any]) -> int:
    """A setting since 2.11, recorded only inside the raw text of the settings."""
    raw = settings.get("PYTORCH_CUDA_ALLOC_CONF")
    match = _LARGE_SEGMENT_MB.search(raw) if type(raw) is str else None
    return int(match[1]) * MiB if match and int(match[1]) else LARGE_SEGMENT


_TOP_BIT = np.int64(-(2**63))
_LAST = np.int64(2**63 - 1)


def flip_top_bit(address: Ints8) -> Ints8:
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
    later = _lowest_covering_row(len(history.low), history.first[cut:], history.last[cut:])
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
    """Bounds of the elementary ranges, by address as `flip_top_bit` gives it."""
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
    low = flip_top_bit(sources.address)
    high = upto(low, sources.size)
    bounds = distinct(np.concatenate([low, high]))
    count = max(len(bounds) - 1, 0)
    first, last = np.searchsorted(bounds, low), np.searchsorted(bounds, high)
    final = _lowest_covering_row(count, first[: len(segments)], last[: len(segments)])
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


def _lowest_covering_row(count: int, first: Ints8, last: Ints8) -> Ints8:
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
    origin = cut - 1 - _lowest_covering_row(len(history.low), history.first[:cut][::-1], history.last[:cut][::-1])
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
    return replace(merged, address=flip_top_bit(merged.address), size=high[last] - merged.address)


def _equal_neighbours(*columns: npt.NDArray[Any]) -> Bools:
    return np.asarray(np.logical_and.reduce([column[1:] == column[:-1] for column in columns]), dtype=np.bool_)
