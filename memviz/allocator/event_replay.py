"""Replay of a recording's events, one after the other: the parts that all kinds of replay share.

Nearly all events ask for a block that the cache serves at once, or free one at once. Those two are done in `_CacheHits`
with as few calls as Python allows; every other event goes to the model, step by step. A test holds that both give the
same. An event served from the cache is three numbers, because the recording has the rest of its entry in the history.
The model's history and final state come out as columns and as a Trace, so that every view works on a replay.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np

from memviz.allocator.blocks import ADDRESS_BITS, Block, DeviceMemory, PoolId, merge, unrecorded
from memviz.allocator.caching import CachingAllocator, Tally, place_among_expandable
from memviz.allocator.recorded_requests import ReplayStep, Source
from memviz.allocator.replay_result import Agreement, Figures, RanOut, Replayed, replay_notes
from memviz.allocator.settings import Settings
from memviz.allocator.start_layout import FIRST_START_CAUSE, StartLayout, unsigned
from memviz.trace.collect import joined_events
from memviz.trace.memviz_labels import CARD_FACT
from memviz.trace.model import (
    NO_STACK,
    About,
    Action,
    Blocks,
    DeviceTrace,
    Events,
    Ints8,
    Labels,
    Note,
    Rows,
    Segments,
    State,
    TakenOver,
    Trace,
    first_or_second,
    take_rows,
)
from memviz.trace.reserved import MIN_BLOCK, SMALL_SIZE, round_sizes


class ModelHistory:
    """Grows by one entry a call of `add`, which is what an allocator's `record` wants."""

    __slots__ = ("action", "address", "cause", "now", "pool", "size", "stream")

    def __init__(self) -> None:
        self.action = array("B")
        self.address = array("Q")
        self.size = array("q")
        self.stream = array("Q")
        self.pool: list[PoolId] = []
        self.cause = array("q")
        self.now = -1
        """The recorded event that is being replayed; every entry remembers it as its cause."""

    def __len__(self) -> int:
        return len(self.action)

    def add(self, action: Action, address: int, size: int, stream: int, pool: PoolId) -> None:
        self.action.append(action)
        self.address.append(address)
        self.size.append(size)
        self.stream.append(stream)
        self.pool.append(pool)
        self.cause.append(self.now)

    def add_free(self, event: int, address: int, size: int, stream: int, pool: PoolId) -> None:
        """Requested, and complete with the next event."""
        self.now = event
        self.add(Action.FREE_REQUESTED, address, size, stream, pool)
        self.now = event + 1
        self.add(Action.FREE_COMPLETED, address, size, stream, pool)

    def entries(self, first: int) -> list[tuple[int, int, int]]:
        """Action, address and size of the entries from `first` on."""
        return list(zip(self.action[first:], self.address[first:], self.size[first:], strict=True))

    def set_causes(self, first: int, events: range) -> None:
        self.cause[first : first + len(events)] = array("q", events)

    def causes(self) -> Ints8:
        return np.array(self.cause, dtype=np.int64)


NOTHING = -1
"""In place of what a block was handed out for, where it is free."""


def final_state(
    allocator: CachingAllocator, *, pool: Callable[[PoolId], int], stream: Callable[[int], int]
) -> tuple[Segments, Blocks, Ints8]:
    """Without stacks, and with what each block was handed out for. `pool` and `stream` give the Trace's numbers."""
    segments: list[tuple[int, ...]] = []
    blocks: list[tuple[int, ...]] = []
    for _, head in sorted(allocator.segments.items()):
        # Of a segment that expands, each contiguous mapped range is a segment.
        runs = groupby(head.chain(), key=lambda block: block.mapped)
        for run in (list(blocks_of_run) for is_mapped, blocks_of_run in runs if is_mapped):
            first, size = run[0], sum(block.size for block in run)
            kind = (not first.pool.is_small, first.expandable is not None)
            segments.append((first.address, size, stream(first.stream), pool(first.pool.owner.id), *kind))
            blocks.extend((len(segments) - 1, *_block_row(block)) for block in run)
    no_stacks = [np.full(len(rows), NO_STACK) for rows in (segments, blocks)]
    *of_blocks, cause = _six_columns(blocks)
    return Segments.typed(*_six_columns(segments), no_stacks[0]), Blocks.typed(*of_blocks, no_stacks[1]), cause


