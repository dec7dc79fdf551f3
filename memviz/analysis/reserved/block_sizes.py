"""How large the block of each live allocation is: at least the rounded request, sometimes more.

Known exactly for what lives until the end. Otherwise it follows from what the allocator may leave over.
In the small pool and in expandable segments it splits to the byte, so a block is its rounded request. In the
large pool a remainder of up to 1 MiB is not split off but stays with the block; so a block that found its
neighbour (or the end of its segment) that near when it was made keeps the gap for life. Blocks of
`max_split_size` and more are never split.

What was there before the first event and freed later has no such moment on record: its gap counts as its
own where it is that small before the first event or now, and as free memory otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from memviz.analysis.cache import remembered
from memviz.analysis.lifetimes import lifetimes
from memviz.analysis.reserved.reserved_ranges import in_order
from memviz.trace.model import Bools, DeviceTrace, Ints8
from memviz.trace.rounding import MIN_BLOCK, SMALL_SIZE, divisions_of, max_split_size_of, round_sizes


def block_sizes(
    device: DeviceTrace, rows: Ints8, room: Ints8, keeps_rest: Bools, *, settings: Mapping[str, Any]
) -> Ints8:
    """Of these lifetimes, which are live and placed now. `room` is what lies before the next one or the segment's
    end; `keeps_rest` says which are in the large pool of a segment that is not expandable."""
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
    sizes[candidates] += _gap_when_made(device, rows[candidates], rounded[candidates])
    sizes[block >= 0] = device.blocks.size[block[block >= 0]]
    return np.minimum(sizes, room)


def _gap_when_made(device: DeviceTrace, rows: Ints8, rounded: Ints8) -> Ints8:
    """Bytes up to the neighbour that was live when each row began; 0 where there was none within SMALL_SIZE.

    Every step looks at the next higher address that was ever used, for all rows that have not found theirs.
    """
    lives, index = lifetimes(device), _by_address(device)
    moment = lives.start[rows]
    end = in_order(lives.address[rows]) + rounded
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
    """Who was live at an address at a moment."""

    addresses: Ints8
    """Each once, ascending, as `in_order` gives them."""
    began: Ints8
    """Start of each lifetime, offset by its address's place so that one sorted column answers for all."""
    end: Ints8
    stride: int

    def is_live(self, place: Ints8, moment: Ints8) -> Bools:
        base = place * self.stride
        last = np.searchsorted(self.began, base + moment + 1, side="right") - 1
        return np.asarray((last >= 0) & (self.began[last] >= base) & (self.end[last] > moment), dtype=np.bool_)


@remembered
def _by_address(device: DeviceTrace) -> _LivesByAddress:
    lives = lifetimes(device)
    addresses, place = np.unique(in_order(lives.address), return_inverse=True)
    stride = len(device.events) + 2
    began = place * stride + lives.start + 1
    order = np.argsort(began, kind="stable")
    return _LivesByAddress(addresses=addresses, began=began[order], end=lives.end[order], stride=stride)
