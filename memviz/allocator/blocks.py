"""Blocks, their free lists, frees that wait for other streams, and device memory."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Literal, Protocol

from memviz.trace.model import Action
from memviz.trace.reserved import MiB

PoolId = tuple[int, int]
DEFAULT_POOL: PoolId = (0, 0)

ADDRESS_BITS = 64


@dataclass(eq=False)
class ExpandableSegment:
    address: int
    size: int
    """Size of the address space, not of the memory behind it."""
    page: int

    def pages_around(self, size: int) -> int:
        """Bytes of the whole pages that hold `size` bytes from a page's start on."""
        return (size + self.page - 1) // self.page * self.page

    def whole_pages(self, address: int, end: int) -> tuple[int, int]:
        first = self.address + self.pages_around(address - self.address)
        last = self.address + (end - self.address) // self.page * self.page
        return first, last


class Block:
    """A range of device memory that is handed out, cached or (in an expandable segment) not mapped."""

    __slots__ = (
        "address",
        "age_at_insertion",
        "allocated",
        "cause",
        "expandable",
        "in_use",
        "mapped",
        "next",
        "open_events",
        "pool",
        "prev",
        "requested",
        "size",
        "stream",
        "streams_used",
    )

    def __init__(self, address: int, size: int, stream: int, pool: BlockPool) -> None:
        self.address = address
        self.size = size
        self.stream = stream
        self.pool = pool
        self.requested = 0
        self.prev: Block | None = None
        self.next: Block | None = None
        self.allocated = False
        """True from malloc to free."""
        self.in_use = False
        """True from malloc to the free's completion, as a stream may still read the block."""
        self.mapped = True
        self.expandable: ExpandableSegment | None = None
        self.streams_used: set[int] | None = None
        self.open_events = 0
        self.age_at_insertion = 0
        self.cause = -1
        """Request that the block was allocated for; used by replays."""

    @property
    def is_split(self) -> bool:
        return self.prev is not None or self.next is not None

    @property
    def end(self) -> int:
        return self.address + self.size

    def chain(self) -> Iterator[Block]:
        """Yield this block and those behind it in its segment."""
        block: Block | None = self
        while block is not None:
            yield block
            block = block.next

    def cut(self, size: int) -> Block:
        """Keeps the first `size` bytes and returns the rest, linked behind."""
        rest = Block(self.address + size, self.size - size, self.stream, self.pool)
        rest.expandable = self.expandable
        rest.mapped = self.mapped
        rest.prev = self
        rest.next = self.next
        if rest.next is not None:
            rest.next.prev = rest
        self.next = rest
        self.size = size
        return rest

    def absorb_next(self) -> None:
        """The first block of a segment thus stays the same object for the segment's whole life."""
        gone = self.next
        assert gone is not None
        self.size += gone.size
        self.next = gone.next
        if gone.next is not None:
            gone.next.prev = self


class FreeList:
    """Free blocks of one stream by size, then address: the first that is large enough is the best fit."""

    __slots__ = ("blocks", "keys")

    def __init__(self) -> None:
        self.keys: list[int] = []
        self.blocks: list[Block] = []

    def first_of_at_least(self, size: int) -> int:
        """Its place, or the list's length."""
        return bisect_left(self.keys, size << ADDRESS_BITS)

    def add(self, block: Block) -> None:
        key = block.size << ADDRESS_BITS | block.address
        place = bisect_left(self.keys, key)
        self.keys.insert(place, key)
        self.blocks.insert(place, block)

    def remove(self, block: Block) -> None:
        place = bisect_left(self.keys, block.size << ADDRESS_BITS | block.address)
        del self.keys[place]
        del self.blocks[place]

    def take(self, place: int) -> Block:
        del self.keys[place]
        return self.blocks.pop(place)

    def find(self, address: int, size: int) -> Block | None:
        key = size << ADDRESS_BITS | address
        place = bisect_left(self.keys, key)
        return self.blocks[place] if place < len(self.keys) and self.keys[place] == key else None


_address = attrgetter("address")


