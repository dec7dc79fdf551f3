"""A small caching allocator that writes down the truth: what every byte was after every event.

It follows PyTorch's rules where they decide how memory is cut up (rounding, pools, splits, merges, pages) and
takes the shortest way where they do not (which of several free blocks is used).
"""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from memviz.trace.reserved import LARGE_SEGMENT, MIN_BLOCK, NO_DIVISIONS, SMALL_SIZE, Divisions, round_sizes

MiB = 1 << 20
GiB = 1 << 30


@dataclass
class Block:
    address: int
    size: int
    state: str = "free"
    """free, live, waiting or unmapped."""
    requested: int = 0


@dataclass
class Segment:
    pool: tuple[int, int]
    stream: int
    large: bool
    expandable: bool
    blocks: list[Block]

    def ranges(self) -> list[tuple[int, int]]:
        """Mapped ranges as (address, size), merged."""
        found: list[tuple[int, int]] = []
        for block in self.blocks:
            if block.state == "unmapped":
                continue
            if found and sum(found[-1]) == block.address:
                found[-1] = (found[-1][0], found[-1][1] + block.size)
            else:
                found.append((block.address, block.size))
        return found


@dataclass
class Truth:
    segments: list[tuple[Any, ...]]
    """(address, size, stream, pool, large, expandable), by address."""
    tiles: list[tuple[Any, ...]]
    """(address, size, state, requested), by address."""


