"""Segments of the allocator at an event, the blocks and gaps that tile them, their lives, and their fragmentation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from memviz.analysis.cache import cached
from memviz.analysis.lifetimes import BEFORE, lifetimes, live_rows
from memviz.analysis.timeline import timeline
from memviz.errors import UsageError
from memviz.trace.model import Bools, Bytes1, Columns, DeviceTrace, Ints4, Ints8, Segments, Trace
from memviz.trace.reserved import (
    MIN_BLOCK,
    SMALL_SIZE,
    RangeHistory,
    divisions_of,
    flip_top_bit,
    large_segment_of,
    max_split_size_of,
    range_history,
    round_sizes,
    segments_after,
    upto,
)

# Segments of the allocator: address ranges reserved at an event, the blocks and gaps that tile them, their lives.
#
# After the last event it is the file's own list of blocks. Before that, segments are counted back from the end, live
# allocations are put into them, and the gaps are free.


@cached
def ranges_of(device: DeviceTrace) -> RangeHistory:
    return range_history(device)


def reserved_segments(device: DeviceTrace, event: int, settings: Mapping[str, Any]) -> Segments:
    """Segments held after `event`, by address, in the shape of the final ones."""
    return segments_after(ranges_of(device), event, large_segment_of(settings))


# Size of the block of each live allocation: at least the rounded request, sometimes more.
#
# It is exact for blocks that live until the end. Otherwise it follows from what the allocator may leave over. In the
# small pool and in expandable segments it splits to the byte, so a block is its rounded request. In the large pool a
# remainder of up to 1 MiB is not split off but stays with the block; so a block whose neighbour (or end of
# segment) was that near at its alloc keeps the gap until it is freed. Blocks of `max_split_size` and more are never
# split.
#
# For a block from before the first event that is freed later, that moment is not recorded: its gap counts as its own
# where it is that small before the first event or now, and as free memory otherwise.


def block_sizes(
    device: DeviceTrace, rows: Ints8, room: Ints8, keeps_rest: Bools, *, settings: Mapping[str, Any]
) -> Ints8:
    """Return the block sizes of lifetimes that are live and placed. `room` ends at the next one or the segment's end;
    `keeps_rest` marks those in the large pool of a segment that is not expandable."""
    lives = lifetimes(device)
    if device.kind == "host":
        # Pinned memory is handed out whole, never split.
        return room
    rounded = round_sizes(lives.size[rows], divisions_of(settings))
    limit = max_split_size_of(settings)
    oversize = keeps_rest & (rounded >= limit) if limit is not None else np.zeros(len(rows), dtype=np.bool_)
    gap = np.maximum(room - rounded, 0)
    # While the setting is on, PyTorch splits to the byte in every pool.
    keeps_rest = keeps_rest & (settings.get("expandable_segments") is not True)
    own = oversize | (keeps_rest & (gap <= SMALL_SIZE))
    block = lives.block[rows]
    candidates = np.flatnonzero(keeps_rest & ~own & (block < 0))
    sizes = rounded + np.where(own, gap, 0)
    sizes[candidates] += _gap_at_alloc(device, rows[candidates], rounded[candidates])
    sizes[block >= 0] = device.blocks.size[block[block >= 0]]
    return np.minimum(sizes, room)


def _gap_at_alloc(device: DeviceTrace, rows: Ints8, rounded: Ints8) -> Ints8:
    """Bytes up to the neighbour that was live when each row began; 0 where there was none within SMALL_SIZE.

    Every pass of the loop tries the next higher address ever used, for all rows without a neighbour so far.
    """
    lives, index = lifetimes(device), _by_address(device)
    moment = lives.start[rows]
    end = flip_top_bit(lives.address[rows]) + rounded
    gap = np.zeros(len(rows), dtype=np.int64)
    place = np.searchsorted(index.addresses, end)
    open_rows = np.arange(len(rows))
    # Blocks begin at multiples of MIN_BLOCK, so there are no more addresses than this to look at.
    for _ in range(SMALL_SIZE // MIN_BLOCK + 1):
        near = place[open_rows] < len(index.addresses)
        near[near] = index.addresses[place[open_rows][near]] <= end[open_rows][near] + SMALL_SIZE
        open_rows = open_rows[near]
        if not len(open_rows):
            break
        live = index.is_live(place[open_rows], moment[open_rows])
        hit = open_rows[live]
        gap[hit] = index.addresses[place[hit]] - end[hit]
        open_rows = open_rows[~live]
        place[open_rows] += 1
    return gap


@dataclass(frozen=True)
class _LivesByAddress:
    """Index of the lifetimes at each address."""

    addresses: Ints8
    """Each once, ascending, as `flip_top_bit` gives them."""
    began: Ints8
    """Start of each lifetime, offset by its address's place so that one sorted column answers for all."""
    end: Ints8
    stride: int

    def is_live(self, place: Ints8, moment: Ints8) -> Bools:
        base = place * self.stride
        last = np.searchsorted(self.began, base + moment + 1, side="right") - 1
        return np.asarray((last >= 0) & (self.began[last] >= base) & (self.end[last] > moment), dtype=np.bool_)


