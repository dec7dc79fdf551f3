"""Replay of a recording's events, one after the other: the parts that all kinds of replay share.

Nearly all events ask for a block that the cache serves at once, or free one at once. Those two are done in `_CacheHits`
with as few calls as Python allows; every other event goes to the model, step by step. A test holds that both give the
same. An event served from the cache is three numbers, because the recording has the rest of its entry in the history.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from memviz.allocator.blocks import ADDRESS_BITS, Block, DeviceMemory, PoolId, merge, unrecorded
from memviz.allocator.caching import CachingAllocator, Tally, place_among_expandable
from memviz.allocator.history import ModelHistory, described, replayed_trace
from memviz.allocator.recorded_requests import ReplayStep, Source
from memviz.allocator.replay_result import Agreement, Figures, RanOut, Replayed, replay_notes
from memviz.allocator.settings import Settings
from memviz.allocator.start_layout import unsigned
from memviz.trace.model import Action, Ints8
from memviz.trace.rounding import MIN_BLOCK, SMALL_SIZE, round_sizes

CHUNK = 1 << 11
"""Events that are turned into Python numbers at a time. So often it is asked whether the replay is to go on: in a
recording that is made for it, a single event can take milliseconds."""

Progress = Callable[[int, int], None]
"""Told how many events are done, and of how many. What it raises ends the replay."""


def part_of(progress: Progress | None, number: int, count: int) -> Progress | None:
    """Return the progress of one of `count` replays of equal length, numbered from 0."""
    tell = progress
    return None if tell is None else lambda done, total: tell(number * total + done, count * total)


def rest_of(progress: Progress | None, first: int, count: int) -> Progress | None:
    """Return the joint progress of the parts from `first` on, of `count` parts of equal length."""
    tell = progress
    return None if tell is None else lambda done, total: tell(first * total + (count - first) * done, count * total)


Handler = Callable[[int, int, int, int, PoolId], None]


class RequestReplay(ABC):
    """Event by event. Recorded addresses only name blocks; where the model put them is its own affair."""

    starts_afresh = False
    """True if blocks live before the first event are placed anew."""
    progress: Progress | None = None
    lands_as_recorded = False
    """True if a block at another address than in the recording is worth a note."""
    grown: Mapping[int, int] = {}
    """For each malloc, how many events just before it made memory for it."""
    after_ladder: Mapping[int, bool] = {}
    """For each malloc that memory was freed for, whether something cached would have served it before."""

    def __init__(self, source: Source, settings: Settings, device: DeviceMemory) -> None:
        self.source = source
        self.settings = settings
        self.device = device
        self.history = ModelHistory()
        self.allocator = CachingAllocator(settings, device, statistics=Tally())
        self.live: dict[int, Block] = {}
        self.oom: RanOut | None = None

    def run(self) -> None:
        self.run_events(0, len(self.source.device.events))

    def run_events(self, begin: int, end: int) -> None:
        # The quick way tells what it serves to the history alone, and knows no ages.
        is_told_to_others = self.allocator.record not in (self.history.add, unrecorded)
        if self.allocator.counts_age or is_told_to_others:
            handlers = self.handlers()
            for chunk in self._chunks(begin, end):
                for event, step, address, requested, _, stream, pool in chunk:
                    self.history.now = event
                    handlers[step](event, address, requested, stream, pool)
            return
        quick = _QuickReplay(self)
        for chunk in self._chunks(begin, end):
            quick.run(chunk)

    def _chunks(self, begin: int, end: int) -> Iterator[Iterator[tuple[Any, ...]]]:
        """Yield event, step, address, requested size, rounded size, stream and pool."""
        events, steps, pools = self.source.device.events, self.source.steps.step, self.source.pools
        names, addresses = self.source.trace.pools, unsigned(events.address)
        for first in range(begin, end, CHUNK):
            if self.progress:
                self.progress(first, len(events))
            part = first + np.flatnonzero(steps[first : min(first + CHUNK, end)])
            requested: Ints8 = events.size[part]
            sizes = round_sizes(requested, self.settings.roundup_power2_divisions)
            columns = (part, steps[part], addresses[part], requested, sizes, events.stream[part], pools[part])
            *rows, pool = (column.tolist() for column in columns)
            yield zip(*rows, [names[code] for code in pool], strict=True)

    def handlers(self) -> list[Handler]:
        """One for each step, by its number."""
        return [getattr(self, step.name.lower(), self.copy) for step in ReplayStep]

    @abstractmethod
    def malloc(self, event: int, address: int, size: int, stream: int, pool: PoolId) -> None: ...

    @abstractmethod
    def release(self, event: int, address: int, size: int, stream: int, pool: PoolId) -> None: ...

    @abstractmethod
    def grow(self, event: int, address: int, size: int, stream: int, pool: PoolId) -> None: ...

    @abstractmethod
    def out_of_memory(self, event: int, address: int, size: int, stream: int, pool: PoolId) -> None: ...

    def free(self, event: int, address: int, size: int, stream: int, pool: PoolId) -> None:
        block = self.live.get(address)
        if block is not None and block.allocated:
            del self.live[address]
            self.allocator.request_free(block)
            self.history.now = event + 1
            self.allocator.complete_free(block)

    def request_free(self, event: int, address: int, size: int, stream: int, pool: PoolId) -> None:
        block = self.live.get(address)
        if block is not None and block.allocated:
            self.allocator.request_free(block)
            self.allocator.pending.hold(block)

    def complete_free(self, event: int, address: int, size: int, stream: int, pool: PoolId) -> None:
        block = self.live.pop(address, None)
        if block is None:
            return
        if block.allocated:
            with self._unwritten():
                self.allocator.request_free(block)
            self.allocator.complete_free(block)
        elif block in self.allocator.pending.blocks:
            self.allocator.pending.complete(block)

    def let_go(self, event: int, address: int, size: int, stream: int, pool: PoolId) -> None:
        block = self.live.get(address)
        if block is not None and block.allocated:
            del self.live[address]
            self.allocator.request_free(block)
            with self._unwritten():
                self.allocator.complete_free(block)

    @contextmanager
    def _unwritten(self) -> Iterator[None]:
        """Record no entries here that the file leaves out, so that both read the same way."""
        self.allocator.record, record = unrecorded, self.allocator.record
        yield
        self.allocator.record = record

    def copy(self, event: int, address: int, size: int, stream: int, pool: PoolId) -> None:
        action = Action(int(self.source.device.events.action[event]))
        self.history.add(action, address, size, stream, pool)

    def annotate(self, event: int, address: int, size: int, stream: int, pool: PoolId) -> None:
        block = self.live.get(address)
        self.history.add(Action.ANNOTATE, block.address if block else address, size, stream, pool)

    def free_what_is_there(self, address: int) -> None:
        """The address is handed out again, so its free is missing in the file."""
        self.complete_free(self.history.now, address, 0, 0, (0, 0))

    def figures(self, retries: int) -> Figures:
        now = self.allocator.statistics
        return Figures(
            settings=self.settings,
            memory=self.device.memory,
            peak_requested_bytes=now.peak_requested,
            peak_allocated_bytes=now.peak_allocated,
            peak_reserved_bytes=now.peak_reserved,
            reserved_end_bytes=now.reserved,
            retries=retries,
            oom=self.oom,
        )

    def finished(self, agreement: Agreement | None, retries: int) -> Replayed:
        source = self.source
        notes = replay_notes(source, self.settings, agreement, afresh=self.starts_afresh)
        trace = replayed_trace(source.trace, source.device, source.layout, self.allocator, self.history)
        return Replayed(
            **vars(self.figures(retries)),
            trace=described(trace, self.settings, self.device.memory, notes),
            sources=self.history.causes(),
            agreement=agreement,
            waiting_at_start_bytes=source.layout.waiting_bytes,
            is_placed_anew=self.starts_afresh and bool(source.layout.segments),
        )


_FEW = 16
"""Below it, entry by entry is quicker than setting up the columns."""


class _CacheHits:
    __slots__ = ("_events", "_history", "_requests", "_source", "addresses", "events", "requests")

    def __init__(self, source: Source, history: ModelHistory) -> None:
        self._source = source
        self._history = history
        self.events: list[int] = []
        """The event; of a free less than zero, as Python's `~` makes it."""
        self.requests: list[int] = []
        """The event that the block was handed out for: the same one, but for a free."""
        self.addresses: list[int] = []

    def add_free(self, event: int, block: Block) -> None:
        if block.cause < 0:
            # It was there before the first event, so no request of the recording says what it is.
            self.write()
            self._history.add_free(event, block)
            return
        self.events.append(~event)
        self.requests.append(block.cause)
        self.addresses.append(block.address)

    def write(self) -> None:
        """Into the history, whose entries stand in order: before anybody else writes there or reads it."""
        if len(self.events) >= _FEW:
            self._write_columns()
        elif self.events:
            add, history, recorded = self._history.add, self._history, self._source.device.events
            pools, codes = self._source.trace.pools, self._source.pools
            for event, request, address in zip(self.events, self.requests, self.addresses, strict=True):
                size, stream, pool = int(recorded.size[request]), int(recorded.stream[request]), pools[codes[request]]
                if event >= 0:
                    history.now = event
                    add(Action.ALLOC, address, size, stream, pool)
                else:
                    history.now = ~event
                    add(Action.FREE_REQUESTED, address, size, stream, pool)
                    history.now = ~event + 1
                    add(Action.FREE_COMPLETED, address, size, stream, pool)
        self.events.clear()
        self.requests.clear()
        self.addresses.clear()

    def _write_columns(self) -> None:
        recorded, pools = self._source.device.events, self._source.trace.pools
        event: Ints8 = np.array(self.events, dtype=np.int64)
        is_free = event < 0
        row = np.repeat(np.arange(len(event)), is_free + 1)
        is_second = np.zeros(len(row), dtype=np.bool_)
        is_second[1:] = row[1:] == row[:-1]
        action = np.where(is_free[row], np.where(is_second, Action.FREE_COMPLETED, Action.FREE_REQUESTED), Action.ALLOC)
        request = np.array(self.requests, dtype=np.int64)[row]
        self._history.add_columns(
            action=action.astype(np.uint8),
            address=np.array(self.addresses, dtype=np.uint64)[row],
            size=recorded.size[request].astype(np.int64),
            stream=recorded.stream[request].astype(np.uint64),
            pool=[pools[code] for code in self._source.pools[request].tolist()],
            cause=np.where(is_free, ~event, event)[row] + is_second,
        )


