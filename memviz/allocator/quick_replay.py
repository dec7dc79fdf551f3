"""The events of a replay in half the time.

Nearly all events ask for a block that the cache serves at once, or free one at once. Those two are done here with as
few calls as Python allows; every other event goes to the model, step by step. A test holds that both give the same.
An event served from the cache is three numbers, because the recording has the rest of its entry in the history.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Any

import numpy as np

from memviz.allocator.blocks import ADDRESS_BITS, Block, PoolId, merge
from memviz.allocator.caching import place_among_expandable
from memviz.allocator.history import ModelHistory
from memviz.allocator.recorded_requests import ReplayStep
from memviz.allocator.replayer import CHUNK, RequestReplay, Source
from memviz.allocator.start_layout import unsigned
from memviz.allocator.state import unrecorded
from memviz.trace.model import Action, Ints8
from memviz.trace.rounding import MIN_BLOCK, SMALL_SIZE, round_sizes

_FEW = 16
"""Below it, entry by entry is quicker than setting up the columns."""


class CacheHits:
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
            self._write_each()
        self.events.clear()
        self.requests.clear()
        self.addresses.clear()

    def _write_each(self) -> None:
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


def run_quickly(replay: RequestReplay, begin: int, end: int) -> None:
    """`replay.run_events` where the age of blocks does not count."""
    quick = _Quick(replay)
    for chunk in _chunks(replay, begin, end):
        quick.run(chunk)


def _chunks(replay: RequestReplay, begin: int, end: int) -> Iterator[Iterator[tuple[Any, ...]]]:
    source = replay.source
    events, steps, pools = source.device.events, source.steps.step, source.pools
    names, addresses = source.trace.pools, unsigned(events.address)
    divisions = replay.settings.roundup_power2_divisions
    for first in range(begin, end, CHUNK):
        if replay.progress:
            replay.progress(first, len(events))
        part = first + np.flatnonzero(steps[first : min(first + CHUNK, end)])
        requested: Ints8 = events.size[part]
        sizes = round_sizes(requested, divisions)
        columns = (part, steps[part], addresses[part], requested, sizes, events.stream[part], pools[part])
        *rows, pool = (column.tolist() for column in columns)
        yield zip(*rows, [names[code] for code in pool], strict=True)


class _Quick:
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
        self.served = CacheHits(replay.source, replay.history)

    def run(self, events: Iterator[tuple[Any, ...]]) -> None:
        history, handlers, live, served = self.replay.history, self.handlers, self.replay.live, self.served
        take, waiting, is_recorded = self._take, self.allocator.pending.blocks, self.is_recorded
        grown, after_ladder = self.replay.grown, self.replay.after_ladder
        note_event, note_request = served.events.append, served.requests.append
        note_address = served.addresses.append
        there, there_most, asked, asked_most = self._counts()
        for event, step, address, requested, size, stream, pool in events:
            if step == _FREE:
                block = live.get(address)
                if block is not None and block.allocated:
                    del live[address]
                    there -= block.size
                    asked -= block.requested
                    if is_recorded:
                        served.add_free(event, block)
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
            served.write()
            history.now = event
            handlers[step](event, address, requested, stream, pool)
            there, there_most, asked, asked_most = self._counts()
        self._count(there, there_most, asked, asked_most)
        served.write()

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
