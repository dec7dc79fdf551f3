"""The caching allocator: PyTorch's steps between a tensor and cudaMalloc.

Read `malloc`, then `_take_cached` (best fit among what is cached), `_take_new` (the ladder from a fresh segment to out
of memory), `_split_and_hand_out` and `complete_free` (merging). The functions of expandable segments come first:
address space is reserved once, and memory is put behind it page by page.
`memviz.trace.reserved` rounds whole columns; here sizes come one at a time, where numpy costs more than arithmetic.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields

from memviz.allocator.blocks import (
    DEFAULT_POOL,
    AllocationFailed,
    Block,
    BlockPool,
    DeviceMemory,
    ExpandableSegment,
    FreeList,
    PendingFrees,
    PoolId,
    PoolPair,
    Record,
    SegmentRequest,
    merge,
    unrecorded,
)
from memviz.allocator.settings import Settings
from memviz.errors import UsageError
from memviz.trace.model import Action
from memviz.trace.reserved import (
    LARGE_SEGMENT,
    LARGEST_REQUEST,
    MIN_BLOCK,
    MIN_LARGE_ALLOC,
    ROUND_LARGE,
    SLOTS,
    SMALL_SEGMENT,
    SMALL_SIZE,
)

_BOTH = 0
_KINDS = ("all", "small_pool", "large_pool")


class Stat:
    """One figure for all memory, the small pool and the large pool."""

    __slots__ = ("allocated", "current", "freed", "peak")

    def __init__(self) -> None:
        self.current = [0, 0, 0]
        self.peak = [0, 0, 0]
        self.allocated = [0, 0, 0]
        self.freed = [0, 0, 0]

    def increase(self, kind: int, amount: int) -> None:
        current, peak, allocated = self.current, self.peak, self.allocated
        now = current[kind] + amount
        current[kind] = now
        if now > peak[kind]:
            peak[kind] = now
        allocated[kind] += amount
        now = current[_BOTH] + amount
        current[_BOTH] = now
        if now > peak[_BOTH]:
            peak[_BOTH] = now
        allocated[_BOTH] += amount

    def decrease(self, kind: int, amount: int) -> None:
        current, freed = self.current, self.freed
        current[kind] -= amount
        freed[kind] += amount
        current[_BOTH] -= amount
        freed[_BOTH] += amount

    def change(self, kind: int, amount: int) -> None:
        if amount > 0:
            self.increase(kind, amount)
        elif amount < 0:
            self.decrease(kind, -amount)

    def reset_peak(self) -> None:
        self.peak = list(self.current)

    def reset_accumulated(self) -> None:
        self.allocated = [0, 0, 0]
        self.freed = [0, 0, 0]

    def figures(self, name: str) -> dict[str, int]:
        columns = {"current": self.current, "peak": self.peak, "allocated": self.allocated, "freed": self.freed}
        return {f"{name}.{_KINDS[kind]}.{key}": column[kind] for kind in range(3) for key, column in columns.items()}


@dataclass(slots=True)
class Statistics:
    """Each figure moves where PyTorch moves it: `allocated` falls with free(), `active` when the free completes."""

    allocation: Stat = field(default_factory=Stat)
    allocated_bytes: Stat = field(default_factory=Stat)
    active: Stat = field(default_factory=Stat)
    active_bytes: Stat = field(default_factory=Stat)
    requested_bytes: Stat = field(default_factory=Stat)
    segment: Stat = field(default_factory=Stat)
    reserved_bytes: Stat = field(default_factory=Stat)
    inactive_split: Stat = field(default_factory=Stat)
    inactive_split_bytes: Stat = field(default_factory=Stat)
    oversize_allocations: Stat = field(default_factory=Stat)
    oversize_segments: Stat = field(default_factory=Stat)
    num_alloc_retries: int = 0
    num_ooms: int = 0
    num_sync_all_streams: int = 0
    num_device_alloc: int = 0
    num_device_free: int = 0
    num_oom_rejections: int = 0

    def handed_out(self, kind: int, size: int, requested: int) -> None:
        """`size` is the block's, which may exceed the rounded request where the rest was too small to split."""
        self.allocation.increase(kind, 1)
        self.allocated_bytes.increase(kind, size)
        self.active.increase(kind, 1)
        self.active_bytes.increase(kind, size)
        self.requested_bytes.increase(kind, requested)

    def freed(self, kind: int, size: int) -> None:
        self.allocation.decrease(kind, 1)
        self.allocated_bytes.decrease(kind, size)

    def free_completed(self, kind: int, size: int, requested: int) -> None:
        self.active.decrease(kind, 1)
        self.active_bytes.decrease(kind, size)
        self.requested_bytes.decrease(kind, requested)

    def split_cached(self, kind: int, blocks: int, size: int) -> None:
        """Cached parts of segments that are partly in use: they cannot go back to the device."""
        self.inactive_split.change(kind, blocks)
        self.inactive_split_bytes.change(kind, size)

    @property
    def allocated(self) -> int:
        return self.allocated_bytes.current[_BOTH]

    @property
    def reserved(self) -> int:
        return self.reserved_bytes.current[_BOTH]

    def reset_peak(self) -> None:
        for name in _STATS:
            getattr(self, name).reset_peak()

    def reset_accumulated(self) -> None:
        for name in _STATS:
            getattr(self, name).reset_accumulated()
        for name in _COUNTERS:
            setattr(self, name, 0)

    @property
    def peak_requested(self) -> int:
        return self.requested_bytes.peak[_BOTH]

    @property
    def peak_allocated(self) -> int:
        return self.allocated_bytes.peak[_BOTH]

    @property
    def peak_reserved(self) -> int:
        return self.reserved_bytes.peak[_BOTH]

    def as_dict(self) -> dict[str, int]:
        """Under the names of `torch.cuda.memory_stats()`."""
        figures: dict[str, int] = {}
        for name in _STATS:
            of_name = getattr(self, name).figures(name)
            if name.startswith("oversize"):
                # Only large blocks can be, so these have no pools.
                of_name = {key.replace(".all.", "."): value for key, value in of_name.items() if ".all." in key}
            figures |= of_name
        return figures | {name: getattr(self, name) for name in _COUNTERS}