def _block_row(block: Block) -> tuple[int, int, int, int, int]:
    if not block.in_use:
        return block.address, block.size, 0, State.INACTIVE, NOTHING
    state = State.ACTIVE_ALLOCATED if block.allocated else State.ACTIVE_PENDING_FREE
    return block.address, block.size, block.requested, state, block.cause


def _six_columns(rows: list[tuple[int, ...]]) -> list[Ints8]:
    """Addresses of 2**63 and above come out as the Trace keeps them; numbers below zero stay themselves."""
    return [np.array([row[i] & 0xFFFFFFFFFFFFFFFF for row in rows], np.uint64).view(np.int64) for i in range(6)]


def replayed_trace(
    trace: Trace, device: DeviceTrace, layout: StartLayout, allocator: CachingAllocator, history: ModelHistory
) -> Trace:
    """One device, with the recorded stacks, times and texts at what each recorded event caused."""
    events, causes = _events(trace, device, history), history.causes()
    pools = {pool: index for index, pool in enumerate(trace.pools)}
    segments, blocks, cause = final_state(allocator, pool=pools.__getitem__, stream=int)
    # Blocks that were there all along have the stack and the labels of the recorded block.
    from_start, at_start = cause <= FIRST_START_CAUSE, layout.blocks
    there = [at_start[FIRST_START_CAUSE - number] for number in cause[from_start].tolist()]
    rows = {address: row for row, address in enumerate(device.blocks.address.tolist())}
    recorded = np.full(len(cause), NOTHING, dtype=np.int64)
    recorded[from_start] = [rows.get(block.address, NOTHING) for block in there]
    stack = np.full(len(blocks), NO_STACK, dtype=np.int32)
    stack[cause >= 0] = device.events.stack[cause[cause >= 0]]
    stack[from_start] = [block.stack for block in there]
    of_event, of_block, taken_over, none = device.event_labels, device.block_labels, device.taken_over, Labels.empty()
    if of_event is not None or of_block is not None:
        of_block = _block_columns(of_event or none, of_block or none, cause, recorded)
    if taken_over is not None:
        # A phase begins with its first request, not with the segment allocated for that request.
        requests = np.where(events.action <= Action.FREE_COMPLETED, causes, NOTHING)
        taken_over = TakenOver(
            take_rows(taken_over.events, causes),
            _block_columns(taken_over.events, taken_over.blocks, cause, recorded),
            taken_over.spans.moved(requests),
        )
    replayed = replace(
        device,
        events=events,
        segments=_with_segment_stacks(segments, device, events),
        blocks=replace(blocks, stack=stack),
        event_labels=None if of_event is None else take_rows(of_event, causes),
        block_labels=of_block,
        taken_over=taken_over,
        holders=None,
        # The card's allocator does not change memory of the host.
        host=None if device.host is None else device.host.moved(causes),
    )
    return replace(trace, devices=(replayed,))


def described(trace: Trace, settings: Settings, memory: int | None, notes: list[Note]) -> Trace:
    """With what it was replayed under; the notes of the recording stay true of it."""
    on = settings.to_text() or "PyTorch's default settings"
    facts = dict(trace.about.facts)
    if trace.about.on and trace.about.origin != "replayed":
        facts[CARD_FACT] = trace.about.on
    if memory is not None:
        facts["memory_bytes"] = str(memory)
    about = About("replayed", on, trace.about.source, trace.about.format, facts)
    return replace(trace, settings=settings.to_snapshot(), about=about, notes=(*trace.notes, *notes))


