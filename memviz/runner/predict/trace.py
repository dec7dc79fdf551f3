"""The ledger and what is known of its allocations, as a Trace."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from memviz.allocator.final_state import final_state
from memviz.runner.predict.ledger import Ledger
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


def trace_of(ledger: Ledger, known: Known, marks: Marks, interner: Interner, *, settings: Any, about: About) -> Trace:
    cause = ledger.history.causes()
    events = _events(ledger, known, interner, cause)
    segments, blocks, block_cause = _final_state(ledger, interner)
    annotations = Annotations(
        np.array(marks.name, dtype=np.int32),
        np.array(marks.stage, dtype=np.uint8),
        np.array(marks.time, dtype=np.int64),
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


def _events(ledger: Ledger, known: Known, interner: Interner, cause: Ints8) -> Events:
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
        time_us=np.array(ledger.times, dtype=np.int64),
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
    """With the stacks of what made each segment and block, and the allocation in each block."""
    segments, blocks, cause = final_state(ledger.allocator, pool=interner.pool, stream=interner.stream)
    made_by, stack_of = _stacks_of_segments(ledger), _stacks_of_allocations(ledger)
    segment_stacks = [made_by.get(each, NO_STACK) for each in segments.address.tolist()]
    block_stacks = [stack_of.get(each, NO_STACK) for each in cause.tolist()]
    return (
        replace(segments, stack=np.array(segment_stacks, dtype=np.int32)),
        replace(blocks, stack=np.array(block_stacks, dtype=np.int32)),
        cause,
    )


def _stacks_of_segments(ledger: Ledger) -> dict[int, int]:
    history = ledger.history
    made = (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)
    rows = zip(history.action, history.address, ledger.stacks, strict=True)
    return {address: stack for action, address, stack in rows if action in made}


def _stacks_of_allocations(ledger: Ledger) -> dict[int, int]:
    rows = zip(ledger.history.action, ledger.history.cause, ledger.stacks, strict=True)
    return {cause: stack for action, cause, stack in rows if action == Action.ALLOC}