_MALLOC, _FREE = int(ReplayStep.MALLOC), int(ReplayStep.FREE)


class _QuickReplay:
    def __init__(self, replay: RequestReplay) -> None:
        self.replay = replay
        self.handlers = replay.handlers()
        self.allocator = replay.allocator
        settings = replay.settings
        self.expands = settings.expandable_segments
        self.most = settings.max_split_size
        self.rounding_up = settings.max_non_split_rounding_size
        self.is_recorded = self.allocator.record is not unrecorded
        self.lands_as_recorded = replay.lands_as_recorded
        self.hits = _CacheHits(replay.source, replay.history)

    def run(self, events: Iterator[tuple[Any, ...]]) -> None:
        history, handlers, live, hits = self.replay.history, self.handlers, self.replay.live, self.hits
        take, waiting, is_recorded = self._take, self.allocator.pending.blocks, self.is_recorded
        grown, after_ladder = self.replay.grown, self.replay.after_ladder
        note_event, note_request = hits.events.append, hits.requests.append
        note_address = hits.addresses.append
        there, there_most, asked, asked_most = self._counts()
        for event, step, address, requested, size, stream, pool in events:
            if step == _FREE:
                block = live.get(address)
                if block is not None and block.allocated:
                    del live[address]
                    there -= block.size
                    asked -= block.requested
                    if is_recorded:
                        hits.add_free(event, block)
                    _give_back(block)
                continue
            if (
                step == _MALLOC
                and event
                and not waiting
                and address not in live
                and event not in grown
                and event not in after_ladder
            ):
                block = take(size, stream, pool, address)
                if block is not None:
                    if is_recorded:
                        note_event(event)
                        note_request(event)
                        note_address(block.address)
                    block.requested, block.cause = requested, event
                    live[address] = block
                    there += block.size
                    if there > there_most:
                        there_most = there
                    asked += requested
                    if asked > asked_most:
                        asked_most = asked
                    continue
            self._count(there, there_most, asked, asked_most)
            hits.write()
            history.now = event
            handlers[step](event, address, requested, stream, pool)
            there, there_most, asked, asked_most = self._counts()
        self._count(there, there_most, asked, asked_most)
        hits.write()

    def _counts(self) -> tuple[int, int, int, int]:
        """Return allocated and requested bytes, each now and at peak; the model's steps count them too."""
        there, asked = self.allocator.statistics.allocated_bytes, self.allocator.statistics.requested_bytes
        return there.current[0], there.peak[0], asked.current[0], asked.peak[0]

    def _count(self, there: int, there_most: int, asked: int, asked_most: int) -> None:
        statistics = self.allocator.statistics
        statistics.allocated_bytes.current[0], statistics.allocated_bytes.peak[0] = there, there_most
        statistics.requested_bytes.current[0], statistics.requested_bytes.peak[0] = asked, asked_most

    def _take(self, size: int, stream: int, pool_id: PoolId, address: int) -> Block | None:
        """`CachingAllocator.malloc` where the cache has a block; None where it has none, and nothing has changed.

        Where the recording disagrees nothing is done either: the replay has more to say about that.
        """
        pair = self.allocator.pool(pool_id)
        pool = pair.small if size <= SMALL_SIZE else pair.large
        free = pool.free.get(stream)
        if free is None:
            return None
        keys, blocks = free.keys, free.blocks
        place = bisect_left(keys, size << ADDRESS_BITS)
        if place == len(keys):
            return None
        block = blocks[place]
        if block.expandable is not None:
            place = place_among_expandable(free, place, self.expands)
            if place == len(keys):
                return None
            block = blocks[place]
        rest, most = block.size - size, self.most
        if most is not None and block.size >= (most if size < most else size + self.rounding_up):
            return None
        if self.lands_as_recorded and block.address != address:
            return None
        del keys[place], blocks[place]
        if rest >= MIN_BLOCK if pool.is_small or self.expands else rest > SMALL_SIZE and (most is None or size < most):
            cut = block.cut(size)
            key = rest << ADDRESS_BITS | cut.address
            # The rest is smaller than the block was, so it comes before its place.
            place = bisect_left(keys, key, 0, place)
            keys.insert(place, key)
            blocks.insert(place, cut)
        block.allocated = block.in_use = True
        return block


def _give_back(block: Block) -> None:
    """`request_free` and `complete_free` of an allocator that records nothing."""
    block.allocated = block.in_use = False
    free = block.pool.free.get(block.stream)
    if free is None:
        block.pool.add(merge(block)[0])
        return
    keys, blocks = free.keys, free.blocks
    after, before = block.next, block.prev
    if after is not None and not after.in_use and after.mapped:
        place = bisect_left(keys, after.size << ADDRESS_BITS | after.address)
        del keys[place], blocks[place]
        block.absorb_next()
    if before is not None and not before.in_use and before.mapped:
        place = bisect_left(keys, before.size << ADDRESS_BITS | before.address)
        del keys[place], blocks[place]
        before.absorb_next()
        block = before
    key = block.size << ADDRESS_BITS | block.address
    place = bisect_left(keys, key)
    keys.insert(place, key)
    blocks.insert(place, block)
