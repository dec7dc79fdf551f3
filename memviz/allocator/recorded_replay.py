"""The replay under the recorded settings and addresses, which must agree with the recording."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from memviz.allocator.blocks import AllocationFailed, AscendingAddresses, Block, DeviceMemory, ExpandableSegment, PoolId
from memviz.allocator.caching import add_expandable, map_block, release_segment, segment_size, unmap_range
from memviz.allocator.event_replay import Progress, RequestReplay
from memviz.allocator.recorded_requests import ReplayStep, Source
from memviz.allocator.replay_result import Agreement, Mismatch, RanOut, Replayed
from memviz.allocator.start_layout import FIRST_START_CAUSE, AddressSpaces, lay_out_as_recorded, unsigned
from memviz.trace.model import Action
from memviz.trace.reserved import MIN_BLOCK, SMALL_SEGMENT, SMALL_SIZE

Entry = tuple[int, int, int]
"""Action, address and size."""

_BEYOND_REAL_ADDRESSES = 1 << 62


class RecordedDevice(DeviceMemory):
    """Device memory at recorded addresses; a request without a recorded segment gets an address that no device has."""

    def __init__(self, spaces: AddressSpaces, memory: int | None = None, *, total: int | None = None) -> None:
        super().__init__(memory, total=total, addresses=AscendingAddresses(_BEYOND_REAL_ADDRESSES))
        self._spaces = spaces
        self._offered: deque[Entry] = deque()

    def offer(self, entries: Iterable[Entry]) -> None:
        """The new segments and pages that the recording has for the malloc to come."""
        self._offered = deque(entries)

    def malloc(self, size: int) -> int | None:
        if self._offered and self._offered[0][0] == Action.SEGMENT_ALLOC and self._offered[0][2] == size:
            return self._offered.popleft()[1] if self.map(size) else None
        return super().malloc(size)

    def reserve(self, size: int) -> tuple[int, int]:
        """A segment that expands begins with the first page mapped in it, and ends where the next one begins."""
        if self._offered and self._offered[0][0] == Action.SEGMENT_MAP:
            address = self._offered[0][1]
            return address, self._spaces.size(address, size)
        return super().reserve(size)


_ALREADY_THERE = "The file allocates a segment or maps pages where earlier events have some already."
_IMPOSSIBLE = "PyTorch refuses a request this large: it exceeds the address space or any real memory."


class HiddenRest(Exception):
    """A block that was there before the first event must have been larger than its request shows."""

    def __init__(self, event: int, address: int, size: int) -> None:
        self.event, self.address, self.size = event, address, size


def replay_as_recorded(source: Source, progress: Progress | None = None) -> Replayed:
    """Restarts while the first mismatch gives new information on the memory before the first event."""
    sizes: dict[int, int] = {}
    furthest = -1
    for _ in range(32):
        try:
            return RecordedReplay(source, may_restart=True).result(progress)
        except HiddenRest as hint:
            if hint.event < furthest:
                # The last hint led nowhere.
                break
            furthest = hint.event
            sizes[hint.address] = hint.size
            source.set_start_sizes(sizes)
    source.set_start_sizes({})
    return RecordedReplay(source).result(progress)


def ensure_replayed(source: Source) -> Source:
    """Return the source, which was replayed as recorded at least once."""
    if source.is_exact is None:
        replay_as_recorded(source)
    return source


class RecordedReplay(RequestReplay):
    lands_as_recorded = True

    def __init__(self, source: Source, *, may_restart: bool = False) -> None:
        self.may_restart = may_restart
        # Limits and thresholds act through what the file gives back.
        unlimited = replace(source.recorded, garbage_collection_threshold=0.0, per_process_memory_fraction=1.0)
        self.recording = RecordedDevice(source.spaces)
        super().__init__(source, unlimited, self.recording)
        grown = source.steps.grown.nonzero()[0]
        self.grown = dict(zip(grown.tolist(), source.steps.grown[grown].tolist(), strict=True))
        self.after_ladder: dict[int, bool] = {}
        self.unneeded_releases: set[int] = set()
        failed = source.steps.out_of_memory
        self.malloc_after = {
            step.first: step.malloc for step in source.steps.before_mallocs if step.malloc not in failed
        }
        self.missing_completions = ""
        streams = len(np.unique(source.device.events.stream))
        if streams > 1 and (source.steps.step == ReplayStep.LET_GO).any():
            which = f"it does not say which of its {streams} streams waited"
            self.missing_completions = f" The completion of frees was not recorded: {which}."
        self.mismatches = 0
        self.first: Mismatch | None = None

    def result(self, progress: Progress | None = None) -> Replayed:
        self.progress = progress
        self.live = lay_out_as_recorded(self.allocator, self.source.layout, self.source.spaces)
        self.allocator.statistics.reset_peak()
        self.allocator.record = self.history.add
        self.run()
        reserved, ours = int(self.source.device.segments.size.sum()), self.allocator.statistics.reserved
        if reserved != ours and self.first is None:
            why = "The final segments contradict the file's own events."
            count = len(self.source.device.events)
            self.first = Mismatch(count, f"{reserved} bytes reserved", f"{ours} bytes reserved", why)
        self.settings = self.source.recorded
        self.source.set_agreement(self.unneeded_releases, is_exact=self.first is None)
        return self.finished(Agreement(self.mismatches, self.first), self.source.releases.retries)

    def malloc(self, event: int, address: int, size: int, stream: int, pool: PoolId) -> None:
        if address in self.live:
            self.free_what_is_there(address)
        mark, grown = len(self.history), self.grown.get(event, 0)
        if grown:
            there = self.allocator.segments
            self.recording.offer(piece for piece in self._entries_of(event - grown, event) if piece[1] not in there)
        try:
            block = self._cut_off(event, address, size, stream, pool) or self.allocator.malloc(
                size, stream, pool, search=self.after_ladder.pop(event, True)
            )
        except AllocationFailed:
            self.mismatches += 1
            return self._note(event, self._entries_of(event - grown, event + 1), [], _IMPOSSIBLE)
        block.cause = event
        self.live[address] = block
        if grown or block.address != address or len(self.history) != mark + 1:
            self.recording.offer(())
            self.mismatches += block.address != address
            recorded, ours = self._entries_of(event - grown, event + 1), self.history.entries(mark)
            if recorded == ours:
                self.history.set_causes(mark, range(event - grown, event))
            else:
                self._check_hidden_rest(event, block)
                self._note(event, recorded, ours, _mismatch_reason(recorded, ours) + self.missing_completions)

    def _cut_off(self, event: int, address: int, size: int, stream: int, pool: PoolId) -> Block | None:
        """Take the segment made for a malloc at which the history begins; it looks like one that was cached before.

        `max_split_size` forbids large blocks of the cache to small requests, but not what was made for them.
        """
        if event or self.settings.max_split_size is None or self.allocator.would_serve(size, stream, pool):
            return None
        made = self.allocator.segments.get(address)
        rounded = self.allocator.round_size(size)
        if made is None or made.in_use or made.is_split or made.expandable is not None or made.stream != stream:
            return None
        whole = made.size == segment_size(rounded, self.settings.large_segment_size)
        return self.allocator.take_made(made, size) if whole and made.pool.owner.id == pool else None

    def complete_free(self, event: int, address: int, size: int, stream: int, pool: PoolId) -> None:
        self._enter_ladder(event)
        super().complete_free(event, address, size, stream, pool)

    def _enter_ladder(self, event: int) -> None:
        """Note whether the cache could serve a malloc before the malloc's ladder frees something."""
        malloc = self.source.steps.ladders.get(event)
        if malloc is not None:
            self.after_ladder[malloc] = self._would_serve(malloc)
            if self.source.steps.waited:
                self._note_need(malloc)
        # Where no free ever waits, one just before a release was complete before it.
        if event in self.malloc_after and not self.source.steps.waited:
            self._note_need(self.malloc_after[event])

    def _note_need(self, malloc: int) -> None:
        if self.first is None and self._would_serve(malloc):
            self.unneeded_releases.add(malloc)

    def _would_serve(self, malloc: int) -> bool:
        events, trace = self.source.device.events, self.source.trace
        size, stream = int(events.size[malloc]), int(events.stream[malloc])
        return self.allocator.would_serve(size, stream, trace.pools[int(self.source.pools[malloc])])

    def _entries_of(self, first: int, last: int) -> list[Entry]:
        events = self.source.device.events
        columns = (events.action, unsigned(events.address), events.size)
        return list(zip(*(column[first:last].tolist() for column in columns), strict=True))

    def _check_hidden_rest(self, event: int, block: Block) -> None:
        """Restart if the model used free memory after a block of unknown size that the recording did not use."""
        before = block.prev
        if not self.may_restart or self.first or before is None or before.cause > FIRST_START_CAUSE:
            return
        at_start = self.source.layout.blocks[FIRST_START_CAUSE - before.cause]
        after = block.next
        free = block.size + (after.size if after is not None and not after.in_use else 0)
        size = before.size + free - self.allocator.round_size(block.requested) + MIN_BLOCK
        rest = size - self.allocator.round_size(before.requested)
        if not at_start.size_is_exact and not block.pool.is_small and block.expandable is None and rest <= SMALL_SIZE:
            raise HiddenRest(event, before.address, size)

    def _note(self, event: int, recorded: list[Entry], ours: list[Entry], why: str) -> None:
        if self.first is None:
            self.first = Mismatch(event, _entries_text(recorded), _entries_text(ours), why)

    def release(self, event: int, address: int, size: int, stream: int, pool: PoolId) -> None:
        self._enter_ladder(event)
        pair = self.allocator.pool(pool)
        if self.source.device.events.action[event] == Action.SEGMENT_UNMAP:
            block = self._containing(address)
            if block and block.mapped and not block.in_use and address + size <= block.end:
                return unmap_range(self.allocator, block, address, address + size)
        else:
            free = (pair.small if size == SMALL_SEGMENT else pair.large).free.get(stream)
            free_block = free.find(address, size) if free else None
            if free_block and not free_block.is_split and free_block.expandable is None:
                return release_segment(self.allocator, free_block)
        why = "The file releases memory that is in use or missing in earlier events."
        return self._note(event, self._entries_of(event, event + 1), [], why)

    def grow(self, event: int, address: int, size: int, stream: int, pool: PoolId) -> None:
        self._enter_ladder(event)
        # A number of numpy's looks for arrays in what it is compared with, which takes an enum long.
        is_map = int(self.source.device.events.action[event]) == Action.SEGMENT_MAP
        large = size % self.settings.large_segment_size == 0 if is_map else size != SMALL_SEGMENT
        pair = self.allocator.pool(pool)
        blocks = pair.large if large else pair.small
        if not is_map:
            if address in self.allocator.segments:
                return self._note(event, self._entries_of(event, event + 1), [], _ALREADY_THERE)
            self.device.map(size)
            blocks.add(self.allocator.add_segment(address, size, stream, blocks))
            return
        block = self._containing(address)
        if block is None:
            page = self.settings.large_segment_size if large else SMALL_SEGMENT
            reserve = self.settings.address_space(self.device.card_bytes)
            space = self.source.spaces.size(address, reserve) // page * page
            if address in self.allocator.segments or space < size:
                return self._note(event, self._entries_of(event, event + 1), [], _ALREADY_THERE)
            block = add_expandable(self.allocator, ExpandableSegment(address, space, page), stream, blocks)
        if block.mapped or block.address != address or size > block.size:
            return self._note(event, self._entries_of(event, event + 1), [], _ALREADY_THERE)
        map_block(self.allocator, block, size)

    def _containing(self, address: int) -> Block | None:
        """Return the block of an expandable segment that holds the address; segments that are gone are forgotten."""
        begins = self.allocator.expandable_begins
        before = bisect_right(begins, address)
        while before:
            first = self.allocator.segments.get(begins[before - 1])
            if first is not None and first.expandable is not None:
                return next((block for block in first.chain() if block.end > address), None)
            before -= 1
            del begins[before]
        return None

    def out_of_memory(self, event: int, address: int, size: int, stream: int, pool: PoolId) -> None:
        self.history.add(Action.OOM, address, size, stream, pool)
        self.allocator.statistics.num_ooms += 1
        now = self.allocator.statistics
        if self.oom is None:
            requested = segment_size(self.allocator.round_size(size), self.settings.large_segment_size)
            self.oom = RanOut(event, size, requested, now.allocated, now.reserved)


def _mismatch_reason(recorded: list[Entry], ours: list[Entry]) -> str:
    theirs_new, our_new = recorded[:-1], ours[:-1]
    if theirs_new and not our_new:
        return "The file allocates a new segment here although a free block would have fitted."
    if our_new and not theirs_new:
        return "No free block is large enough, yet the file allocates no new segment here."
    if [size for _, _, size in theirs_new] != [size for _, _, size in our_new]:
        return "The file allocates a new segment of another size than the recorded settings imply."
    return "The file uses another block than the best fit among the free ones."


def _entries_text(entries: list[Entry]) -> str:
    return ", ".join(f"{Action(action).name.lower()} of {size} at 0x{address:x}" for action, address, size in entries)
