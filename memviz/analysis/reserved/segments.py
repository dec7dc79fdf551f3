"""The allocator's map at a moment: its segments, and the blocks and free ranges that tile each of them.

After the last event it is the file's own list of blocks. Before that, segments are counted back
(`reserved_ranges`), live allocations are put into them, and what lies between is free: the allocator always
joins free neighbours, so each gap is one free block.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from memviz.analysis.lifetimes import Lifetimes, lifetimes
from memviz.analysis.reserved.block_sizes import block_sizes
from memviz.analysis.reserved.reserved_ranges import in_order, segments_then
from memviz.errors import UsageError
from memviz.trace.model import Bytes1, Columns, DeviceTrace, Ints4, Ints8, Segments, Trace


class TileKind(IntEnum):
    FREE = 0
    LIVE = 1
    WAITING = 2
    """Its free was asked for, and another stream may still use it."""


@dataclass(frozen=True, eq=False)
class Tiles(Columns):
    """By address. Those of one segment follow each other without a gap and add up to its size."""

    segment: Ints4
    """Row of `SegmentsAt.segments`."""
    address: Ints8
    size: Ints8
    """Of the whole block: what lies beyond `requested` is lost to rounding or was not worth a split."""
    kind: Bytes1
    requested: Ints8
    """0 for free memory."""
    row: Ints8
    """Of the lifetimes, or -1 for free memory."""


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
    if not -1 <= event < len(device.events):
        raise UsageError(f"Event {event} does not exist: device {device.name} has {len(device.events)} events.")
    segments = segments_then(device, event, trace.settings)
    lives = lifetimes(device)
    rows = np.flatnonzero((lives.start <= event) & (lives.end > event))
    blocks = _blocks(trace, device, segments, rows, event)
    tiles = _with_gaps(segments, blocks)
    outside = int(lives.size[rows].sum() - blocks.requested.sum())
    return SegmentsAt(event=event, segments=segments, tiles=tiles, outside_bytes=outside)


def _blocks(trace: Trace, device: DeviceTrace, segments: Segments, rows: Ints8, event: int) -> Tiles:
    """One tile for each of these lifetimes that has a place, by address."""
    lives = lifetimes(device)
    low = in_order(lives.address[rows])
    order = np.argsort(low, kind="stable")
    rows, low = rows[order], low[order]
    segment_low = in_order(segments.address)
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
        kind=_kinds(lives, rows, event),
        requested=np.minimum(lives.size[rows], size),
        row=rows,
    )
    # Two allocations at one address leave no room for the first; its bytes count as outside.
    return _taken(tiles, np.flatnonzero(size > 0))


def _kinds(lives: Lifetimes, rows: Ints8, event: int) -> Bytes1:
    waits = lives.free_requested[rows] <= event
    return np.where(waits, TileKind.WAITING, TileKind.LIVE).astype(np.uint8)


def _with_gaps(segments: Segments, blocks: Tiles) -> Tiles:
    """What no block covers becomes one free tile for each gap."""
    segment_low = in_order(segments.address)
    low = in_order(blocks.address)
    # Gaps begin where a segment or a block does, and end at the next block or the segment's end.
    begin = np.concatenate([segment_low, low + blocks.size])
    segment = np.concatenate([np.arange(len(segments)), blocks.segment])
    following = np.searchsorted(low, begin)
    finish = segment_low[segment] + segments.size[segment]
    follows = following < len(blocks)
    follows[follows] = blocks.segment[following[follows]] == segment[follows]
    finish[follows] = low[following[follows]]
    gaps = np.flatnonzero(finish > begin)
    free = Tiles(
        segment=segment[gaps].astype(np.int32),
        address=in_order(begin[gaps]),
        size=finish[gaps] - begin[gaps],
        kind=np.full(len(gaps), TileKind.FREE, dtype=np.uint8),
        requested=np.zeros(len(gaps), dtype=np.int64),
        row=np.full(len(gaps), -1, dtype=np.int64),
    )
    both = Tiles(**{name: np.concatenate([column, getattr(free, name)]) for name, column in blocks.columns()})
    return _taken(both, np.argsort(in_order(both.address), kind="stable"))


def _taken(tiles: Tiles, rows: Ints8) -> Tiles:
    return Tiles(**{name: column[rows] for name, column in tiles.columns()})
