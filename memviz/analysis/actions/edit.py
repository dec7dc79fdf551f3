"""Edit a recording's requests: free allocations earlier, shrink them, or allocate them a second time.

The result is a history of requests for the allocator to replay, not a recording: its addresses only name blocks, and
its segments are those of the recording. Purposes inferred for the recording hold for the edit: an edit changes none,
and a repeated allocation has the purpose of the original, in the phase that repeats it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from memviz.analysis.lifetimes import Lifetimes, lifetimes
from memviz.analysis.purpose.categories import categories
from memviz.analysis.purpose.phases import PHASE_OF, first_events, phase_spans, phases
from memviz.analysis.purpose.reasons import Certainty
from memviz.trace.model import (
    Action,
    Blocks,
    Bools,
    Bytes1,
    Category,
    Columns,
    DeviceTrace,
    Events,
    Ints8,
    Purposes,
    Spans,
    State,
    TakenOver,
    Trace,
    first_or_second,
    take_rows,
)


def inferred_purposes(trace: Trace, device: DeviceTrace) -> TakenOver:
    rows, inferred = lifetimes(device), categories(trace, device)
    of_rows = Purposes(inferred.category, inferred.certainty, phases(trace, device), np.ones(len(rows), dtype=np.bool_))
    events = _rows_at(first_events(rows, len(device.events)), len(device.events))
    blocks = _rows_at(rows.block.astype(np.int64), len(device.blocks))
    recorded = phase_spans(trace, device).spans
    spans = Spans.typed(
        [PHASE_OF[span.doing] for span in recorded],
        [span.step for span in recorded],
        [span.first for span in recorded],
    )
    return TakenOver(take_rows(of_rows, events), take_rows(of_rows, blocks), spans)


def _rows_at(place: Ints8, count: int) -> Ints8:
    row = np.full(count, -1, dtype=np.int64)
    has_place = np.flatnonzero(place >= 0)
    row[place[has_place]] = has_place
    return row


_GROWS_OR_SHRINKS = (Action.SEGMENT_ALLOC, Action.SEGMENT_FREE, Action.SEGMENT_MAP, Action.SEGMENT_UNMAP)


@dataclass(frozen=True, eq=False)
class Earlier(Columns):
    """Allocations to free earlier, before an event."""

    row: Ints8
    before: Ints8


@dataclass(frozen=True, eq=False)
class Again(Columns):
    """Allocations to repeat: each is made before one event and freed before another."""

    row: Ints8
    begin: Ints8
    end: Ints8
    order: Ints8
    """Order among those that begin before the same event; a free there has `end_order`."""
    end_order: Ints8
    divisor: Ints8
    """The requested size is divided by this."""


@dataclass(frozen=True, eq=False)
class Edit:
    """Edit of rows of `lifetimes` that begin within the trace. Only rows that also end within it are made again."""

    earlier: Earlier = field(default_factory=Earlier.empty)
    again: Again = field(default_factory=Again.empty)
    again_as: Category | None = None
    """Category of all repeated allocations; None keeps each row's own."""
    halved: Ints8 = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Rows whose requested bytes are halved."""


@dataclass(frozen=True, eq=False)
class _Entries(Columns):
    """Events of the edited trace: copies of recorded events, except in these columns."""

    source: Ints8
    place: Ints8
    """The event it comes just before; a recorded entry has its own index."""
    order: Ints8
    action: Bytes1
    address: Ints8
    size: Ints8
    belongs: Ints8
    """The recorded event whose phase it belongs to; -1 for an added free, which begins none."""

    @property
    def is_added(self) -> Bools:
        """Added allocations, which were not recorded."""
        return np.asarray((self.order != _LAST) & (self.action == Action.ALLOC))


_LAST = np.iinfo(np.int64).max


def apply_edit(trace: Trace, device: DeviceTrace, edit: Edit) -> Trace:
    """Return a trace of the edited device. Its final state is the recorded one; a replay computes its own."""
    rows, starts = lifetimes(device), _starts_of_groups(device.events)
    sizes = rows.size.copy()
    sizes[edit.halved] = (sizes[edit.halved] + 1) // 2
    parts = (
        _recorded_entries(device, rows, sizes, edit.earlier.row),
        _free_entries(
            rows.start[edit.earlier.row],
            starts[edit.earlier.before],
            np.arange(len(edit.earlier)),
            rows.address[edit.earlier.row],
            sizes[edit.earlier.row],
        ),
        *_added_entries(device, rows, sizes, edit.again, starts),
    )
    entries = _Entries.concatenated(parts)
    entries = take_rows(entries, np.lexsort((entries.order, entries.place)))
    events = replace(
        take_rows(device.events, entries.source),
        action=entries.action,
        address=entries.address,
        size=entries.size,
        time_us=device.events.time_us[np.minimum(entries.place, len(device.events) - 1)],
    )
    labels = device.event_labels
    if labels is not None:
        # Added allocations keep the module, without category and phase.
        labels, unknown = take_rows(labels, entries.source), np.uint8(0)
        category, phase = (np.where(entries.is_added, unknown, column) for column in (labels.category, labels.phase))
        labels = replace(labels, category=category, phase=phase)
    changed = replace(
        device,
        events=events,
        event_labels=labels,
        blocks=_final_blocks(device, rows, sizes, edit),
        taken_over=_edit_purposes(inferred_purposes(trace, device), entries, edit.again_as),
        holders=None,
        host=None if device.host is None else device.host.moved(entries.place),
    )
    return replace(trace, devices=(changed,))


def _edit_purposes(inferred: TakenOver, entries: _Entries, again_as: Category | None) -> TakenOver:
    copied, is_added, spans = take_rows(inferred.events, entries.source), entries.is_added, inferred.spans
    around = np.searchsorted(spans.first, entries.belongs, side="right") - 1
    # The program stated nothing about an added allocation, so its certainty is at most SURE.
    changed = Purposes(
        category=copied.category if again_as is None else np.full(len(entries), again_as, dtype=np.uint8),
        certainty=np.minimum(copied.certainty, np.uint8(Certainty.SURE)),
        phase=take_rows(spans, around).phase,
        is_known=copied.is_known,
    )
    # Some that is put in comes before a new segment that the phase begins with.
    return TakenOver(first_or_second(is_added, changed, copied), inferred.blocks, spans.moved(entries.belongs))


def _recorded_entries(device: DeviceTrace, rows: Lifetimes, sizes: Ints8, ended: Ints8) -> _Entries:
    """Return the recorded entries, without the frees that now come earlier."""
    events, count = device.events, len(device.events)
    size = events.size.copy()
    for column in (rows.start, rows.free_requested, rows.end):
        inside = (column >= 0) & (column < count)
        size[column[inside]] = sizes[inside]
    stays = np.ones(count, dtype=np.bool_)
    for column in (rows.free_requested[ended], rows.end[ended]):
        stays[column[(column >= 0) & (column < count)]] = False
    indices = np.flatnonzero(stays)
    order = np.full(len(indices), _LAST)
    return _Entries(indices, indices, order, events.action[indices], events.address[indices], size[indices], indices)


def _added_entries(
    device: DeviceTrace, rows: Lifetimes, sizes: Ints8, again: Again, starts: Ints8
) -> tuple[_Entries, _Entries]:
    row, begin, end = again.row, starts[again.begin], starts[again.end]
    used, size = np.unique(device.events.address), sizes[row] // again.divisor
    address = np.setdiff1d(np.arange(1, len(again) + len(used) + 1), used)[: len(again)]
    # Frees that follow from what was recorded come before anything that is made at the same place.
    freed_at = np.where(begin == end, again.end_order, np.arange(len(again)) - len(again))
    allocs = _Entries(
        rows.start[row],
        begin,
        again.order,
        np.full(len(again), Action.ALLOC, dtype=np.uint8),
        address,
        size,
        again.begin,
    )
    return allocs, _free_entries(rows.start[row], end, freed_at, address, size)


def _free_entries(source: Ints8, place: Ints8, order: Ints8, address: Ints8, size: Ints8) -> _Entries:
    """Two events per free: requested and completed at once."""
    twice = np.repeat(np.arange(len(source)), 2)
    actions = np.tile(np.array([Action.FREE_REQUESTED, Action.FREE_COMPLETED], dtype=np.uint8), len(source))
    none = np.full(len(twice), -1)
    return _Entries(source[twice], place[twice], order[twice], actions, address[twice], size[twice], none)


def _starts_of_groups(events: Events) -> Ints8:
    """Return the start of each event's group: nothing fits between a new segment and the alloc that it serves, nor
    within a free. One more at the end."""
    action, address = events.action, events.address
    moves: Bools = np.isin(action, np.array(_GROWS_OR_SHRINKS, dtype=np.uint8))
    follows = np.zeros(len(events) + 1, dtype=np.bool_)
    follows[1:-1] = moves[:-1] & (moves[1:] | np.isin(action[1:], (Action.ALLOC, Action.OOM)))
    follows[1:-1] |= (
        (action[:-1] == Action.FREE_REQUESTED) & (action[1:] == Action.FREE_COMPLETED) & (address[:-1] == address[1:])
    )
    return np.maximum.accumulate(np.where(follows, 0, np.arange(len(follows))))


def _final_blocks(device: DeviceTrace, rows: Lifetimes, sizes: Ints8, edit: Edit) -> Blocks:
    """Return the final blocks; those that now end earlier are inactive."""
    requested, state = device.blocks.requested.copy(), device.blocks.state.copy()
    of_block = rows.block >= 0
    requested[rows.block[of_block]] = sizes[of_block]
    ended = rows.block[edit.earlier.row]
    requested[ended[ended >= 0]] = 0
    state[ended[ended >= 0]] = State.INACTIVE
    return replace(device.blocks, requested=requested, state=state)
