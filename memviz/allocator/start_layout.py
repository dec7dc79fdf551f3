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

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from memviz.allocator.blocks import Block, BlockPool, ExpandableSegment, PoolId
from memviz.allocator.caching import CachingAllocator, add_expandable, rounding
from memviz.allocator.settings import Settings
from memviz.trace.model import NO_STACK, Action, DeviceTrace, Ints8, State, Trace
from memviz.trace.reserved import SMALL_SEGMENT, SMALL_SIZE, range_history, segments_after


@dataclass(frozen=True)
class StartBlock:
    address: int
    size: int
    requested: int
    is_waiting: bool
    """Its free was requested before the first event and not complete."""
    stack: int
    freed_at: int
    """The event that completes its free; the number of events where there is none."""
    size_is_exact: bool


@dataclass(frozen=True)
class StartSegment:
    """Segment at the start; of an expandable segment, one contiguous mapped range, as in snapshots."""

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
    """Live blocks outside all segments or overlapping: the file contradicts itself."""

    @property
    def blocks(self) -> tuple[StartBlock, ...]:
        return tuple(block for segment in self.segments for block in segment.blocks)

    @property
    def waiting_bytes(self) -> int:
        return sum(block.requested for block in self.blocks if block.is_waiting)


def start_layout(
    trace: Trace, device: DeviceTrace, settings: Settings, known_sizes: Mapping[int, int] | None = None
) -> StartLayout:
    """`known_sizes`: block sizes by address that a replay has inferred."""
    segments = _segments_before(trace, device, settings.large_segment_size)
    blocks = sorted(_live_before(device, settings), key=lambda block: block.address)
    placed = _place_blocks(segments, blocks)
    finder = _GapFinder(device, settings, known_sizes or {})
    whole = tuple(replace(segment, blocks=tuple(finder.sized(segment))) for segment in placed)
    return StartLayout(whole, len(blocks) - sum(len(segment.blocks) for segment in whole))


def unsigned(column: Ints8) -> npt.NDArray[np.uint64]:
    """Addresses as the model counts with them; the Trace keeps the upper half as negative numbers."""
    return column.view(np.uint64)


def _segments_before(trace: Trace, device: DeviceTrace, large_page: int) -> list[StartSegment]:
    """Return the segments before the first event, by address."""
    rows = segments_after(range_history(device), -1, large_page)
    columns = (unsigned(rows.address), rows.size, rows.stream, rows.pool, rows.is_large, rows.is_expandable)
    segments: list[StartSegment] = []
    for address, size, stream, pool, is_large, expands in zip(*(column.tolist() for column in columns), strict=True):
        segment = StartSegment(address, size, stream, trace.pools[pool], not is_large, expands)
        last = segments[-1] if segments else segment
        if (last.end, last.stream, last.pool) == (address, stream, segment.pool) and last.is_expandable and expands:
            # Adjacent small pages that were unmapped together can look like large pages.
            segments[-1] = replace(last, size=last.size + size, is_small=last.is_small or segment.is_small)
        else:
            segments.append(segment)
    return segments


def _live_before(device: DeviceTrace, settings: Settings) -> list[StartBlock]:
    round_size = rounding(settings.roundup_power2_divisions)
    never = len(device.events)
    rows = device.blocks
    active = np.flatnonzero(rows.state != State.INACTIVE)
    columns = (unsigned(rows.address), rows.size, rows.requested, rows.state, rows.stack)
    at_end = {
        address: StartBlock(address, size, requested, state != State.ACTIVE_ALLOCATED, stack, never, True)
        for address, size, requested, state, stack in zip(*(column[active].tolist() for column in columns), strict=True)
    }
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


def _freed_first(device: DeviceTrace) -> dict[int, tuple[int, int, int]]:
    """Addresses whose first event is a free: event of the request, event of completion, bytes."""
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


def _place_blocks(segments: list[StartSegment], blocks: list[StartBlock]) -> list[StartSegment]:
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
                yield replace(block, size=block.size + self._unused_rest(block, end))

    def _unused_rest(self, block: StartBlock, end: int) -> int:
        """Return the bytes between the block and the first allocation in the gap while the block lived."""
        start = block.address + block.size
        low, high = np.searchsorted(self._address, np.array([start, end], dtype=np.uint64))
        if low == high:
            return 0
        first = low + int(self._event[low:high].argmin())
        rest = int(self._address[first]) - start
        return rest if self._event[first] < block.freed_at and rest <= SMALL_SIZE else 0


