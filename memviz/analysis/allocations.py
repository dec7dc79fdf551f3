"""One allocation in full, and all allocations of a trace as CSV."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TextIO

import numpy as np

from memviz.analysis.callstacks.sites import operator_name, operators, sites
from memviz.analysis.holders import HeldBy, held_by
from memviz.analysis.lifetimes import BEFORE, Lifetimes, has_times, lifetimes
from memviz.analysis.purpose.categories import KINDS, categories, kinds
from memviz.analysis.purpose.phases import label_of_rows, phases
from memviz.analysis.purpose.reasons import REASON_TEXTS, Certainty
from memviz.analysis.segments import segments_at
from memviz.errors import UsageError
from memviz.trace.model import NO_STACK, Action, Category, DeviceTrace, Ints8, Phase, Trace
from memviz.trace.reserved import SMALL_SIZE, divisions_of, round_sizes
from memviz.trace.write import Cells, Table, hexadecimal, slices, where, write_tables


class BlockKnown(StrEnum):
    RECORDED = "recorded"
    """Live at the end, with its block in the file."""
    REBUILT = "rebuilt"
    """Derived from its neighbours at its alloc."""
    ROUNDED = "rounded"
    """Derived from the allocator's rounding alone."""


@dataclass(frozen=True)
class Span:
    """Events at which it starts and ends; `never` means not within the trace."""

    start: int
    """-1 is before the first event."""
    free_requested: int
    end: int
    never: int
    microseconds: int | None
    """Between its first and last event, or as far as the trace saw of it; None in a file without times."""

    @property
    def is_complete(self) -> bool:
        return self.start > BEFORE and self.end < self.never


@dataclass(frozen=True)
class Allocation:
    row: int
    requested_bytes: int
    rounded_bytes: int
    block_bytes: int
    block_known: BlockKnown
    category: Category
    reason: str
    site: str
    operator: str
    """Innermost torch operator that does more than allocate; empty if none was recorded."""
    span: Span
    pool: tuple[int, int]
    is_large: bool | None
    """True in the large pool; None for pinned memory, which has no pools."""
    stream: int
    stack: int
    forward_stack: int
    """Stack of the forward operator of a backward allocation, or NO_STACK."""
    module: str = ""
    phase: Phase = Phase.UNKNOWN
    """Recorded phase; a phase that only the stack shows is in the category's reason."""
    certainty: Certainty = Certainty.OPEN
    """Certainty of the category."""
    metadata: str = ""
    compile_context: str = ""
    held_by: HeldBy | None = None
    """None where the run did not record it."""
    alike: int = 0
    """How many have its stack and size, itself included; 0 without a stack."""


def rows_alike(device: DeviceTrace, row: int) -> Ints8:
    """Return the rows with the stack and the size of this one; none without a stack."""
    rows = lifetimes(device)
    if not 0 <= row < len(rows) or rows.stack[row] == NO_STACK:
        return np.zeros(0, dtype=np.int64)
    return np.flatnonzero((rows.stack == rows.stack[row]) & (rows.size == rows.size[row]))


def allocation(trace: Trace, device: DeviceTrace, row: int) -> Allocation:
    """`row` is one of `lifetimes`."""
    rows = lifetimes(device)
    if not 0 <= row < len(rows):
        raise UsageError(f"Device {device.name} has no allocation {row}; it has {len(rows)}.")
    kinds, events, start = categories(trace, device), device.events, int(rows.start[row])
    block_bytes, rounded, block_source = _block(trace, device, row)
    begun = start > BEFORE
    # The table of labels that has this row, and its index there.
    labels, place = (device.event_labels, start) if begun else (device.block_labels, int(rows.block[row]))
    label = labels if labels is not None and 0 <= place < len(labels) else None
    return Allocation(
        row=row,
        requested_bytes=int(rows.size[row]),
        rounded_bytes=rounded,
        block_bytes=block_bytes,
        block_known=block_source,
        category=Category(int(kinds.category[row])),
        reason=REASON_TEXTS[kinds.reason[row]],
        certainty=Certainty(int(kinds.certainty[row])),
        site=sites(trace).of(int(rows.stack[row])).label,
        operator=operator_name(trace, int(operators(trace)[rows.stack[row]])),
        span=_span(device, rows, row),
        pool=trace.pools[rows.pool[row]],
        is_large=rounded > SMALL_SIZE if device.kind == "gpu" else None,
        stream=trace.streams[rows.stream[row]],
        stack=int(rows.stack[row]),
        forward_stack=int(events.forward_stack[start]) if begun else NO_STACK,
        module=trace.strings[label.module[place]] if label else "",
        phase=Phase(int(label.phase[place])) if label else Phase.UNKNOWN,
        metadata=trace.strings[events.metadata[start]] if begun else "",
        compile_context=trace.strings[events.context[start]] if begun else "",
        held_by=held_by(trace, device, row),
        alike=len(rows_alike(device, row)),
    )