@dataclass
class Allocator:
    expandable: bool = False
    max_split: int | None = None
    divisions: Divisions = NO_DIVISIONS
    segments: list[Segment] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    truth: list[Truth] = field(default_factory=list)
    next_address: int = 0x7F0000000000

    def __post_init__(self) -> None:
        self.truth.append(self._truth())

    def malloc(self, requested: int, stream: int = 0, pool: tuple[int, int] = (0, 0)) -> int:
        size = int(round_sizes(np.array([requested]), self.divisions)[0])
        large = size > SMALL_SIZE
        found = self._free_block(size, (pool, stream, large))
        if found is None and self.expandable:
            found = self._map(size, self._expandable_segment((pool, stream, large)))
        elif found is None:
            found = self._new_segment(size, (pool, stream, large))
        segment, block = found
        self._split(segment, block, size)
        block.state, block.requested = "live", requested
        self._log("alloc", block.address, requested, segment)
        return block.address

    def free(self, address: int, *, later: bool = False) -> None:
        """`later`: another stream still uses it; `complete` ends it."""
        segment, block = self._find(address)
        block.state = "waiting"
        self._log("free_requested", address, block.requested, segment)
        if not later:
            self.complete(address)

    def complete(self, address: int) -> None:
        segment, block = self._find(address)
        requested, block.state, block.requested = block.requested, "free", 0
        _merge(segment.blocks)
        self._log("free_completed", address, requested, segment)

    def empty_cache(self) -> None:
        for segment in list(self.segments):
            if segment.expandable:
                self._unmap(segment)
            elif len(segment.blocks) == 1 and segment.blocks[0].state == "free":
                self.segments.remove(segment)
                self._log("segment_free", segment.blocks[0].address, segment.blocks[0].size, segment)

    def snapshot(self, drop: int = 0) -> dict[str, Any]:
        """Return a snapshot in torch's format, without the first `drop` events."""
        rows = []
        for segment in self.segments:
            for address, size in segment.ranges():
                inside = [b for b in segment.blocks if address <= b.address < address + size]
                rows.append(_segment_row(segment, address, size, inside))
        settings = {
            "expandable_segments": self.expandable,
            "max_split_size": -1 if self.max_split is None else self.max_split,
            "roundup_power2_divisions": {str(1 << slot): parts for slot, parts in enumerate(self.divisions)},
        }
        return {"segments": rows, "device_traces": [self.events[drop:]], "allocator_settings": settings}

    def _free_block(self, size: int, home: tuple[Any, ...]) -> tuple[Segment, Block] | None:
        fits = []
        for segment in self.segments:
            if (segment.pool, segment.stream, segment.large) != home:
                continue
            fits += [(b.size, b.address, segment, b) for b in segment.blocks if b.state == "free" and b.size >= size]
        if not fits:
            return None
        block_size, _, segment, block = min(fits, key=lambda fit: fit[:2])
        limit = self.max_split if self.max_split is not None else 1 << 62
        if (size < limit <= block_size) or (size >= limit and block_size >= size + LARGE_SEGMENT):
            return None
        return segment, block

    def _new_segment(self, size: int, home: tuple[Any, ...]) -> tuple[Segment, Block]:
        pool, stream, large = home
        length = 2 * MiB if not large else 20 * MiB if size < 10 * MiB else -(-size // (2 * MiB)) * 2 * MiB
        # Neighbouring segments, as drivers hand them out, must stay apart.
        segment = Segment(pool, stream, large, False, [Block(self._reserve(length), length)])
        self.segments.append(segment)
        self._log("segment_alloc", segment.blocks[0].address, length, segment)
        return segment, segment.blocks[0]

    def _expandable_segment(self, home: tuple[Any, ...]) -> Segment:
        for segment in self.segments:
            if segment.expandable and (segment.pool, segment.stream, segment.large) == home:
                return segment
        self.segments.append(Segment(*home, True, [Block(self._reserve(4 * GiB), 4 * GiB, "unmapped")]))
        return self.segments[-1]

    def _map(self, size: int, segment: Segment) -> tuple[Segment, Block]:
        """Maps whole pages where the first run of free and unmapped blocks is long enough."""
        page = 20 * MiB if segment.large else 2 * MiB
        run: list[Block] = []
        for block in segment.blocks:
            run = [*run, block] if block.state in ("free", "unmapped") else []
            if sum(each.size for each in run) >= size:
                break
        first, missing = run[0].address, size
        for block in run:
            if block.state == "unmapped":
                length = min(block.size, -(-missing // page) * page)
                _cut(segment.blocks, block, length)
                block.state = "free"
                _merge(segment.blocks)
                self._log("segment_map", block.address, length, segment)
                missing -= length
            else:
                missing -= block.size
            if missing <= 0:
                break
        return segment, next(b for b in segment.blocks if b.address == first)

    def _unmap(self, segment: Segment) -> None:
        page = 20 * MiB if segment.large else 2 * MiB
        base = segment.blocks[0].address
        for block in [b for b in segment.blocks if b.state == "free"]:
            low = -(-(block.address - base) // page) * page + base
            high = (block.address + block.size - base) // page * page + base
            if high > low:
                if low > block.address:
                    block = _cut(segment.blocks, block, low - block.address)
                _cut(segment.blocks, block, high - low)
                block.state = "unmapped"
                _merge(segment.blocks)
                self._log("segment_unmap", low, high - low, segment)

    def _split(self, segment: Segment, block: Block, size: int) -> None:
        rest = block.size - size
        fine = not segment.large or self.expandable
        limit = self.max_split if self.max_split is not None else 1 << 62
        if rest >= MIN_BLOCK if fine else size < limit and rest > SMALL_SIZE:
            _cut(segment.blocks, block, size)

    def _reserve(self, length: int) -> int:
        self.next_address += length
        return self.next_address - length

    def _find(self, address: int) -> tuple[Segment, Block]:
        return next((s, b) for s in self.segments for b in s.blocks if b.address == address and b.requested)

    def _log(self, action: str, address: int, size: int, segment: Segment) -> None:
        event = {"action": action, "addr": address, "size": size, "stream": segment.stream, "pool_id": segment.pool}
        self.events.append(event)
        self.truth.append(self._truth())

    def _truth(self) -> Truth:
        segments, tiles = [], []
        for segment in self.segments:
            about = (segment.stream, segment.pool, segment.large, segment.expandable)
            segments += [(address, size, *about) for address, size in segment.ranges()]
            tiles += [(b.address, b.size, b.state, b.requested) for b in segment.blocks if b.state != "unmapped"]
        return Truth(sorted(segments), sorted(tiles))


def _cut(blocks: list[Block], block: Block, size: int) -> Block:
    """Leaves `size` bytes in front; gives the rest, if there is any, the same state."""
    rest = replace(block, address=block.address + size, size=block.size - size)
    block.size = size
    if rest.size:
        blocks.insert(blocks.index(block) + 1, rest)
    return rest


def _merge(blocks: list[Block]) -> None:
    """Free neighbours become one block, and so do unmapped ones."""
    for state in ("free", "unmapped"):
        for at in range(len(blocks) - 1, 0, -1):
            if blocks[at].state == blocks[at - 1].state == state:
                blocks[at - 1].size += blocks.pop(at).size


def _segment_row(segment: Segment, address: int, size: int, blocks: list[Block]) -> dict[str, Any]:
    return {
        "device": 0,
        "address": address,
        "total_size": size,
        "stream": segment.stream,
        "segment_type": "large" if segment.large else "small",
        "segment_pool_id": segment.pool,
        "is_expandable": segment.expandable,
        "frames": [],
        "blocks": [_block_row(block) for block in blocks],
    }


def _block_row(block: Block) -> dict[str, Any]:
    state = {"free": "inactive", "live": "active_allocated", "waiting": "active_pending_free"}[block.state]
    sizes = {"size": block.size, "requested_size": block.requested}
    return {"address": block.address, **sizes, "state": state, "frames": []}
