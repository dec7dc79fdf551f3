"""The ledger and the labels of its allocations, as a Trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from memviz.allocator.history import final_state
from memviz.runner.predict.ledger import AllocationColumns, Ledger
from memviz.trace.intern import Interner
from memviz.trace.model import (
    NO_STACK,
    About,
    Action,
    Annotations,
    Blocks,
    DeviceTrace,
    Events,
    Ints4,
    Ints8,
    Labels,
    Phase,
    Segments,
    Stage,
    Trace,
)

PhaseMark = tuple[int, Stage, int]
"""Name of a phase, its beginning or end, and the time."""


@dataclass(frozen=True)
class HistoryPart:
    """Part of a run that one file shows: a history may start late, drop events and leave stacks out."""

    events: Ints8
    """Their places in the whole history."""
    stacks_of: frozenset[Action]
    """Kinds of events that have one."""
    recorded: Callable[[int], bool]
    """Tells whether stacks were recorded at an allocation, by its number."""
    only_python: bool
    """Stacks without the frames of C++."""


def trace_of(
    ledger: Ledger,
    columns: AllocationColumns,
    marks: Sequence[PhaseMark],
    interner: Interner,
    *,
    settings: Any,
    about: About,
    part: HistoryPart | None = None,
) -> Trace:
    """Return the trace of the whole run, or of the part that a file of that moment shows."""
    with ledger.lock:
        cause = ledger.history.causes()
        events = _events(ledger, columns, interner, cause)
        segments, blocks, block_cause = _final_state(ledger, interner, part)
    if part is not None:
        cause = cause[part.events]
        events = _events_of_part(events, part, interner)
    device = DeviceTrace(
        device=0,
        kind="gpu",
        events=events,
        segments=segments,
        blocks=blocks,
        annotations=_annotations(marks, part, events),
        event_labels=_labels(columns, cause),
        block_labels=_labels(columns, block_cause),
        is_timed=False,
    )
    return Trace(
        devices=(device,),
        stacks=interner.frozen_stacks(),
        strings=tuple(interner.strings),
        streams=tuple(interner.streams),
        pools=tuple(interner.pools),
        other_actions=(),
        settings=settings,
        about=about,
    )


def live_changes(action: Any, size: Any) -> Ints8:
    """Return by how much each event changes the live bytes that tensors requested."""
    return np.select([action == Action.ALLOC, action == Action.FREE_COMPLETED], [size, -size], 0)


def trains(trace: Trace) -> bool:
    """Return whether any event is in backward or an optimizer step."""
    labels = trace.devices[0].event_labels
    return labels is not None and bool(np.isin(labels.phase, (Phase.BACKWARD, Phase.STEP)).any())


def _annotations(marks: Sequence[PhaseMark], part: HistoryPart | None, events: Events) -> Annotations:
    first = 0
    if part is not None:
        first = int(events.time_us[0]) if len(events) else np.iinfo(np.int64).max
    shown = [mark for mark in marks if mark[2] >= first]
    columns = np.array(shown, dtype=np.int64).reshape(-1, 3).T
    return Annotations(columns[0].astype(np.int32), columns[1].astype(np.uint8), columns[2])


def _events_of_part(events: Events, part: HistoryPart, interner: Interner) -> Events:
    chosen = Events(**{name: column[part.events] for name, column in events.columns()})
    has_stack = np.isin(chosen.action, [int(action) for action in part.stacks_of])
    stack = np.where(has_stack, chosen.stack, NO_STACK).astype(np.int32)
    if part.only_python:
        stack = _without_native(stack, interner)
    return replace(chosen, stack=stack, forward_stack=np.where(has_stack, chosen.forward_stack, NO_STACK))


def _without_native(stacks: Ints4, interner: Interner) -> Ints4:
    """Return the stacks without frames of C++."""
    table = interner.frozen_stacks()
    shorter = {NO_STACK: NO_STACK}
    for stack in np.unique(stacks).tolist():
        if stack != NO_STACK:
            python = [frame for frame in table.of(stack).tolist() if table.frames.line[frame]]
            shorter[stack] = interner.stack_of(python) if python else NO_STACK
    return np.array([shorter[stack] for stack in stacks.tolist()], dtype=np.int32)


def _events(ledger: Ledger, columns: AllocationColumns, interner: Interner, cause: Ints8) -> Events:
    history, count = ledger.history, len(ledger.history)
    action = np.array(history.action, dtype=np.uint8)
    forward = np.full(count, NO_STACK, dtype=np.int32)
    allocs = action == Action.ALLOC
    forward[allocs] = np.array(columns.forward_stack, dtype=np.int32)[cause[allocs]]
    return Events(
        action=action,
        address=np.array(history.address, dtype=np.uint64).view(np.int64),
        size=np.array(history.size, dtype=np.int64),
        stream=_codes(history.stream, interner.stream),
        time_us=np.array(ledger.times, dtype=np.int64),
        stack=np.array(ledger.stacks, dtype=np.int32),
        forward_stack=forward,
        context=np.zeros(count, dtype=np.int32),
        metadata=np.zeros(count, dtype=np.int32),
        pool=_codes(history.pool, interner.pool),
    )


def _codes(values: Any, number: Any) -> Ints4:
    return np.fromiter((number(value) for value in values), dtype=np.int32, count=len(values))


def _labels(columns: AllocationColumns, cause: Ints8) -> Labels:
    has_cause = cause >= 0

    def label(values: Any, dtype: Any) -> Any:
        made = np.zeros(len(cause), dtype=dtype)
        made[has_cause] = np.array(values, dtype=dtype)[cause[has_cause]]
        return made

    return Labels(
        category=label(columns.category.values, np.uint8),
        module=label(columns.module, np.int32),
        phase=label(columns.phase, np.uint8),
    )


def _final_state(ledger: Ledger, interner: Interner, part: HistoryPart | None) -> tuple[Segments, Blocks, Ints8]:
    """Return segments and blocks with their stacks, and the allocation in each block."""
    segments, blocks, cause = final_state(ledger.allocator, pool=interner.pool, stream=interner.stream)
    shows: Callable[[int], bool] = (lambda number: True) if part is None else part.recorded
    history = ledger.history
    made_by, stack_of = {}, {}
    rows = zip(history.action, history.address, history.cause, ledger.stacks, strict=True)
    for action, address, number, stack in rows:
        if action == Action.ALLOC:
            stack_of[number] = stack
        elif action in (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP) and shows(number):
            made_by[address] = stack
    of_segments = np.array([made_by.get(address, NO_STACK) for address in segments.address.tolist()], dtype=np.int32)
    numbers = cause.tolist()
    of_blocks = np.array([stack_of.get(n, NO_STACK) if shows(n) else NO_STACK for n in numbers], dtype=np.int32)
    if part is not None and part.only_python:
        of_segments, of_blocks = _without_native(of_segments, interner), _without_native(of_blocks, interner)
    return replace(segments, stack=of_segments), replace(blocks, stack=of_blocks), cause