class BlockPool:
    """Small or large blocks, of the default pool or of a private one. Memory never crosses streams here."""

    __slots__ = ("age", "free", "is_small", "kind", "owner", "unmapped")

    def __init__(self, owner: PoolPair, *, is_small: bool) -> None:
        self.owner = owner
        self.is_small = is_small
        self.kind = 1 if is_small else 2
        """Its place in each figure of the statistics; 0 is both together."""
        self.free: dict[int, FreeList] = {}
        self.unmapped: dict[int, list[Block]] = {}
        """Unmapped blocks of expandable segments, per stream, by address."""
        self.age = 0
        """Searches so far; how long a block has lain unused is counted in them."""

    def add(self, block: Block) -> None:
        block.age_at_insertion = self.age
        free = self.free.get(block.stream)
        if free is None:
            free = self.free[block.stream] = FreeList()
        free.add(block)

    def remove(self, block: Block) -> None:
        self.free[block.stream].remove(block)

    def add_unmapped(self, block: Block) -> None:
        insort(self.unmapped.setdefault(block.stream, []), block, key=_address)

    def remove_unmapped(self, block: Block) -> None:
        ranges = self.unmapped[block.stream]
        del ranges[bisect_left(ranges, block.address, key=_address)]

    def free_blocks(self) -> list[Block]:
        """Return the free blocks by stream, size and address: PyTorch's one order for all of them."""
        return [block for stream in sorted(self.free) for block in self.free[stream].blocks]


class PoolPair:
    """The small and the large blocks of one pool: the default one, a CUDA graph's or a MemPool."""

    __slots__ = ("id", "large", "segments", "small", "use_count")

    def __init__(self, pool_id: PoolId) -> None:
        self.id = pool_id
        self.small = BlockPool(self, is_small=True)
        self.large = BlockPool(self, is_small=False)
        self.use_count = 1
        """Graphs and owners; at 0 its cached memory may go back to the device."""
        self.segments = 0


def merge(block: Block) -> tuple[Block, int]:
    """Joins a block that is in no list with its neighbours of the same kind; how many there were."""
    merges = 0
    after = block.next
    if after is not None and not after.in_use and after.mapped == block.mapped:
        _forget(after)
        block.absorb_next()
        merges = 1
    before = block.prev
    if before is not None and not before.in_use and before.mapped == block.mapped:
        _forget(before)
        before.absorb_next()
        return before, merges + 1
    return block, merges


def _forget(block: Block) -> None:
    if block.mapped:
        block.pool.remove(block)
    else:
        block.pool.remove_unmapped(block)


class PendingFrees:
    """A requested free that is not complete, with the events it waits for."""

    def __init__(self, complete_free: Callable[[Block], None]) -> None:
        self._complete_free = complete_free
        self.blocks: dict[Block, None] = {}
        """All pending frees, in the order of their requests."""
        self._events: dict[int, deque[Block]] = {}
        """Per stream, in its own order: a stream finishes its work one after the other."""
        self._finished: dict[int, int] = {}
        self._passed: dict[int, int] = {}
        """How many of each stream's are done."""

    def hold(self, block: Block) -> None:
        """Hold a freed block until the caller completes the free; a synchronization completes it earlier."""
        self.blocks[block] = None

    def complete(self, block: Block) -> None:
        del self.blocks[block]
        self._complete_free(block)

    def wait_for_streams(self, block: Block) -> None:
        self.blocks[block] = None
        streams, block.streams_used = block.streams_used or set(), None
        for stream in sorted(streams):
            block.open_events += 1
            self._events.setdefault(stream, deque()).append(block)

    def count_waits(self, stream: int) -> int:
        """How often a free has waited for the stream, ever."""
        return self._passed.get(stream, 0) + len(self._events.get(stream, ()))

    def finish(self, stream: int, event: int | None = None) -> None:
        """Mark the stream's pending frees, or the first `event` of them, as done; the next malloc completes them."""
        done = len(self._events.get(stream, ()))
        if event is not None:
            done = min(done, event - self._passed.get(stream, 0))
        self._finished[stream] = max(done, self._finished.get(stream, 0))

    def process(self) -> None:
        """Complete the frees whose streams are done, as malloc does first."""
        for stream, done in list(self._finished.items()):
            for _ in range(done):
                block = self._events[stream].popleft()
                self._passed[stream] = self._passed.get(stream, 0) + 1
                block.open_events -= 1
                if block.open_events == 0:
                    self.complete(block)
        self._finished.clear()

    def synchronize(self) -> None:
        waiting = list(self.blocks)
        self._finished.clear()
        for stream in self._events:
            self._passed[stream] = self.count_waits(stream)
        self._events.clear()
        for block in waiting:
            block.open_events = 0
            self.complete(block)


