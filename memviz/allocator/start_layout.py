"""How memory lay before the first event, rebuilt from the end.

A history often starts late: the ring buffer wrapped, or recording began after the model was loaded. What was
reserved then is what is reserved at the end with the segment events undone. What was live then is known twice:
by a free without its alloc, and by a block that is active at the end and has no event. Whatever lies between
live blocks was free, and free neighbours are always merged, so the gaps are the free blocks.

One thing is not in the file: how large a block was that was freed later. Its request rounded up is right
except where a rest of at most 1 MiB was handed out with it. The large pool never caches a block as small as
that, so such a gap was part of the block; and where the gap is larger, the first allocation that lands in it
shows where it began.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from memviz.allocator.blocks import PoolId
from memviz.allocator.settings import Settings
from memviz.allocator.sizes import rounding
from memviz.trace.model import NO_STACK, Action, DeviceTrace, Ints8, State, Trace
from memviz.trace.rounding import SMALL_SEGMENT, SMALL_SIZE

_LAST_ADDRESS = 2**64 - 1
"""Events of a damaged file name memory behind it."""


@dataclass(frozen=True)
class StartBlock:
    address: int
    size: int
    requested: int
    is_waiting: bool
    """Its free was asked for before the first event and not complete."""
    stack: int
    freed_at: int
    """The event that completes its free; the number of events where there is none."""
    size_is_exact: bool


@dataclass(frozen=True)
class StartSegment:
    """Of an expandable segment: one contiguous mapped range, as snapshots have it."""

    address: int
    size: int
    stream: int
    """Index into `Trace.streams`, as in events."""
    pool: PoolId
    is_small: bool
    is_expandable: bool
    blocks: tuple[StartBlock, ...] = ()

    @property
    def end(self) -> int:
        return self.address + self.size


@dataclass(frozen=True)
class StartLayout:
    segments: tuple[StartSegment, ...]
    unplaced: int
    """Live blocks that lie in no segment or in one another: the file contradicts itself."""

    @property
    def blocks(self) -> tuple[StartBlock, ...]:
        return tuple(block for segment in self.segments for block in segment.blocks)

    @property
    def waiting_bytes(self) -> int:
        return sum(block.requested for block in self.blocks if block.is_waiting)


def start_layout(
    trace: Trace, device: DeviceTrace, settings: Settings, known_sizes: Mapping[int, int] | None = None
) -> StartLayout:
    """`known_sizes`: of blocks by address, from whoever knows more than the file shows at first sight."""
    segments = sorted(_segments_before(trace, device, settings.large_segment_size), key=lambda segment: segment.address)
    blocks = sorted(_live_before(device, settings), key=lambda block: block.address)
    placed = _place(_apart(segments), blocks)
    finder = _GapFinder(device, settings, known_sizes or {})
    whole = tuple(replace(segment, blocks=tuple(finder.sized(segment))) for segment in placed)
    return StartLayout(whole, len(blocks) - sum(len(segment.blocks) for segment in whole))


def _apart(segments: list[StartSegment]) -> list[StartSegment]:
    """In a damaged file segments may lie in one another: the first of them is kept."""
    kept: list[StartSegment] = []
    for segment in segments:
        if segment.size > 0 and (not kept or kept[-1].end <= segment.address):
            kept.append(segment)
    return kept


def unsigned(column: Ints8) -> npt.NDArray[np.uint64]:
    """Addresses as the model counts with them; the Trace keeps the upper half as negative numbers."""
    return column.view(np.uint64)


def _segments_before(trace: Trace, device: DeviceTrace, large_page: int) -> list[StartSegment]:
    whole: dict[int, StartSegment] = {}
    mapped = _Ranges()
    for segment in _segments_at_end(trace, device):
        if segment.is_expandable:
            mapped.add(segment)
        else:
            whole[segment.address] = segment
    for action, segment in reversed(_segment_events(trace, device, large_page)):
        if action == Action.SEGMENT_ALLOC:
            whole.pop(segment.address, None)
        elif action == Action.SEGMENT_FREE:
            whole[segment.address] = segment
        elif action == Action.SEGMENT_MAP:
            mapped.remove(segment.address, segment.end)
        else:
            mapped.add(segment)
    return [*whole.values(), *mapped.joined()]


def _segments_at_end(trace: Trace, device: DeviceTrace) -> Iterable[StartSegment]:
    rows = device.segments
    columns = (unsigned(rows.address), rows.size, rows.stream, rows.pool, rows.is_large, rows.is_expandable)
    for address, size, stream, pool, is_large, expands in zip(*(column.tolist() for column in columns), strict=True):
        yield StartSegment(address, size, stream, trace.pools[pool], not is_large, expands)


def _segment_events(trace: Trace, device: DeviceTrace, large_page: int) -> list[tuple[int, StartSegment]]:
    events = device.events
    segment_events = np.flatnonzero((events.action >= Action.SEGMENT_ALLOC) & (events.action <= Action.SEGMENT_UNMAP))
    columns = (events.action, unsigned(events.address), events.size, events.stream, events.pool)
    rows = zip(*(column[segment_events].tolist() for column in columns), strict=True)
    return [
        (
            action,
            StartSegment(
                address,
                size,
                stream,
                trace.pools[pool],
                # A large segment has at least 10 MiB, and the large pool maps large pages.
                size == SMALL_SEGMENT if action != Action.SEGMENT_UNMAP else size % large_page != 0,
                action > Action.SEGMENT_FREE,
            ),
        )
        for action, address, size, stream, pool in rows
    ]


class _Ranges:
    """Mapped ranges that do not overlap, by address."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ranges: list[StartSegment] = []

    def add(self, segment: StartSegment) -> None:
        self.remove(segment.address, segment.end)
        place = bisect_left(self._starts, segment.address)
        self._starts.insert(place, segment.address)
        self._ranges.insert(place, segment)

    def remove(self, start: int, end: int) -> None:
        first = max(bisect_left(self._starts, start) - 1, 0)
        last = bisect_left(self._starts, end)
        kept = [part for segment in self._ranges[first:last] for part in _without(segment, start, end)]
        self._ranges[first:last] = kept
        self._starts[first:last] = [segment.address for segment in kept]

    def joined(self) -> list[StartSegment]:
        ranges: list[StartSegment] = []
        for mapped in self._ranges:
            last = ranges[-1] if ranges else None
            if last and last.end == mapped.address and (last.stream, last.pool) == (mapped.stream, mapped.pool):
                # Small pages that were given back by the dozen may look like large ones by themselves.
                ranges[-1] = replace(last, size=last.size + mapped.size, is_small=last.is_small or mapped.is_small)
            else:
                ranges.append(mapped)
        return ranges