_STATS = tuple(figure.name for figure in fields(Statistics) if figure.type == "Stat")
_COUNTERS = tuple(figure.name for figure in fields(Statistics) if figure.type == "int")


class Tally(Statistics):
    """Statistics reduced to the bytes that a replay needs of each malloc and free, which takes a third less time."""

    __slots__ = ()

    def handed_out(self, kind: int, size: int, requested: int) -> None:
        _raise(self.allocated_bytes, size)
        _raise(self.requested_bytes, requested)

    def freed(self, kind: int, size: int) -> None:
        self.allocated_bytes.current[_BOTH] -= size

    def free_completed(self, kind: int, size: int, requested: int) -> None:
        self.requested_bytes.current[_BOTH] -= requested

    def split_cached(self, kind: int, blocks: int, size: int) -> None:
        pass


def _raise(stat: Stat, amount: int) -> None:
    current = stat.current
    now = current[_BOTH] = current[_BOTH] + amount
    if now > stat.peak[_BOTH]:
        stat.peak[_BOTH] = now


def allocate_expandable(allocator: CachingAllocator, request: SegmentRequest) -> Block | None:
    """Return None if out of memory; pieces mapped before that stay mapped, as cached memory."""
    block = _find_run(allocator, request)
    if block is None:
        return None
    if not block.mapped:
        block = map_block(allocator, block, min(block.size, request.size))
    while block is not None and block.size < request.size:
        unmapped = block.next
        assert unmapped is not None
        block = map_block(allocator, unmapped, min(request.size - block.size, unmapped.size))
    if block is not None:
        block.pool.remove(block)
    return block