_FIRST_ADDRESS = 0x7F0000000000
"""On Linux the first segment ends there, elsewhere it begins there."""
_GRANULE, _CHUNK = 2 * MiB, 32 * MiB
_UPPER_HALF = 1 << 62
"""Some devices hand out addresses up there, far from where ours begin."""
_UNKNOWN_CARD = 1 << 40
_SPACE_OF_A_CARD = 1 << 43
"""Address space for an expandable segment is reserved by the card's size; without one, more than any has."""
Platform = Literal["linux", "wsl", "windows"]


class AddressSpace(Protocol):
    """Chooses the addresses of new segments, which decide between cached blocks of equal size."""

    def take(self, size: int) -> int: ...

    def give_back(self, address: int, size: int) -> None: ...

    def exclude_segments(self, segments: Sequence[tuple[int, int]], room: int) -> None:
        """Leave out segments, by address and size, that are there already, with room for what expands."""


def round_up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def address_space(platform: Platform, card: int = 0) -> AddressSpace:
    # A process has one address space for all cards.
    first = _FIRST_ADDRESS - card * _SPACE_OF_A_CARD
    return LinuxAddresses(first) if platform == "linux" else AscendingAddresses(first)


class AscendingAddresses:
    """Addresses as the driver of Windows chooses them, for WSL too: each above the one before."""

    def __init__(self, first: int = _FIRST_ADDRESS) -> None:
        self._next = first

    def take(self, size: int) -> int:
        address = self._next
        self._next += round_up(size, _GRANULE)
        return address

    def give_back(self, address: int, size: int) -> None:
        pass

    def exclude_segments(self, segments: Sequence[tuple[int, int]], room: int) -> None:
        highest = max((address + size for address, size in segments if address < _UPPER_HALF), default=0)
        self._next = max(self._next, (highest + room) & -_GRANULE)


class LinuxAddresses:
    """Addresses as the driver of Linux chooses them, checked against 1,988 calls of cudaMalloc (H100, driver 580).

    Address space is taken in chunks, multiples of 32 MiB: the highest gap that is larger, at its upper end. Within
    the newest chunk that has room, the smallest hole is used, the lowest of equal ones. An empty chunk goes back.
    """

    def __init__(self, first: int = _FIRST_ADDRESS) -> None:
        self._chunks: list[_Chunk] = []
        """In order of their addresses."""
        self._top = first
        self._newest = 0
        self._open: dict[int, list[int]] = {}
        """Ages of chunks in ascending order, by the size of the largest hole."""
        self._by_age: dict[int, _Chunk] = {}

    def take(self, size: int) -> int:
        size = round_up(size, _GRANULE)
        newest = max((ages[-1] for room, ages in self._open.items() if room >= size), default=0)
        chunk = self._by_age[newest] if newest else self._new_chunk(round_up(size, _CHUNK))
        self._close(chunk)
        address = chunk.take(size)
        self._reopen(chunk)
        return address

    def give_back(self, address: int, size: int) -> None:
        at = bisect_right(self._chunks, address, key=_begin) - 1
        if at < 0 or address >= self._chunks[at].end:
            return
        chunk = self._chunks[at]
        self._close(chunk)
        chunk.give_back(address, address + round_up(size, _GRANULE))
        if chunk.holes == [(chunk.begin, chunk.end)]:
            del self._chunks[at], self._by_age[chunk.age]
        else:
            self._reopen(chunk)

    def exclude_segments(self, segments: Sequence[tuple[int, int]], room: int) -> None:
        spans: list[list[int]] = []
        for address, size in sorted(segments, reverse=True):
            begin, end = address // _CHUNK * _CHUNK, round_up(address + size, _CHUNK)
            if spans and spans[-1][0] < end:
                spans[-1][0] = min(begin, spans[-1][0])
            else:
                spans.append([begin, end])
        for begin, end in spans:
            self._add(begin, end)
        for address, size in segments:
            chunk = self._chunks[bisect_right(self._chunks, address, key=_begin) - 1]
            self._close(chunk)
            chunk.fill(address, address + round_up(size, _GRANULE))
            self._reopen(chunk)
        self._top = spans[0][1] if spans else self._top

    def _new_chunk(self, size: int) -> _Chunk:
        end = self._top
        for chunk in reversed(self._chunks):
            if end - chunk.end > size:
                break
            end = chunk.begin
        return self._add(end - size, end)

    def _add(self, begin: int, end: int) -> _Chunk:
        self._newest += 1
        chunk = self._by_age[self._newest] = _Chunk(begin, end, self._newest, [(begin, end)])
        insort(self._chunks, chunk, key=_begin)
        self._reopen(chunk)
        return chunk

    def _reopen(self, chunk: _Chunk) -> None:
        if chunk.holes:
            insort(self._open.setdefault(chunk.room, []), chunk.age)

    def _close(self, chunk: _Chunk) -> None:
        if chunk.holes:
            ages = self._open[chunk.room]
            del ages[bisect_left(ages, chunk.age)]
            if not ages:
                del self._open[chunk.room]