def _events(trace: Trace, device: DeviceTrace, history: ModelHistory) -> Events:
    recorded, cause = device.events, history.causes()
    pools = {pool: index for index, pool in enumerate(trace.pools)}
    columns = Events(
        action=np.array(history.action, dtype=np.uint8),
        address=np.array(history.address, dtype=np.uint64).view(np.int64),
        size=np.array(history.size, dtype=np.int64),
        stream=np.array(history.stream, dtype=np.int32),
        time_us=recorded.time_us[cause],
        stack=recorded.stack[cause],
        forward_stack=recorded.forward_stack[cause],
        context=recorded.context[cause],
        metadata=recorded.metadata[cause],
        pool=np.array([pools[pool] for pool in history.pool], dtype=np.int32),
    )
    return joined_events([columns])


def _with_segment_stacks(segments: Segments, device: DeviceTrace, events: Events) -> Segments:
    made = (events.action == Action.SEGMENT_ALLOC) | (events.action == Action.SEGMENT_MAP)
    stacks = dict(zip(device.segments.address.tolist(), device.segments.stack.tolist(), strict=True))
    stacks.update(zip(events.address[made].tolist(), events.stack[made].tolist(), strict=True))
    stack_numbers = [stacks.get(address, NO_STACK) for address in segments.address.tolist()]
    return replace(segments, stack=np.array(stack_numbers, dtype=np.int32))


def _block_columns(of_event: Rows, of_block: Rows, cause: Ints8, recorded: Ints8) -> Rows:
    """One of the two may be empty, and then says nothing."""
    caused = cause if len(of_event) else np.full(len(cause), NOTHING)
    known = recorded if len(of_block) else np.full(len(recorded), NOTHING)
    return first_or_second(cause >= 0, take_rows(of_event, caused), take_rows(of_block, known))


CHUNK = 1 << 11
"""Events that are turned into Python numbers at a time. So often it is asked whether the replay is to go on: in a
recording that is made for it, a single event can take milliseconds."""

Progress = Callable[[int, int], None]
"""Called with the number of replayed events and their total. An exception ends the replay."""


def part_of(progress: Progress | None, number: int, count: int) -> Progress | None:
    """Return the progress of one of `count` replays of equal length, numbered from 0."""
    return None if progress is None else lambda done, total: progress(number * total + done, count * total)


def rest_of(progress: Progress | None, count: int) -> Progress | None:
    """Return the joint progress of all but the first of `count` parts of equal length."""
    return None if progress is None else lambda done, total: progress(total + (count - 1) * done, count * total)


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
        # The fast path records requests only in the history, and keeps no ages.
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
        """Drop entries of kinds that the file leaves out, so that both histories are comparable."""
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
            self._history.add_free(event, block.address, block.requested, block.stream, block.pool.owner.id)
            return
        self.events.append(~event)
        self.requests.append(block.cause)
        self.addresses.append(block.address)

    def write(self) -> None:
        """Write the collected rows into the history. Call it before other writes and reads: entries are in order."""
        if len(self.events) >= _FEW:
            self._write_columns()
        elif self.events:
            history, recorded = self._history, self._source.device.events
            pools, codes = self._source.trace.pools, self._source.pools
            for event, request, address in zip(self.events, self.requests, self.addresses, strict=True):
                size, stream, pool = int(recorded.size[request]), int(recorded.stream[request]), pools[codes[request]]
                if event >= 0:
                    history.now = event
                    history.add(Action.ALLOC, address, size, stream, pool)
                else:
                    history.add_free(~event, address, size, stream, pool)
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
        columns: list[tuple[array[int], Any]] = [
            (self._history.action, action.astype(np.uint8)),
            (self._history.address, np.array(self.addresses, dtype=np.uint64)[row]),
            (self._history.size, recorded.size[request].astype(np.int64)),
            (self._history.stream, recorded.stream[request].astype(np.uint64)),
            (self._history.cause, np.where(is_free, ~event, event)[row] + is_second),
        ]
        for column, values in columns:
            column.frombytes(values.tobytes())
        self._history.pool.extend(pools[code] for code in self._source.pools[request].tolist())


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
        take, waiting, is_recorded = self._take_cached, self.allocator.pending.blocks, self.is_recorded
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

    def _take_cached(self, size: int, stream: int, pool_id: PoolId, address: int) -> Block | None:
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