class FirstRanges:
    """Which of the ranges that hold an address came first."""

    def __init__(self, addresses: Iterable[int]) -> None:
        """`addresses`: every address that will be looked up."""
        self._addresses = sorted(set(addresses))
        self._leaves = len(self._addresses)
        self._none = 1 << 62
        # A binary tree as an array: the children of a node stand at twice its place and behind that.
        self._first = [self._none] * (2 * self._leaves)

    def put(self, number: int, begin: int, end: int) -> None:
        """The range with this number goes from `begin` to `end`, both included; it may be put again and larger."""
        low = bisect_left(self._addresses, begin) + self._leaves
        high = bisect_right(self._addresses, end) + self._leaves
        while low < high:
            if low & 1:
                self._first[low] = min(self._first[low], number)
                low += 1
            if high & 1:
                high -= 1
                self._first[high] = min(self._first[high], number)
            low, high = low >> 1, high >> 1

    def at(self, address: int) -> int | None:
        place, latest = bisect_left(self._addresses, address) + self._leaves, self._none
        while place:
            latest = min(latest, self._first[place])
            place >>= 1
        return None if latest == self._none else latest


class Begins:
    """How many ranges begin in a stretch of addresses."""

    def __init__(self, addresses: Iterable[int]) -> None:
        """`addresses`: all where one will ever begin."""
        self._addresses = sorted(set(addresses))
        # Each place sums up a stretch that ends at it, as long as the lowest bit of its number (a Fenwick tree).
        self._counts = [0] * (len(self._addresses) + 1)

    def add(self, address: int, count: int = 1) -> None:
        place = bisect_left(self._addresses, address) + 1
        while place < len(self._counts):
            self._counts[place] += count
            place += place & -place

    def between(self, first: int, end: int) -> int:
        """From `first` on, before `end`."""
        return self._below(end) - self._below(first)

    def _below(self, address: int) -> int:
        place, count = bisect_left(self._addresses, address), 0
        while place:
            count += self._counts[place]
            place &= place - 1
        return count


Group = tuple[int, PoolId, bool]
"""Stream, pool and whether small: what one address space serves."""


@dataclass(frozen=True)
class AddressSpaces:
    at_start: dict[Group, int]
    """First address of the one that was there before the first event."""
    sizes: dict[int, int]
    """Sizes by first address; without the last address space, which has no known end."""

    def size(self, address: int, wanted: int) -> int:
        """Return the size of an address space, at most `wanted`; one without a known end counts as the smallest."""
        return min(wanted, self.sizes.get(address, self._smallest if self.sizes else wanted))

    @cached_property
    def _smallest(self) -> int:
        return min(self.sizes.values())


def ranges_by_group(layout: StartLayout) -> dict[Group, list[StartSegment]]:
    """Mapped ranges of one stream and pool, by address."""
    ranges: dict[Group, list[StartSegment]] = {}
    for segment in layout.segments:
        if segment.is_expandable:
            ranges.setdefault((segment.stream, segment.pool, segment.is_small), []).append(segment)
    return ranges


def address_spaces(trace: Trace, device: DeviceTrace, layout: StartLayout) -> AddressSpaces:
    events = device.events
    maps = np.flatnonzero(events.action == Action.SEGMENT_MAP)
    columns = (unsigned(events.address), events.size, events.stream, events.pool)
    rows = zip(*(column[maps].tolist() for column in columns), strict=True)
    # A small block never needs more than one page.
    mapped = [((stream, trace.pools[pool], size == SMALL_SEGMENT), at, at + size) for at, size, stream, pool in rows]
    finder = _Finder(layout, mapped)
    for group, address, end in mapped:
        finder.see(group, address, end)
    begins = sorted(space.begin for spaces in finder.spaces.values() for space in spaces)
    sizes = {first: after - first for first, after in pairwise(begins)}
    return AddressSpaces({group: finder.spaces[group][0].begin for group in finder.at_start}, sizes)


@dataclass
class _Space:
    begin: int
    used_to: int


class _Finder:
    def __init__(self, layout: StartLayout, mapped: list[tuple[Group, int, int]]) -> None:
        self.spaces: dict[Group, list[_Space]] = {}
        requests: dict[Group, list[int]] = {}
        for group, address, _ in mapped:
            requests.setdefault(group, []).append(address)
        there = ranges_by_group(layout)
        self._of_group = {group: FirstRanges(requests.get(group, ())) for group in (*there, *requests)}
        self._begins = Begins((*(ranges[0].address for ranges in there.values()), *(row[1] for row in mapped)))
        for group, ranges in there.items():
            self._begin(group, ranges[0].address, ranges[-1].end)
        self.at_start = set(there)

    def see(self, group: Group, address: int, end: int) -> None:
        spaces, known = self.spaces.get(group, []), self._of_group[group]
        number = known.at(address)
        if number is not None:
            space = spaces[number]
            space.used_to = max(space.used_to, end)
        elif (
            group in self.at_start and address < spaces[0].begin and not self._begins.between(address, spaces[0].begin)
        ):
            # Its first pages had been given back when the recording began.
            number, space = 0, spaces[0]
            self._begins.add(space.begin, -1)
            self._begins.add(address)
            space.begin = address
        else:
            self._begin(group, address, end)
            return
        known.put(number, space.begin, space.used_to)

    def _begin(self, group: Group, address: int, end: int) -> None:
        spaces = self.spaces.setdefault(group, [])
        self._of_group[group].put(len(spaces), address, end)
        self._begins.add(address)
        spaces.append(_Space(address, end))