def _without(segment: StartSegment, start: int, end: int) -> list[StartSegment]:
    parts = ((segment.address, min(segment.end, start)), (max(segment.address, end), segment.end))
    return [replace(segment, address=first, size=last - first) for first, last in parts if first < last]


def _live_before(device: DeviceTrace, settings: Settings) -> list[StartBlock]:
    round_size = rounding(settings.roundup_power2_divisions)
    never = len(device.events)
    at_end = _active_at_end(device)
    live = []
    for address, (times, completed, requested) in _freed_first(device).items():
        end = at_end.get(address) if completed == never else None
        live.append(
            StartBlock(
                address,
                end.size if end else round_size(requested),
                requested,
                is_waiting=times == never,
                stack=end.stack if end else NO_STACK,
                freed_at=completed,
                size_is_exact=end is not None,
            )
        )
    events = device.events
    ends = np.array(list(at_end), dtype=np.uint64)
    mentioned = np.isin(ends, unsigned(events.address)[events.action <= Action.FREE_COMPLETED])
    return [*live, *(at_end[address] for address in ends[~mentioned].tolist())]


def _active_at_end(device: DeviceTrace) -> dict[int, StartBlock]:
    rows = device.blocks
    active = np.flatnonzero(rows.state != State.INACTIVE)
    columns = (unsigned(rows.address), rows.size, rows.requested, rows.state, rows.stack)
    return {
        address: StartBlock(address, size, requested, state != State.ACTIVE_ALLOCATED, stack, len(device.events), True)
        for address, size, requested, state, stack in zip(*(column[active].tolist() for column in columns), strict=True)
    }