@cached
def _by_address(device: DeviceTrace) -> _LivesByAddress:
    lives = lifetimes(device)
    addresses, place = np.unique(flip_top_bit(lives.address), return_inverse=True)
    stride = len(device.events) + 2
    began = place * stride + lives.start + 1
    order = np.argsort(began, kind="stable")
    return _LivesByAddress(addresses=addresses, began=began[order], end=lives.end[order], stride=stride)


# The allocator always joins free neighbours, so each gap between live allocations is one free block.


class TileKind(IntEnum):
    FREE = 0
    LIVE = 1
    WAITING = 2
    """Its free was requested, and another stream may still use it."""


@dataclass(frozen=True, eq=False)
class Tiles(Columns):
    """Tiles by address. Those of one segment are contiguous and add up to its size."""

    segment: Ints4
    """Row of `SegmentsAt.segments`."""
    address: Ints8
    size: Ints8
    """Size of the block: bytes beyond `requested` are lost to rounding or were not worth a split."""
    kind: Bytes1
    requested: Ints8
    """0 for free memory."""
    row: Ints8
    """Row of the lifetimes, or -1 for free memory."""


@dataclass(frozen=True)
class SegmentsAt:
    event: int
    segments: Segments
    tiles: Tiles
    outside_bytes: int
    """Live, but not inside any segment known at this moment, or laid over another allocation. 0 in a sound file."""

    @property
    def reserved_bytes(self) -> int:
        return int(self.segments.size.sum())


def segments_at(trace: Trace, device: DeviceTrace, event: int) -> SegmentsAt:
    """After `event`; -1 is before the first."""
    segments, rows = reserved_segments(device, event, trace.settings), live_rows(device, event)
    lives = lifetimes(device)
    blocks = _blocks(trace, device, segments, rows, event)
    tiles = _with_gaps(segments, blocks)
    outside = int(lives.size[rows].sum() - blocks.requested.sum())
    return SegmentsAt(event=event, segments=segments, tiles=tiles, outside_bytes=outside)


def _blocks(trace: Trace, device: DeviceTrace, segments: Segments, rows: Ints8, event: int) -> Tiles:
    """One tile for each of these lifetimes that has a place, by address."""
    lives = lifetimes(device)
    low = flip_top_bit(lives.address[rows])
    order = np.argsort(low, kind="stable")
    rows, low = rows[order], low[order]
    segment_low = flip_top_bit(segments.address)
    segment_high = segment_low + segments.size
    segment = np.searchsorted(segment_low, low, side="right") - 1
    inside = segment >= 0
    inside[inside] = low[inside] < segment_high[segment[inside]]
    rows, low, segment = rows[inside], low[inside], segment[inside]

    upto = segment_high[segment]
    upto[:-1] = np.where(segment[1:] == segment[:-1], low[1:], upto[:-1])
    room = upto - low
    keeps_rest = segments.is_large[segment] & ~segments.is_expandable[segment]
    size = block_sizes(device, rows, room, keeps_rest, settings=trace.settings)
    tiles = Tiles(
        segment=segment.astype(np.int32),
        address=lives.address[rows],
        size=size,
        kind=np.where(lives.free_requested[rows] <= event, TileKind.WAITING, TileKind.LIVE).astype(np.uint8),
        requested=np.minimum(lives.size[rows], size),
        row=rows,
    )
    # Two allocations at one address leave no room for the first; its bytes count as outside.
    return tiles.select(np.flatnonzero(size > 0))


def _with_gaps(segments: Segments, blocks: Tiles) -> Tiles:
    """Return the tiles with one free tile for each gap between blocks."""
    segment_low = flip_top_bit(segments.address)
    low = flip_top_bit(blocks.address)
    # Gaps begin where a segment or a block does, and end at the next block or the segment's end.
    begin = np.concatenate([segment_low, low + blocks.size])
    segment = np.concatenate([np.arange(len(segments)), blocks.segment])
    following = np.searchsorted(low, begin)
    finish = segment_low[segment] + segments.size[segment]
    follows = following < len(blocks)
    follows[follows] = blocks.segment[following[follows]] == segment[follows]
    finish[follows] = low[following[follows]]
    gaps = np.flatnonzero(finish > begin)
    address, size = flip_top_bit(begin[gaps]), finish[gaps] - begin[gaps]
    kind, requested, row = (np.full(len(gaps), value) for value in (TileKind.FREE, 0, -1))
    free = Tiles.typed(segment[gaps], address, size, kind, requested, row)
    both = Tiles.concatenated([blocks, free])
    return both.select(np.argsort(flip_top_bit(both.address), kind="stable"))


