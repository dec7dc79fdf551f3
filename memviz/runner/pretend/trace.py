"""The ledger and what is known of its allocations, as a Trace."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from memviz.allocator.blocks import Block
from memviz.runner.pretend.ledger import Ledger
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
    Segments,
    Stage,
    State,
    Trace,
)


@dataclass
class Known:
    """Of each allocation, by its number."""

    category: bytearray
    module: array[int] = field(default_factory=lambda: array("i"))
    phase: bytearray = field(default_factory=bytearray)
    forward_stack: array[int] = field(default_factory=lambda: array("i"))


@dataclass
class Marks:
    """Beginnings and ends of phases."""

    name: list[int] = field(default_factory=list)
    stage: list[Stage] = field(default_factory=list)
    time: list[int] = field(default_factory=list)

    def add(self, name: int, stage: Stage, time: int) -> None:
        self.name.append(name)
        self.stage.append(stage)
        self.time.append(time)


def trace_of(
    ledger: Ledger, known: Known, marks: Marks, interner: Interner, *, start_us: int, settings: Any, about: About
) -> Trace:
    cause = ledger.history.causes()
    events = _events(ledger, known, interner, cause, start_us)
    segments, blocks, block_cause = _final_state(ledger, interner)
    annotations = Annotations(
        np.array(marks.name, dtype=np.int32),
        np.array(marks.stage, dtype=np.uint8),
        np.array(marks.time, dtype=np.int64) + start_us,
    )
    device = DeviceTrace(
        device=0,
        kind="gpu",
        events=events,
        segments=segments,
        blocks=blocks,
        annotations=annotations,
        event_labels=_labels(known, cause),
        block_labels=_labels(known, block_cause),
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


def _events(ledger: Ledger, known: Known, interner: Interner, cause: Ints8, start_us: int) -> Events:
    history, count = ledger.history, len(ledger.history)
    action = np.array(history.action, dtype=np.uint8)
    forward = np.full(count, NO_STACK, dtype=np.int32)
    allocs = action == Action.ALLOC
    forward[allocs] = np.array(known.forward_stack, dtype=np.int32)[cause[allocs]]
    return Events(
        action=action,
        address=np.array(history.address, dtype=np.uint64).view(np.int64),
        size=np.array(history.size, dtype=np.int64),
        stream=_codes(history.stream, interner.stream),
        time_us=np.array(ledger.times, dtype=np.int64) + start_us,
        stack=np.array(ledger.stacks, dtype=np.int32),
        forward_stack=forward,
        context=np.zeros(count, dtype=np.int32),
        metadata=np.zeros(count, dtype=np.int32),
        pool=_codes(history.pool, interner.pool),
    )


def _codes(values: Any, number: Any) -> Ints4:
    return np.fromiter((number(each) for each in values), dtype=np.int32, count=len(values))


def _labels(known: Known, cause: Ints8) -> Labels:
    columns: Mapping[str, Any] = {
        "category": np.array(known.category, dtype=np.uint8),
        "module": np.array(known.module, dtype=np.int32),
        "phase": np.array(known.phase, dtype=np.uint8),
    }
    found = {}
    for name, column in columns.items():
        found[name] = np.zeros(len(cause), dtype=column.dtype)
        found[name][cause >= 0] = column[cause[cause >= 0]]
    return Labels(**found)


def _final_state(ledger: Ledger, interner: Interner) -> tuple[Segments, Blocks, Ints8]:
    """Segments and blocks with the stacks of what made them, and the allocation in each block."""
    made_by = _stacks_of_segments(ledger)
    stack_of = _stacks_of_allocations(ledger)
    segments: list[tuple[int, ...]] = []
    blocks: list[tuple[int, ...]] = []
    for _, head in sorted(ledger.allocator.segments.items()):
        for run in _mapped_runs(head):
            first, size = run[0], sum(block.size for block in run)
            pool, large = interner.pool(first.pool.owner.id), not first.pool.is_small
            stack, expands = made_by.get(first.address, NO_STACK), first.expandable is not None
            row = (first.address, size, interner.stream(first.stream), pool, int(large), int(expands), stack)
            segments.append(row)
            blocks.extend((len(segments) - 1, *_block_row(block, stack_of)) for block in run)
    return _segments(segments), *_blocks(blocks)


def _mapped_runs(head: Block) -> list[list[Block]]:
    """One for a plain segment; of a segment that expands, one for each contiguous mapped range."""
    runs: list[list[Block]] = [[]]
    block: Block | None = head
    while block is not None:
        if block.mapped:
            runs[-1].append(block)
        elif runs[-1]:
            runs.append([])
        block = block.next
    return [run for run in runs if run]


def _block_row(block: Block, stack_of: dict[int, int]) -> tuple[int, ...]:
    if not block.in_use:
        return block.address, block.size, 0, int(State.INACTIVE), NO_STACK, -1
    stack = stack_of.get(block.cause, NO_STACK)
    return block.address, block.size, block.requested, int(State.ACTIVE_ALLOCATED), stack, block.cause


def _stacks_of_segments(ledger: Ledger) -> dict[int, int]:
    history = ledger.history
    made = (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)
    rows = zip(history.action, history.address, ledger.stacks, strict=True)
    return {address: stack for action, address, stack in rows if action in made}


def _stacks_of_allocations(ledger: Ledger) -> dict[int, int]:
    rows = zip(ledger.history.action, ledger.history.cause, ledger.stacks, strict=True)
    return {cause: stack for action, cause, stack in rows if action == Action.ALLOC}


def _segments(rows: list[tuple[int, ...]]) -> Segments:
    address, size, stream, pool, large, expands, stack = _columns(rows, 7)
    return Segments(
        address=address,
        size=size,
        stream=stream.astype(np.int32),
        pool=pool.astype(np.int32),
        is_large=large.astype(np.bool_),
        is_expandable=expands.astype(np.bool_),
        stack=stack.astype(np.int32),
    )


def _blocks(rows: list[tuple[int, ...]]) -> tuple[Blocks, Ints8]:
    segment, address, size, requested, state, stack, cause = _columns(rows, 7)
    blocks = Blocks(
        segment=segment.astype(np.int32),
        address=address,
        size=size,
        requested=requested,
        state=state.astype(np.uint8),
        stack=stack.astype(np.int32),
    )
    return blocks, cause


def _columns(rows: list[tuple[int, ...]], count: int) -> list[Ints8]:
    return [np.array([row[i] for row in rows], dtype=np.int64) for i in range(count)]