def _freed_first(device: DeviceTrace) -> dict[int, tuple[int, int, int]]:
    """Addresses whose first event is a free: when it was asked for, when complete, and how much."""
    events, never = device.events, len(device.events)
    index = np.flatnonzero(events.action <= Action.FREE_COMPLETED)
    order = index[np.argsort(events.address[index], kind="stable")]
    address, action = unsigned(events.address)[order], events.action[order]
    new = np.ones(len(order), dtype=np.bool_)
    new[1:] = address[1:] != address[:-1]
    first = np.flatnonzero(new & (action != Action.ALLOC))
    after = np.minimum(first + 1, len(order) - 1)
    asks = action[first] == Action.FREE_REQUESTED
    completes_after = asks & (after > first) & (action[after] == Action.FREE_COMPLETED) & ~new[after]
    request_event = np.where(asks, order[first], never)
    completed = np.where(completes_after, order[after], np.where(asks, never, order[first]))
    sizes = events.size[order[first]]
    if never > 1 and not (events.action == Action.FREE_REQUESTED).any():
        # This file leaves the asking out (`skip_actions`): nothing was waiting. A ring of one holds no such proof.
        request_event = completed
    columns = (address[first], request_event, completed, sizes)
    return {a: (b, c, d) for a, b, c, d in zip(*(column.tolist() for column in columns), strict=True)}


def _place(segments: list[StartSegment], blocks: list[StartBlock]) -> list[StartSegment]:
    """Blocks into the segments that hold them; what overlaps the block before it is left out."""
    placed, rest = [], iter([*blocks, None])
    block = next(rest)
    for segment in segments:
        inside: list[StartBlock] = []
        upto = segment.address
        while block is not None and block.address < segment.end:
            if block.address >= upto and block.address + block.size <= segment.end:
                inside.append(block)
                upto = block.address + block.size
            block = next(rest)
        placed.append(replace(segment, blocks=tuple(inside)))
    return placed


class _GapFinder:
    """Sizes of blocks whose rest behind them may have been handed out with them."""

    def __init__(self, device: DeviceTrace, settings: Settings, known_sizes: Mapping[int, int]) -> None:
        self._known = known_sizes
        allocs = np.flatnonzero(device.events.action == Action.ALLOC)
        address = unsigned(device.events.address)[allocs]
        order = np.argsort(address, kind="stable")
        self._address = address[order]
        self._event = allocs[order]
        self._most = settings.max_split_size

    def sized(self, segment: StartSegment) -> Iterable[StartBlock]:
        ends = [*(block.address for block in segment.blocks[1:]), segment.end]
        for block, end in zip(segment.blocks, ends, strict=False):
            gap = end - block.address - block.size
            if gap == 0 or block.size_is_exact or segment.is_small or segment.is_expandable:
                yield block
            elif block.address in self._known:
                yield replace(block, size=self._known[block.address])
            elif gap <= SMALL_SIZE or (self._most is not None and block.size >= self._most):
                yield replace(block, size=block.size + gap)
            else:
                yield replace(block, size=block.size + self._rest(block, end))

    def _rest(self, block: StartBlock, end: int) -> int:
        """The first allocation in the gap while the block lived lies where the free part began."""
        start = block.address + block.size
        if start > _LAST_ADDRESS:
            return 0
        bounds = np.array([start, min(end, _LAST_ADDRESS)], dtype=np.uint64)
        low, high = np.searchsorted(self._address, bounds)
        if low == high:
            return 0
        first = low + int(self._event[low:high].argmin())
        rest = int(self._address[first]) - start
        return rest if self._event[first] < block.freed_at and rest <= SMALL_SIZE else 0