FIRST_START_CAUSE = -2
"""`Block.cause` of the layout's blocks: this, and downward by one each."""


def lay_out_as_recorded(allocator: CachingAllocator, layout: StartLayout, spaces: AddressSpaces) -> dict[int, Block]:
    """The live blocks, by address. `spaces` is how far the segments that expand can grow."""
    live: dict[int, Block] = {}
    for segment in layout.segments:
        if not segment.is_expandable:
            pool = _pool(allocator, segment)
            head = allocator.add_segment(segment.address, segment.size, segment.stream, pool)
            allocator.device.map(segment.size)
            pool.add(head)
            _cut_out_live_blocks(head, segment.blocks, live)
    for group, ranges in ranges_by_group(layout).items():
        begin = spaces.at_start[group]
        if begin in allocator.segments:
            # Only in a damaged file can another segment be there.
            begin = ranges[0].address
        page = SMALL_SEGMENT if group[2] else allocator.settings.large_segment_size
        reserve = allocator.settings.address_space(allocator.device.card_bytes)
        used = ranges[-1].end - begin
        size = max(spaces.size(begin, reserve) // page, -(-used // page)) * page
        _lay_out_expandable(allocator, ranges, ExpandableSegment(begin, size, page), live)
    return _count_live(allocator, layout, live)


def _lay_out_expandable(
    allocator: CachingAllocator, ranges: list[StartSegment], space: ExpandableSegment, live: dict[int, Block]
) -> None:
    pool = _pool(allocator, ranges[0])
    block = add_expandable(allocator, space, ranges[0].stream, pool)
    for segment in ranges:
        pool.remove_unmapped(block)
        if block.address < segment.address:
            before, block = block, block.cut(segment.address - block.address)
            pool.add_unmapped(before)
        rest = block.cut(segment.size) if segment.size < block.size else None
        block.mapped = True
        allocator.device.map(segment.size)
        allocator.statistics.reserved_bytes.increase(pool.kind, segment.size)
        pool.add(block)
        _cut_out_live_blocks(block, segment.blocks, live)
        if rest is not None:
            pool.add_unmapped(rest)
            block = rest


def _cut_out_live_blocks(free: Block, blocks: Iterable[StartBlock], live: dict[int, Block]) -> None:
    """Cuts live blocks out of a free one; what is left between them stays free."""
    pool = free.pool
    pool.remove(free)
    rest: Block | None = free
    for wanted in blocks:
        assert rest is not None
        if rest.address < wanted.address:
            before, rest = rest, rest.cut(wanted.address - rest.address)
            pool.add(before)
        behind = rest.cut(wanted.size) if wanted.size < rest.size else None
        live[wanted.address] = rest
        rest.in_use = True
        rest = behind
    if rest is not None:
        pool.add(rest)


def _count_live(allocator: CachingAllocator, layout: StartLayout, live: dict[int, Block]) -> dict[int, Block]:
    statistics = allocator.statistics
    for number, wanted in enumerate(layout.blocks):
        block = live[wanted.address]
        block.allocated = True
        block.requested = wanted.requested
        block.cause = FIRST_START_CAUSE - number
        statistics.handed_out(block.pool.kind, block.size, block.requested)
        _wait_if_asked(allocator, block, wanted)
    for head in allocator.segments.values():
        for block in head.chain() if head.expandable is None else ():
            if not block.in_use and block.is_split:
                statistics.split_cached(block.pool.kind, 1, block.size)
    return live


def lay_out_afresh(allocator: CachingAllocator, layout: StartLayout) -> dict[int, Block]:
    """Allocate the live blocks anew in order of address, under the allocator's own settings."""
    live: dict[int, Block] = {}
    rows = ((segment, wanted) for segment in layout.segments for wanted in segment.blocks)
    for number, (segment, wanted) in enumerate(rows):
        block = allocator.malloc(wanted.requested or 1, segment.stream, segment.pool)
        block.cause = FIRST_START_CAUSE - number
        live[wanted.address] = block
        _wait_if_asked(allocator, block, wanted)
    return live


def _wait_if_asked(allocator: CachingAllocator, block: Block, wanted: StartBlock) -> None:
    if wanted.is_waiting:
        allocator.request_free(block)
        allocator.pending.hold(block)


def _pool(allocator: CachingAllocator, segment: StartSegment) -> BlockPool:
    pair = allocator.pool(segment.pool)
    return pair.small if segment.is_small else pair.large