@dataclass
class _Chunk:
    begin: int
    end: int
    age: int
    """Its number: that of a newer one is larger."""
    holes: list[tuple[int, int]]
    """Begin and end, by address."""

    @property
    def room(self) -> int:
        return max(end - begin for begin, end in self.holes)

    def take(self, size: int) -> int:
        fitting = (hole for hole in self.holes if hole[1] - hole[0] >= size)
        begin, end = min(fitting, key=lambda hole: hole[1] - hole[0])
        self.fill(begin, begin + size)
        return begin

    def fill(self, begin: int, end: int) -> None:
        self.holes = [
            part
            for hole in self.holes
            for part in ((hole[0], min(hole[1], begin)), (max(hole[0], end), hole[1]))
            if part[0] < part[1]
        ]

    def give_back(self, begin: int, end: int) -> None:
        before = [hole for hole in self.holes if hole[1] < begin]
        after = [hole for hole in self.holes if hole[0] > end]
        beside = [hole for hole in self.holes if hole[1] >= begin and hole[0] <= end]
        begin, end = min([begin, *(hole[0] for hole in beside)]), max([end, *(hole[1] for hole in beside)])
        self.holes = [*before, (begin, end), *after]


_begin = attrgetter("begin")


class AllocationFailed(Exception):
    """PyTorch would raise OutOfMemoryError here. The figures are those after everything was tried."""

    def __init__(self, *, requested: int, asked_of_device: int, allocated: int, reserved: int) -> None:
        self.requested = requested
        self.asked_of_device = asked_of_device
        """The figure of PyTorch's message after "Tried to allocate"."""
        self.allocated = allocated
        self.reserved = reserved
        super().__init__(
            f"Tried to allocate {asked_of_device} bytes for a request of {requested}, "
            f"with {allocated} allocated and {reserved} reserved."
        )


class DeviceMemory:
    """`memory` is what this process can have of it, in bytes; None is without limit."""

    def __init__(
        self, memory: int | None = None, *, total: int | None = None, addresses: AddressSpace | None = None
    ) -> None:
        self.memory = memory
        self.total = memory if total is None else total
        """The card's whole size, of which memory fractions and address space are counted."""
        self.in_use = 0
        self._addresses = LinuxAddresses() if addresses is None else addresses

    @property
    def free_bytes(self) -> int:
        return max(0, self.memory - self.in_use) if self.memory is not None else 0

    @property
    def card_bytes(self) -> int:
        return _UNKNOWN_CARD if self.total is None else self.total

    def malloc(self, size: int) -> int | None:
        """cudaMalloc: an address, or None where there is not enough left."""
        if not self.map(size):
            return None
        return self._addresses.take(size)

    def free(self, address: int, size: int) -> None:
        """cudaFree."""
        self.in_use -= size
        self._addresses.give_back(address, size)

    def reserve(self, size: int) -> tuple[int, int]:
        """Address space alone costs nothing: where it begins, and how much it is."""
        return self._addresses.take(size), size

    def map(self, size: int) -> bool:
        """Puts memory behind reserved addresses: all of it or nothing."""
        if self.memory is not None and self.in_use + size > self.memory:
            return False
        self.in_use += size
        return True

    def unmap(self, size: int) -> None:
        """Take memory from reserved addresses, which stay reserved."""
        self.in_use -= size

    def exclude_segments(self, segments: Sequence[tuple[int, int]]) -> None:
        """Leave out these segments, by address and size, from now on."""
        self._addresses.exclude_segments(segments, 2 * self.card_bytes)


Record = Callable[[Action, int, int, int, PoolId], None]
"""Called for everything that PyTorch would write into the history: action, address, size, stream, pool."""


def unrecorded(action: Action, address: int, size: int, stream: int, pool: PoolId) -> None:
    pass


@dataclass
class SegmentRequest:
    """A malloc that no cached block could serve."""

    pool: BlockPool
    stream: int
    requested: int
    size: int
    asked_of_device: int
