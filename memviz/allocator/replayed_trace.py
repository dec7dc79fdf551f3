"""The model's history and final state as a Trace, so that every view works on a replay."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from memviz.allocator.caching import CachingAllocator
from memviz.allocator.final_state import NOTHING, final_state
from memviz.allocator.history import ModelHistory
from memviz.allocator.lay_out import FIRST_START_CAUSE
from memviz.allocator.settings import Settings
from memviz.allocator.start_layout import StartLayout
from memviz.trace.collect import one_column
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
    Segments,
    Spans,
    TakenOver,
    Trace,
)
from memviz.trace.picked import Rows, first_or_second, picked


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
        event_labels=None if device.event_labels is None else picked(device.event_labels, history.causes()),
        block_labels=_block_labels(device, cause, recorded),
        taken_over=_taken_over(device.taken_over, events, history.causes(), cause, recorded),
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
    return Events(**{name: one_column([column]) for name, column in columns.columns()})


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
    """Of its event, or of the recorded block."""
    if device.event_labels is None and device.block_labels is None:
        return None
    none = Labels(np.zeros(0, dtype=np.uint8), np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.uint8))
    return _of_blocks(device.event_labels or none, device.block_labels or none, cause, recorded)


def _of_blocks(of_event: Rows, of_block: Rows, cause: Ints8, recorded: Ints8) -> Rows:
    """One of the two may be empty, and then says nothing."""
    caused = cause if len(of_event) else np.full(len(cause), NOTHING)
    known = recorded if len(of_block) else np.full(len(recorded), NOTHING)
    return first_or_second(cause >= 0, picked(of_event, caused), picked(of_block, known))


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
    return TakenOver(picked(known.events, causes), _of_blocks(known.events, known.blocks, cause, recorded), spans)