def _block(trace: Trace, device: DeviceTrace, row: int) -> tuple[int, int, BlockKnown]:
    rows = lifetimes(device)
    rounded = int(round_sizes(rows.size[row : row + 1], divisions_of(trace.settings))[0])
    block = int(rows.block[row])
    if block >= 0:
        return int(device.blocks.size[block]), rounded, BlockKnown.RECORDED
    tiles = segments_at(trace, device, int(rows.start[row])).tiles
    matches = np.flatnonzero(tiles.row == row)
    if len(matches):
        return int(tiles.size[matches[0]]), rounded, BlockKnown.REBUILT
    return rounded, rounded, BlockKnown.ROUNDED


def _span(device: DeviceTrace, rows: Lifetimes, row: int) -> Span:
    start, end, never = int(rows.start[row]), int(rows.end[row]), len(device.events)
    times = device.events.time_us
    microseconds = None
    if has_times(device):
        # Threads may record a little out of order.
        microseconds = max(int(times[min(end, never - 1)] - times[max(start, 0)]), 0)
    return Span(start, int(rows.free_requested[row]), end, never, microseconds)


def write_allocations(trace: Trace, file: TextIO) -> None:
    """One row per allocation. Event -1 is before the first event; an empty one never came."""
    cells = Cells(trace)
    pairs = ((device, rows) for device in trace.devices for rows in slices(lifetimes(device)))
    write_tables(file, (_allocations(cells, trace, device, rows) for device, rows in pairs))


def _allocations(cells: Cells, trace: Trace, device: DeviceTrace, rows: slice) -> Table:
    lives, never = lifetimes(device).select(rows), len(device.events)
    # Where only the end is on record, a lifetime has it for both.
    action = np.append(device.events.action, Action.OTHER)
    was_requested = (lives.free_requested < 0) | (action[lives.free_requested] == Action.FREE_REQUESTED)
    return {
        "device": [device.name] * len(lives),
        "start_event": lives.start.tolist(),
        "free_requested_event": where(was_requested, lives.free_requested.tolist()),
        "end_event": where(lives.end < never, lives.end.tolist()),
        "start_us": _times(device, lives.start),
        "end_us": _times(device, lives.end),
        "bytes": lives.size.tolist(),
        "address": hexadecimal(lives.address),
        "stream": cells.streams(lives.stream),
        "pool": cells.pools(lives.pool),
        "stack": where(lives.stack >= 0, lives.stack.tolist()),
        **_purpose(cells, trace, device, rows),
    }


def _times(device: DeviceTrace, events: Any) -> list[Any]:
    timed = (events >= 0) & (events < len(device.events)) & device.is_timed
    times = np.zeros(len(events), dtype=np.int64)
    times[timed] = device.events.time_us[events[timed]]
    return where(times != 0, times.tolist())


def _purpose(cells: Cells, trace: Trace, device: DeviceTrace, rows: slice) -> Table:
    """Return category, certainty, module and phase, as on the page; empty where unknown."""
    inferred, phase = categories(trace, device), phases(trace, device)[rows]
    kind, certainty = kinds(trace, device, rows), inferred.certainty[rows]
    module = label_of_rows(device, "module")
    module_codes = np.zeros(len(kind), np.int32) if module is None else module[rows].astype(np.int32)
    certainty_labels = [level.word for level in Certainty]
    return {
        "category": where(kind != Category.UNKNOWN, [KINDS[code] for code in kind.tolist()]),
        "certainty": where(certainty != Certainty.OPEN, [certainty_labels[code] for code in certainty.tolist()]),
        "module": cells.texts(module_codes),
        "phase": where(phase != Phase.UNKNOWN, [Phase(code).name.lower() for code in phase.tolist()]),
    }
