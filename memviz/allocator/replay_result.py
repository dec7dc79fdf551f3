"""Result of a replay: its figures, its trace, its agreement with the recording, and the notes that views show."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from memviz.allocator.recorded_requests import Source
from memviz.allocator.settings import Settings
from memviz.allocator.start_layout import StartLayout
from memviz.trace.model import Action, Ints8, Note, Trace
from memviz.units import bytes_text, count_text, counted


@dataclass(frozen=True)
class Mismatch:
    """First difference between the recording and the model."""

    event: int
    """The number of events where only the final state differs."""
    expected: str
    got: str
    why: str


@dataclass(frozen=True)
class Agreement:
    address_mismatches: int
    first_mismatch: Mismatch | None


@dataclass(frozen=True)
class RanOut:
    """No memory left. `event` is -1 where what was live before the first event did not fit."""

    event: int
    requested_bytes: int
    asked_of_device_bytes: int
    """The segment that would have been needed; PyTorch's message calls it "Tried to allocate"."""
    allocated_bytes: int
    reserved_bytes: int


@dataclass(frozen=True)
class Figures:
    """Figures of a replay; a search needs no more of most replays."""

    settings: Settings
    memory: int | None
    """Memory available to the process, in bytes; None is without limit."""
    peak_requested_bytes: int
    """Peak requested by the program; no settings can lower it."""
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    reserved_end_bytes: int
    retries: int
    oom: RanOut | None

    @property
    def unused_at_peak_bytes(self) -> int:
        """Peak of reserved minus peak of allocated bytes."""
        return self.peak_reserved_bytes - self.peak_allocated_bytes

    @property
    def fragmentation(self) -> float:
        """Share of the reserved peak above the allocated peak."""
        return self.unused_at_peak_bytes / self.peak_reserved_bytes if self.peak_reserved_bytes else 0.0


@dataclass(frozen=True)
class Replayed(Figures):
    trace: Trace
    """One device; it ends where memory ran out."""
    sources: Ints8
    """For each event of the trace, the recorded event that caused it."""
    agreement: Agreement | None
    """With the recording, where this had its settings and its card; None where there is nothing to agree with."""
    waiting_at_start_bytes: int
    """Bytes live before the first event that were freed already and waited for another stream. PyTorch still counts
    them as requested, but no longer as allocated."""
    is_placed_anew: bool
    """Blocks live before the first event are placed as these settings would place them in empty memory."""

    @property
    def exact(self) -> bool:
        """Every address and every segment as recorded."""
        return self.agreement is not None and self.agreement.first_mismatch is None


def reserved_after_events(replayed: Replayed, recorded_events: int) -> Ints8:
    """Bytes reserved after each recorded event; row 0 is before the first. It ends where memory ran out."""
    events = replayed.trace.devices[0].events
    grows = (events.action == Action.SEGMENT_ALLOC) | (events.action == Action.SEGMENT_MAP)
    shrinks = (events.action == Action.SEGMENT_FREE) | (events.action == Action.SEGMENT_UNMAP)
    after = np.concatenate([[0], np.cumsum(np.where(grows, events.size, np.where(shrinks, -events.size, 0)))])
    last = recorded_events if replayed.oom is None or replayed.agreement else replayed.oom.event + 1
    caused = np.searchsorted(replayed.sources, np.arange(-1, last), side="right")
    return np.asarray(after[caused] + (replayed.reserved_end_bytes - after[-1]), dtype=np.int64)


def exactness(recorded: Replayed) -> str:
    first = recorded.agreement.first_mismatch if recorded.agreement else None
    if first is not None:
        return f"replay of the recording exact up to event {count_text(first.event)}. {first.why}"
    return f"replay of the recording exact, 0 of {count_text(allocation_count(recorded))} addresses differ"


def allocation_count(recorded: Replayed) -> int:
    """How many there are to land on."""
    return int((recorded.trace.devices[0].events.action == Action.ALLOC).sum())


_INFERRED = "The settings in the file do not say so, but its segments expand, so expandable_segments:True is assumed."
_REUSE = (
    "graph_capture_record_stream_reuse lets a capture hand out memory again before it ends; the replay waits for the "
    "end, so a graph may need less than this."
)
_BY_CLASS = (
    "expandable_segments_reserve_by_class changes how much address space segments reserve; the replay leaves it out."
)


def replay_notes(source: Source, settings: Settings, agreement: Agreement | None, *, afresh: bool) -> list[Note]:
    """Return notes on the settings, on the start, and on where the replay is another than the recording."""
    notes = [Note("settings_inferred", _INFERRED)] if source.settings_are_inferred else []
    if settings.graph_capture_record_stream_reuse:
        notes.append(Note("settings_not_modelled", _REUSE, level="warning"))
    if any(key == "expandable_segments_reserve_by_class" for key, _ in settings.others):
        notes.append(Note("settings_not_modelled", _BY_CLASS, level="warning"))
    notes += _start_notes(source.layout, afresh=afresh)
    if agreement is None and source.steps.waited:
        frees = counted(source.steps.waited, "free")
        text = (
            f"The file does not say when other streams finished: {frees} that waited for one complete as recorded, or "
            "earlier where memory runs out."
        )
        notes.append(Note("streams_as_recorded", text))
    elif agreement is not None and agreement.first_mismatch is not None:
        first, count = agreement.first_mismatch, agreement.address_mismatches
        differ = f"{count_text(count)} {'address' if count == 1 else 'addresses'}"
        text = f"The replay is exact up to event {first.event:,}; {differ} differ after that. {first.why}"
        notes.append(Note("replay_differs", text, level="warning"))
    return notes


def _start_notes(layout: StartLayout, *, afresh: bool) -> list[Note]:
    notes = []
    if layout.segments:
        how = (
            "was placed into empty memory in order of address, which gives less fragmentation than in reality."
            if afresh
            else "was rebuilt from the final state and the frees, with the cache around it."
        )
        live = counted(len(layout.blocks), "block")
        notes.append(Note("start_rebuilt", f"Memory from before recording started ({live}) {how}"))
    waiting = sum(block.is_waiting for block in layout.blocks)
    if waiting:
        blocks = counted(waiting, "block")
        text = (
            f"{bytes_text(layout.waiting_bytes)} from before recording started ({blocks}) were already freed and "
            "waited for another stream: they are live, but not counted as allocated."
        )
        notes.append(Note("start_waits", text))
    if layout.unplaced:
        left_out = counted(layout.unplaced, "block")
        text = f"Memory from before recording started that is in no segment ({left_out}) was left out."
        notes.append(Note("start_unplaced", text, level="warning"))
    return notes