# Lives of segments. A segment here is a stretch of addresses that was taken from the device and given back in one
# piece; of an expandable one, each stretch that was mapped. At every event they add up to `segments_at`, to the byte.

NO_ALLOCATION = -1
_MOST_PIECES = 8_000_000
"""Limit of pieces cut at others' bounds. Real files have about one per event; a hostile file may have far more."""


@dataclass(frozen=True, eq=False)
class SegmentLives(Columns):
    """One row per segment, by start, then address. It exists after event e: start <= e < end."""

    start: Ints8
    """Event that took it, or BEFORE."""
    end: Ints8
    """Event that released it; the number of events where it exists at the end."""
    size: Ints8
    address: Ints8
    used: npt.NDArray[np.float64]
    """Share of it that allocations took, on average over its events."""
    longest: Ints8
    """Row of `lifetimes` that was in it for the most events, or NO_ALLOCATION."""


@cached
def segment_lives(device: DeviceTrace) -> SegmentLives:
    history = ranges_of(device)
    pieces = _pieces(history, len(device.events))
    share, longest, lived = _piece_use(history, pieces, device)
    first = np.flatnonzero(_begins_of_runs(history, pieces, len(device.events)))
    if not len(first):
        nothing = np.zeros(0, dtype=np.int64)
        return SegmentLives(nothing, nothing, nothing, nothing, nothing.astype(np.float64), nothing)
    segment = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(pieces))))
    width = (history.high - history.low)[pieces.range]
    size = np.add.reduceat(width, first)
    # Of the pieces of one segment, what was in any of them for most events.
    order = np.lexsort((-lived, segment))
    lives = SegmentLives(
        start=pieces.start[first],
        end=pieces.end[first],
        size=size,
        address=flip_top_bit(history.low[pieces.range[first]]),
        used=np.add.reduceat(share * width, first) / size,
        longest=longest[order][first],
    )
    return lives.select(np.lexsort((flip_top_bit(lives.address), lives.start)))


@dataclass(frozen=True, eq=False)
class _Pieces(Columns):
    """One row per elementary range and time in which it was held, by start, end and range."""

    range: Ints8
    start: Ints8
    end: Ints8


def _pieces(history: RangeHistory, count: int) -> _Pieces:
    """A range is reserved from the previous event that touched it until the event that releases it."""
    event = _repeated(history.last - history.first)
    ranges = history.first[event] + _pieces_of(event)
    order = np.lexsort((event, ranges))
    ranges, event = ranges[order], event[order]
    is_first = np.diff(ranges, prepend=-1) != 0
    before = np.where(is_first, BEFORE, np.roll(history.index[event], 1))
    released = history.gives_back[event]
    # Until the end is held what the final segments have.
    newest = np.full(len(history.low), BEFORE)
    newest[ranges] = history.index[event]
    final = np.flatnonzero(history.final_row >= 0)
    pieces = _Pieces(
        range=np.concatenate([ranges[released], final]),
        start=np.concatenate([before[released], newest[final]]),
        end=np.concatenate([history.index[event][released], np.full(len(final), count)]),
    )
    return pieces.select(np.lexsort((pieces.range, pieces.end, pieces.start)))


def _begins_of_runs(history: RangeHistory, pieces: _Pieces, count: int) -> Bools:
    """False where a piece continues the one before it: neighbours that were reserved and released together."""
    begins = np.ones(len(pieces), dtype=np.bool_)
    one, next_one = pieces.range[:-1], pieces.range[1:]
    together = (pieces.start[1:] == pieces.start[:-1]) & (pieces.end[1:] == pieces.end[:-1])
    together &= history.high[one] == history.low[next_one]
    together &= (pieces.end[1:] < count) | (history.final_row[one] == history.final_row[next_one])
    begins[1:] = ~together
    return begins