def _find_run(allocator: CachingAllocator, request: SegmentRequest) -> Block | None:
    """The lowest run of free and unmapped blocks that is long enough, else a new segment."""
    for unmapped in request.pool.unmapped.get(request.stream, []):
        before = unmapped.prev
        start = before if before is not None and not before.in_use else unmapped
        if _run_is_long_enough(start, request.size):
            return start
    page = SMALL_SEGMENT if request.pool.is_small else allocator.settings.large_segment_size
    reserve = allocator.settings.address_space(allocator.device.card_bytes)
    size = (reserve + page - 1) // page * page
    if size < request.size:
        return None
    address, size = allocator.device.reserve(size)
    segment = ExpandableSegment(address, size // page * page, page)
    if segment.size < request.size:
        return None
    return add_expandable(allocator, segment, request.stream, request.pool)


def add_expandable(allocator: CachingAllocator, segment: ExpandableSegment, stream: int, pool: BlockPool) -> Block:
    insort(allocator.expandable_begins, segment.address)
    block = allocator.segments[segment.address] = Block(segment.address, segment.size, stream, pool)
    block.mapped = False
    block.expandable = segment
    pool.owner.segments += 1
    pool.add_unmapped(block)
    return block


def _run_is_long_enough(start: Block, size: int) -> bool:
    run_bytes = 0
    for block in start.chain():
        if block.in_use:
            return False
        run_bytes += block.size
        if run_bytes >= size:
            return True
    return False


def map_block(allocator: CachingAllocator, block: Block, size: int) -> Block | None:
    """Puts whole pages behind the start of an unmapped block; the free block that comes of it."""
    segment, pool, address = block.expandable, block.pool, block.address
    assert segment is not None
    size = segment.pages_around(size)
    if not allocator.device.map(size):
        return None
    pool.remove_unmapped(block)
    if size < block.size:
        rest = block.cut(size)
        pool.add_unmapped(rest)
    block.mapped = True
    merged, _ = merge(block)
    pool.add(merged)
    allocator.statistics.reserved_bytes.increase(pool.kind, size)
    allocator.statistics.num_device_alloc += 1
    allocator.record(Action.SEGMENT_MAP, address, size, block.stream, pool.owner.id)
    return merged


def unmap_range(allocator: CachingAllocator, block: Block, first: int, last: int) -> None:
    pool = block.pool
    pool.remove(block)
    if block.address < first:
        before, block = block, block.cut(first - block.address)
        pool.add(before)
    if block.end > last:
        pool.add(block.cut(last - block.address))
    block.mapped = False
    merged, _ = merge(block)
    pool.add_unmapped(merged)
    allocator.device.unmap(last - first)
    allocator.statistics.reserved_bytes.decrease(pool.kind, last - first)
    allocator.statistics.num_device_free += 1
    allocator.record(Action.SEGMENT_UNMAP, first, last - first, block.stream, pool.owner.id)
    if not merged.is_split:
        # Nothing is mapped any more, so the address space goes back too.
        pool.remove_unmapped(merged)
        pool.owner.segments -= 1
        del allocator.segments[merged.address]


Rounding = Callable[[int], int]


def rounding(divisions: Sequence[int]) -> Rounding:
    """`round_size` under these divisions of each power of two."""
    if not any(division > 1 for division in divisions):
        return round_to_block
    table = tuple(divisions)

    def round_size(requested: int) -> int:
        divided = table[slot(requested)]
        if divided > 1 and requested > MIN_BLOCK * divided:
            return round_to_division(requested, divided)
        return round_to_block(requested)

    return round_size


def round_to_block(requested: int) -> int:
    return (requested + MIN_BLOCK - 1) & -MIN_BLOCK if requested > MIN_BLOCK else MIN_BLOCK


def slot(requested: int) -> int:
    return min(max(requested.bit_length() - 21, 0), SLOTS - 1)


def round_to_division(requested: int, divisions: int) -> int:
    """Up to the next of the equal steps between two powers of two."""
    power = 1 << (requested.bit_length() - 1)
    if power == requested:
        return requested
    step = power >> (divisions.bit_length() - 1)
    return (requested + step - 1) & -step if step else power << 1


def segment_size(rounded: int, large_segment: int = LARGE_SEGMENT) -> int:
    """Return the size to request from the device when no cached block serves a request of this rounded size."""
    if rounded <= SMALL_SIZE:
        return SMALL_SEGMENT
    if rounded < MIN_LARGE_ALLOC:
        return large_segment
    return (rounded + ROUND_LARGE - 1) & -ROUND_LARGE


def release_segment(allocator: CachingAllocator, block: Block) -> None:
    """A cached block that is a whole segment goes back."""
    pool, statistics, most = block.pool, allocator.statistics, allocator.settings.max_split_size
    statistics.num_device_free += 1
    allocator.record(Action.SEGMENT_FREE, block.address, block.size, block.stream, pool.owner.id)
    allocator.device.free(block.address, block.size)
    pool.owner.segments -= 1
    statistics.segment.decrease(pool.kind, 1)
    statistics.reserved_bytes.decrease(pool.kind, block.size)
    if most is not None and block.size >= most:
        statistics.oversize_segments.decrease(pool.kind, 1)
    pool.remove(block)
    del allocator.segments[block.address]


def collect_garbage(allocator: CachingAllocator) -> None:
    """Frees what has lain unused longest until reserved memory is below its threshold."""
    assert allocator.limit is not None
    threshold = int(allocator.settings.garbage_collection_threshold * allocator.limit)
    target = allocator.statistics.reserved - threshold
    pool = allocator.default_pool.large
    ages = {block: pool.age - block.age_at_insertion for block in pool.free_blocks() if not block.is_split}
    reclaimed, freed_any = 0, True
    while reclaimed < target and freed_any and ages:
        average = sum(ages.values()) / len(ages)
        old = [block for block, age in ages.items() if age >= average and block.expandable is None]
        # A pass is finished even beyond the target, so that the next one is not due at once.
        for block in old:
            del ages[block]
            reclaimed += block.size
            release_segment(allocator, block)
        freed_any = bool(old)


def release_enough(allocator: CachingAllocator, request: SegmentRequest) -> bool:
    """With `max_split_size` set: frees oversize blocks of the stream, only as many as the request needs."""
    least = allocator.settings.max_split_size
    free = request.pool.free.get(request.stream)
    if least is None or free is None:
        return False
    wanted = max(request.size, least)
    place = free.first_of_at_least(wanted)
    if place < len(free.blocks) and free.blocks[place].expandable is None:
        release_segment(allocator, free.blocks[place])
        return True
    released = 0
    for block in reversed(free.blocks[:place]):
        if released >= wanted or block.size < least:
            break
        if block.expandable is None:
            released += block.size
            release_segment(allocator, block)
    return released >= wanted


def release_cached(allocator: CachingAllocator) -> None:
    """`empty_cache`: waits for the other streams, then frees every whole segment and every whole page."""
    allocator.statistics.num_sync_all_streams += 1
    allocator.pending.synchronize()
    _release_blocks(allocator, allocator.default_pool.large)
    _release_blocks(allocator, allocator.default_pool.small)
    for pair in list(allocator.private_pools.values()):
        if pair.use_count:
            continue
        _release_blocks(allocator, pair.small)
        _release_blocks(allocator, pair.large)
        if not pair.segments:
            del allocator.private_pools[pair.id]


def _release_blocks(allocator: CachingAllocator, pool: BlockPool) -> None:
    blocks = pool.free_blocks()
    for block in blocks:
        if block.expandable is None and not block.is_split:
            release_segment(allocator, block)
    # Unmapping changes the lists, so it comes after them.
    for block in blocks:
        # Most free blocks are smaller than a page, and a recording may empty the cache at every other event.
        if block.expandable is not None and block.size >= block.expandable.page:
            # Whole pages inside go back; what is left at either side stays cached.
            first, last = block.expandable.whole_pages(block.address, block.end)
            if first < last:
                unmap_range(allocator, block, first, last)


class CachingAllocator:
    """One device's allocator. Sizes and addresses are bytes, streams are handles."""

    def __init__(
        self,
        settings: Settings | None = None,
        device: DeviceMemory | None = None,
        record: Record = unrecorded,
        statistics: Statistics | None = None,
    ) -> None:
        self.device = DeviceMemory() if device is None else device
        self.record = record
        self.statistics = Statistics() if statistics is None else statistics
        self.default_pool = PoolPair(DEFAULT_POOL)
        self.private_pools: dict[PoolId, PoolPair] = {}
        self.pending = PendingFrees(self.complete_free)
        self.segments: dict[int, Block] = {}
        """First block of each segment, by the segment's address."""
        self.expandable_begins: list[int] = []
        """Addresses of expandable segments in order, and those of some that are gone."""
        self.limit: int | None = None
        """Limit of reserved bytes, where the settings allow only a fraction of the card."""
        self.set_settings(Settings() if settings is None else settings)

    def set_settings(self, settings: Settings) -> None:
        """Change the settings like `torch.cuda.memory._set_allocator_settings`: existing blocks stay as they are."""
        self.settings = settings
        if settings.backend != "native":
            raise UsageError(
                f"backend:{settings.backend} is the driver's own allocator. PyTorch records no history of it, "
                "and where it places memory is not public; choose backend:native."
            )
        self.round_size = rounding(settings.roundup_power2_divisions)
        self._max_split = settings.max_split_size
        self._expandable = settings.expandable_segments
        fraction, total = settings.per_process_memory_fraction, self.device.total
        if fraction < 1 and total is None:
            raise UsageError("per_process_memory_fraction is a share of the card's memory: give the size of the card.")
        self.limit = None if fraction >= 1 or total is None else int(fraction * total)
        self.counts_age = self.limit is not None and settings.garbage_collection_threshold > 0

    def malloc(self, requested: int, stream: int = 0, pool: PoolId | None = None, *, search: bool = True) -> Block:
        """`requested` is at least 1: for zero bytes PyTorch hands out a null pointer before it comes here.

        Without `search` it goes on where nothing cached was found: PyTorch does not look again after the
        ladder has freed something, and a replay frees what the recording frees before it comes here.
        """
        if requested >= LARGEST_REQUEST:
            raise self._out_of_memory(requested, requested)
        if self.pending.blocks:
            self.pending.process()
        size = self.round_size(requested)
        blocks = self._pool_for(size, pool)
        block = self._take_cached(blocks, size, stream) if search else None
        if block is None:
            segment_bytes = segment_size(size, self.settings.large_segment_size)
            request = SegmentRequest(blocks, stream, requested, size, segment_bytes)
            block = self._take_new(request)
        return self._split_and_hand_out(block, size, requested)

    def would_serve(self, requested: int, stream: int, pool: PoolId) -> bool:
        """Return whether a cached block is large enough now."""
        size = self.round_size(requested)
        blocks = self._pool_for(size, pool)
        block = self._take_cached(blocks, size, stream)
        if block is not None:
            blocks.add(block)
        return block is not None

    def take_made(self, segment: Block, requested: int) -> Block:
        """Allocate the given segment's block: a replay that begins within a malloc knows its segment."""
        size = self.round_size(requested)
        segment.pool.remove(segment)
        return self._split_and_hand_out(segment, size, requested)

    def free(self, block: Block) -> None:
        self.request_free(block)
        if block.streams_used:
            self.pending.wait_for_streams(block)
        else:
            self.complete_free(block)

    def request_free(self, block: Block) -> None:
        """The program lets go; a stream may still read it until `complete_free`."""
        block.allocated = False
        self.statistics.freed(block.pool.kind, block.size)
        if self._max_split is not None and block.size >= self._max_split:
            self.statistics.oversize_allocations.decrease(block.pool.kind, 1)
        self.record(Action.FREE_REQUESTED, block.address, block.requested, block.stream, block.pool.owner.id)

    def complete_free(self, block: Block) -> None:
        """Merges the block with its free neighbours and caches what comes of it."""
        pool = block.pool
        self.record(Action.FREE_COMPLETED, block.address, block.requested, block.stream, pool.owner.id)
        self.statistics.free_completed(pool.kind, block.size, block.requested)
        block.in_use = False
        freed = block.size
        merged, merges = merge(block)
        if merged.expandable is None:
            if merged.is_split:
                self.statistics.split_cached(pool.kind, 1 - merges, freed)
            elif merges:
                self.statistics.split_cached(pool.kind, -merges, freed - merged.size)
        pool.add(merged)

    def record_stream(self, block: Block, stream: int) -> None:
        """Another stream uses it, so its free has to wait for that one."""
        if stream != block.stream:
            block.streams_used = (block.streams_used or set()) | {stream}

    def empty_cache(self) -> None:
        release_cached(self)

    def _pool_for(self, size: int, pool_id: PoolId | None) -> BlockPool:
        pair = self.default_pool if pool_id is None else self.pool(pool_id)
        return pair.small if size <= SMALL_SIZE else pair.large

    def pool(self, pool_id: PoolId) -> PoolPair:
        if pool_id == DEFAULT_POOL:
            return self.default_pool
        pair = self.private_pools.get(pool_id)
        if pair is None:
            pair = self.private_pools[pool_id] = PoolPair(pool_id)
        return pair

    def _take_cached(self, pool: BlockPool, size: int, stream: int) -> Block | None:
        """The smallest cached block of the stream that is large enough; lowest address among equals."""
        if self.counts_age:
            pool.age += 1
        free = pool.free.get(stream)
        if free is None:
            return None
        place = free.first_of_at_least(size)
        if place == len(free.blocks):
            return None
        block = free.blocks[place]
        if block.expandable is not None:
            place = place_among_expandable(free, place, self._expandable)
            if place == len(free.blocks):
                return None
            block = free.blocks[place]
        most = self._max_split
        if most is not None:
            rounding_up = self.settings.max_non_split_rounding_size
            if block.size >= (most if size < most else size + rounding_up):
                return None
        return free.take(place)

    def _take_new(self, request: SegmentRequest) -> Block:
        """The ladder. Each step costs more than the one before, and only the last gives up."""
        if self.counts_age:
            collect_garbage(self)
        block = self._allocate(request)
        if block is None and release_enough(self, request):
            block = self._allocate(request)
        if block is None:
            release_cached(self)
            self.statistics.num_alloc_retries += 1
            block = self._allocate(request)
        if block is None:
            self.statistics.num_ooms += 1
            self._record_out_of_memory(request)
            raise self._out_of_memory(request.requested, request.asked_of_device)
        return block

    def _allocate(self, request: SegmentRequest) -> Block | None:
        requested = request.asked_of_device
        # What a segment would take is tested even where only a page will be mapped.
        if self.limit is not None and self.statistics.reserved + requested > self.limit:
            if self.settings.throw_on_cudamalloc_oom:
                self.statistics.num_oom_rejections += 1
                self._record_out_of_memory(request)
                raise self._out_of_memory(request.requested, requested)
            return None
        if self._expandable:
            return allocate_expandable(self, request)
        address = self.device.malloc(requested)
        return None if address is None else self.add_segment(address, requested, request.stream, request.pool)

    def add_segment(self, address: int, size: int, stream: int, pool: BlockPool) -> Block:
        """One free block as large as the segment, not yet in any list."""
        block = self.segments[address] = Block(address, size, stream, pool)
        pool.owner.segments += 1
        self.statistics.segment.increase(pool.kind, 1)
        self.statistics.reserved_bytes.increase(pool.kind, size)
        if self._max_split is not None and size >= self._max_split:
            self.statistics.oversize_segments.increase(pool.kind, 1)
        self.statistics.num_device_alloc += 1
        self.record(Action.SEGMENT_ALLOC, address, size, stream, pool.owner.id)
        return block

    def _split_and_hand_out(self, block: Block, size: int, requested: int) -> Block:
        pool = block.pool
        was_split = block.is_split
        if self._should_split(block, size):
            rest = block.cut(size)
            pool.add(rest)
            if block.expandable is None:
                if was_split:
                    self.statistics.split_cached(pool.kind, 0, -size)
                else:
                    self.statistics.split_cached(pool.kind, 1, rest.size)
        elif was_split and block.expandable is None:
            self.statistics.split_cached(pool.kind, -1, -block.size)
        block.allocated = True
        block.in_use = True
        block.requested = requested
        self.record(Action.ALLOC, block.address, requested, block.stream, pool.owner.id)
        self.statistics.handed_out(pool.kind, block.size, requested)
        if self._max_split is not None and block.size >= self._max_split:
            self.statistics.oversize_allocations.increase(pool.kind, 1)
        return block

    def _should_split(self, block: Block, size: int) -> bool:
        rest = block.size - size
        if block.pool.is_small or self._expandable:
            return rest >= MIN_BLOCK
        return rest > SMALL_SIZE and (self._max_split is None or size < self._max_split)

    def _record_out_of_memory(self, request: SegmentRequest) -> None:
        # PyTorch puts what the driver calls free where other entries have an address.
        free = self.device.free_bytes
        self.record(Action.OOM, free, request.size, request.stream, request.pool.owner.id)

    def _out_of_memory(self, requested: int, segment_bytes: int) -> AllocationFailed:
        now = self.statistics
        return AllocationFailed(
            requested=requested, asked_of_device=segment_bytes, allocated=now.allocated, reserved=now.reserved
        )


def place_among_expandable(free: FreeList, place: int, expands: bool) -> int:
    """Best fit starts at a block of an expandable segment; the list's length says that nothing fits."""
    blocks = free.blocks
    if not expands:
        # Expandable segments were switched off: blocks in existing ones are not used.
        place += 1
        while place < len(blocks) and blocks[place].expandable is not None:
            place += 1
        return place
    # A block at the growing end counts as large as it can become, so that it is used last.
    while (
        blocks[place].expandable is not None
        and place + 1 < len(blocks)
        and _size_when_grown(blocks[place + 1]) < _size_when_grown(blocks[place])
    ):
        place += 1
    return place


def _size_when_grown(block: Block) -> int:
    after = block.next
    return block.size + (after.size if after is not None and not after.mapped else 0)
