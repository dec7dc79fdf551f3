"""The model's history and final state, as columns and as a Trace, so that every view works on a replay."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np
import numpy.typing as npt

from memviz.allocator.blocks import Block, PoolId
from memviz.allocator.caching import CachingAllocator
from memviz.allocator.settings import Settings
from memviz.allocator.start_layout import FIRST_START_CAUSE, StartLayout
from memviz.trace.collect import joined_events
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
    Spans,
    State,
    TakenOver,
    Trace,
    first_or_second,
    take_rows,
)

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]


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

    def add_free(self, event: int, block: Block) -> None:
        """Asked for, and complete with the next event."""
        pool = block.pool.owner.id
        self.action.extend((Action.FREE_REQUESTED, Action.FREE_COMPLETED))
        self.address.extend((block.address, block.address))
        self.size.extend((block.requested, block.requested))
        self.stream.extend((block.stream, block.stream))
        self.pool.extend((pool, pool))
        self.cause.extend((event, event + 1))

    def add_columns(
        self, *, action: Bytes, address: Words, size: Ints8, stream: Words, pool: Sequence[PoolId], cause: Ints8
    ) -> None:
        self.action.frombytes(action.tobytes())
        self.address.frombytes(address.tobytes())
        self.size.frombytes(size.tobytes())
        self.stream.frombytes(stream.tobytes())
        self.pool.extend(pool)
        self.cause.frombytes(cause.tobytes())

    def entries(self, first: int) -> list[tuple[int, int, int]]:
        """Action, address and size of the entries from `first` on."""
        return list(zip(self.action[first:], self.address[first:], self.size[first:], strict=True))

    def set_causes(self, first: int, events: range) -> None:
        """Set the causing events of the entries from `first` on."""
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
    *of_blocks, cause = _columns(blocks, 6)
    return Segments.typed(*_columns(segments, 6), no_stacks[0]), Blocks.typed(*of_blocks, no_stacks[1]), cause


def _block_row(block: Block) -> tuple[int, int, int, int, int]:
    if not block.in_use:
        return block.address, block.size, 0, State.INACTIVE, NOTHING
    state = State.ACTIVE_ALLOCATED if block.allocated else State.ACTIVE_PENDING_FREE
    return block.address, block.size, block.requested, state, block.cause


def _columns(rows: list[tuple[int, ...]], count: int) -> list[Ints8]:
    """Addresses of 2**63 and above come out as the Trace keeps them; numbers below zero stay themselves."""
    return [np.array([row[i] & 0xFFFFFFFFFFFFFFFF for row in rows], np.uint64).view(np.int64) for i in range(count)]


def replayed_trace(
    trace: Trace, device: DeviceTrace, layout: StartLayout, allocator: CachingAllocator, history: ModelHistory
) -> Trace:
    """One device, with the recorded stacks, times and texts at what each recorded event caused."""
    events = _events(trace, device, history)
    pools = {pool: index for index, pool in enumerate(trace.pools)}
    segments, blocks, cause = final_state(allocator, pool=pools.__getitem__, stream=int)
    recorded = _recorded_blocks(device, layout, cause)
    replayed = replace(
        device,
        events=events,
        segments=_with_segment_stacks(segments, device, events),
        blocks=_with_block_stacks(blocks, device, layout, cause),
        event_labels=None if device.event_labels is None else take_rows(device.event_labels, history.causes()),
        block_labels=_block_labels(device, cause, recorded),
        taken_over=_taken_over(device.taken_over, events, history.causes(), cause, recorded),
        holders=None,
        host=None,
    )
    return replace(trace, devices=(replayed,))


def described(trace: Trace, settings: Settings, memory: int | None, notes: list[Note]) -> Trace:
    """With what it was replayed under; the notes of the recording stay true of it."""
    on = settings.to_text() or "PyTorch's default settings"
    facts = dict(trace.about.facts)
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


def _with_block_stacks(blocks: Blocks, device: DeviceTrace, layout: StartLayout, cause: Ints8) -> Blocks:
    at_start = np.array([block.stack for block in layout.blocks], dtype=np.int32)
    stack = np.full(len(blocks), NO_STACK, dtype=np.int32)
    stack[cause >= 0] = device.events.stack[cause[cause >= 0]]
    from_start = cause <= FIRST_START_CAUSE
    stack[from_start] = at_start[FIRST_START_CAUSE - cause[from_start]]
    return replace(blocks, stack=stack)


def _recorded_blocks(device: DeviceTrace, layout: StartLayout, cause: Ints8) -> Ints8:
    """The recorded block of each that was there all along, or NOTHING."""
    rows = {address: row for row, address in enumerate(device.blocks.address.tolist())}
    at_start = np.array([rows.get(block.address, NOTHING) for block in layout.blocks], dtype=np.int64)
    recorded = np.full(len(cause), NOTHING, dtype=np.int64)
    from_start = cause <= FIRST_START_CAUSE
    recorded[from_start] = at_start[FIRST_START_CAUSE - cause[from_start]]
    return recorded


def _block_labels(device: DeviceTrace, cause: Ints8, recorded: Ints8) -> Labels | None:
    """Return the labels of each block: of its causing event, or of the recorded block."""
    if device.event_labels is None and device.block_labels is None:
        return None
    none = Labels.empty()
    return _block_columns(device.event_labels or none, device.block_labels or none, cause, recorded)


def _block_columns(of_event: Rows, of_block: Rows, cause: Ints8, recorded: Ints8) -> Rows:
    """One of the two may be empty, and then says nothing."""
    caused = cause if len(of_event) else np.full(len(cause), NOTHING)
    known = recorded if len(of_block) else np.full(len(recorded), NOTHING)
    return first_or_second(cause >= 0, take_rows(of_event, caused), take_rows(of_block, known))


def _taken_over(
    known: TakenOver | None, events: Events, causes: Ints8, cause: Ints8, recorded: Ints8
) -> TakenOver | None:
    if known is None:
        return None
    # A phase begins with what it asks for, and not with the segment that was made for that.
    is_asked_for = events.action <= Action.FREE_COMPLETED
    first = np.searchsorted(np.maximum.accumulate(np.where(is_asked_for, causes, NOTHING)), known.spans.first)
    stays = first < len(events)
    spans = Spans(known.spans.phase[stays], known.spans.step[stays], first[stays])
    return TakenOver(
        take_rows(known.events, causes), _block_columns(known.events, known.blocks, cause, recorded), spans
    )