def _piece_use(
    history: RangeHistory, pieces: _Pieces, device: DeviceTrace
) -> tuple[npt.NDArray[np.float64], Ints8, Ints8]:
    """Return for each piece its share in use, the allocation that was in it longest, and for how many events."""
    rows, count = lifetimes(device), len(device.events)
    share: npt.NDArray[np.float64] = np.zeros(len(pieces))
    longest: Ints8 = np.full(len(pieces), NO_ALLOCATION)
    lived = np.zeros(len(pieces), dtype=np.int64)
    if not len(pieces) or not len(rows):
        return share, longest, lived
    low = flip_top_bit(rows.address)
    high = upto(low, np.maximum(rows.size, 1))
    first = np.searchsorted(history.high, low, side="right")
    last = np.searchsorted(history.low, high, side="left")
    row = _repeated(np.maximum(last - first, 0))
    ranges = first[row] + _pieces_of(row)

    by_range = np.lexsort((pieces.start, pieces.range))
    key = pieces.range[by_range] * (count + 2) + pieces.start[by_range] + 1
    place_of = np.searchsorted(key, ranges * (count + 2) + rows.start[row] + 1, side="right") - 1
    piece = by_range[np.maximum(place_of, 0)]
    fits = (place_of >= 0) & (pieces.range[piece] == ranges) & (pieces.end[piece] > rows.start[row])
    row, ranges, piece = row[fits], ranges[fits], piece[fits]

    events = np.minimum(rows.end[row], pieces.end[piece]) - np.maximum(rows.start[row], pieces.start[piece])
    inside = np.minimum(high[row], history.high[ranges]) - np.maximum(low[row], history.low[ranges])
    capacity = (history.high - history.low)[ranges] * (pieces.end - pieces.start)[piece].astype(np.float64)
    share[:] = np.bincount(piece, weights=inside * events / capacity, minlength=len(pieces))
    order = np.lexsort((events, piece))
    longest[piece[order]], lived[piece[order]] = row[order], events[order]
    return share, longest, lived


def _repeated(times: Ints8) -> Ints8:
    if int(times.sum()) > _MOST_PIECES:
        raise UsageError("The segments overlap too much to be drawn over time.")
    return np.repeat(np.arange(len(times)), times)


def _pieces_of(repeated: Ints8) -> Ints8:
    """0, 1, 2 ... within each run of equal numbers."""
    begins = np.flatnonzero(np.diff(repeated, prepend=-1))
    return np.arange(len(repeated)) - np.repeat(begins, np.diff(np.append(begins, len(repeated))))


# Use of the reserved bytes: tensors, rounding, and free memory of three kinds that differ in the remedy.
#
# A free segment goes back to the device with `empty_cache()`. A free remainder of a segment that is partly in use
# does not; only its own segment's tensors keep it. Free mapped pages of an expandable segment go back as far as they
# are whole pages.


@dataclass(frozen=True)
class Fragmentation:
    """Bytes after one event. All but `reserved` and `outside` add up to `reserved`."""

    event: int
    reserved: int
    live: int
    """Requested, and in use."""
    waiting: int
    """Requested; freed, but another stream may still use it."""
    rounding: int
    """In blocks beyond what was requested."""
    free_segments: int
    """Cached: whole segments in which nothing lives. `empty_cache()` returns them."""
    free_remainders: int
    """Cached: free parts of segments in which something lives. Nothing returns them."""
    free_pages: int
    """Cached: mapped and free in expandable segments."""
    unknown: int
    """Bytes that the events reserve beyond the segments that can be placed; 0 in a sound file."""
    outside: int
    """Live bytes outside all known segments, and so in none of the above; 0 in a sound file."""

    @property
    def cached(self) -> int:
        return self.free_segments + self.free_remainders + self.free_pages


def fragmentation_at(trace: Trace, device: DeviceTrace, event: int) -> Fragmentation:
    """After `event`; -1 is before the first."""
    return fragmentation_of(segments_at(trace, device, event), int(timeline(device).reserved[event + 1]))


def fragmentation_over(trace: Trace, device: DeviceTrace, events: Iterable[int]) -> tuple[Fragmentation, ...]:
    """After each of `events`: choose as many as a picture has columns.

    A map of a million events with 1,800 blocks takes about 1 ms.
    """
    return tuple(fragmentation_at(trace, device, int(event)) for event in events)


def fragmentation_of(moment: SegmentsAt, reserved: int) -> Fragmentation:
    segments, tiles = moment.segments, moment.tiles
    is_free = tiles.kind == TileKind.FREE
    expandable = segments.is_expandable[tiles.segment]
    fills_segment = tiles.size == segments.size[tiles.segment]

    def total(chosen: Bools, column: Ints8 = tiles.size) -> int:
        return int(column[chosen].sum())

    return Fragmentation(
        event=moment.event,
        reserved=reserved,
        live=total(tiles.kind == TileKind.LIVE, tiles.requested),
        waiting=total(tiles.kind == TileKind.WAITING, tiles.requested),
        rounding=total(~is_free, tiles.size - tiles.requested),
        free_segments=total(is_free & ~expandable & fills_segment),
        free_remainders=total(is_free & ~expandable & ~fills_segment),
        free_pages=total(is_free & expandable),
        unknown=reserved - moment.reserved_bytes,
        outside=moment.outside_bytes,
    )
