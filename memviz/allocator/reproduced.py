"""Whether a replay of the recorded settings does what is recorded: every address, every segment made or given back.

It decides for itself when memory is short, so with another amount of it the two part.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from memviz.allocator.blocks import PoolId
from memviz.allocator.other_settings import OtherSettings
from memviz.allocator.recorded_device import Entry, RecordedDevice
from memviz.allocator.replayed import Replayed, reserved_after_events
from memviz.allocator.replayer import Source
from memviz.allocator.start_layout import unsigned
from memviz.allocator.steps import ReplayStep
from memviz.trace.model import Action
from memviz.trace.reserved_bytes import reserved_after
from memviz.units import bytes_text, count_text


@dataclass(frozen=True)
class Parting:
    event: int
    """The recorded event at which they first differ."""
    gives_back: bool
    """The recording gives memory back there."""


def parting(source: Source, replayed: Replayed, total: int | None = None) -> Parting | None:
    """None where this replay of the recorded settings does all that is recorded, up to where it ran out.

    `total` is the whole card that it was on.
    """
    recorded = reserved_after(source.device)
    ours = reserved_after_events(replayed, len(source.device.events))
    # What a malloc takes and gives back on its way the recording has before it, a replay within it.
    settled = np.flatnonzero(np.isin(source.steps.step, _SETTLED)[: len(ours) - 1]) + 1
    differs = settled[ours[settled] != recorded[settled]]
    if len(differs):
        return _parted(source, _begin(source, int(differs[0]) - 1))
    failed = source.steps.out_of_memory
    if replayed.oom is not None and replayed.oom.event not in failed:
        return _parted(source, replayed.oom.event)
    if not source.steps.forced and not failed and not replayed.retries:
        return None
    return _Again(source, replayed.memory, total).parting()


def _begin(source: Source, malloc: int) -> int:
    """What a malloc gave back in the recording stands before it."""
    ladders = (ladder for ladder in source.steps.forced if ladder.malloc not in source.steps.out_of_memory)
    return next((ladder.first for ladder in ladders if ladder.malloc == malloc), malloc)


def _parted(source: Source, event: int) -> Parting:
    actions = source.device.events.action
    gives_back = 0 <= event < len(actions) and actions[event] in (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)
    return Parting(event, bool(gives_back))


def why_parted(source: Source, recorded: Replayed, base: Replayed, total: int | None = None) -> str:
    """In words that go on after a colon; empty where the replay does what is recorded."""
    first = recorded.agreement.first_mismatch if recorded.agreement else None
    if first is not None:
        return f"the model follows it only up to event {count_text(first.event)}"
    if base.is_placed_anew:
        return PLACED_ANEW
    at = parting(source, base, total)
    if at is None:
        return ""
    where, event = "without a limit" if base.memory is None else f"in {bytes_text(base.memory)}", count_text(at.event)
    if at.event in source.steps.out_of_memory:
        return f"it ran out of memory at event {event}, which {where} it does not"
    if at.gives_back:
        return f"for want of memory, by all that shows, what was cached went back at event {event}; {where} it need not"
    if base.oom is not None and base.oom.event <= at.event:
        return f"it went on at event {event}, where {where} nothing is left"
    return f"it took more at event {event} than there is {where}"


PLACED_ANEW = "what was cached before its first event is left out of the comparison"
_SETTLED = np.array(
    [
        ReplayStep.MALLOC,
        ReplayStep.FREE,
        ReplayStep.REQUEST_FREE,
        ReplayStep.COMPLETE_FREE,
        ReplayStep.LET_GO,
        ReplayStep.OUT_OF_MEMORY,
    ],
    np.uint8,
)


class _Differs(Exception):
    pass


_COMPARED = (
    Action.ALLOC,
    Action.FREE_REQUESTED,
    Action.FREE_COMPLETED,
    Action.SEGMENT_ALLOC,
    Action.SEGMENT_FREE,
    Action.SEGMENT_MAP,
    Action.SEGMENT_UNMAP,
)


class _Again(OtherSettings):
    """On recorded addresses, held against the recording entry by entry."""

    def __init__(self, source: Source, memory: int | None, total: int | None) -> None:
        wanted = source.recorded if total is not None else replace(source.recorded, per_process_memory_fraction=1.0)
        super().__init__(source, wanted, memory=memory, total=total)
        self.recording = RecordedDevice(source.spaces, memory, total=total)
        self.device = self.allocator.device = self.recording
        events = source.device.events
        columns = (events.action, unsigned(events.address), events.size)
        self.entries: list[Entry] = list(zip(*(column.tolist() for column in columns), strict=True))
        self.compared: list[int] = np.flatnonzero(np.isin(events.action, np.array(_COMPARED, np.uint8))).tolist()
        self.reached = 0

    def parting(self) -> Parting | None:
        try:
            self._run_to_its_end(None, self._held_against)
        except _Differs:
            return self._here()
        is_whole = self.reached == len(self.compared) or self.oom is not None
        return None if is_whole and not self.starts_afresh else self._here()

    def _here(self) -> Parting:
        ends = [*self.compared, len(self.entries)]
        return _parted(self.source, ends[self.reached])

    def _held_against(self, action: Action, address: int, size: int, stream: int, pool: PoolId) -> None:
        if action is Action.OOM:
            # It ends there; what the driver called free need not be the same number.
            return
        if self.reached == len(self.compared) or self.entries[self.compared[self.reached]] != (action, address, size):
            raise _Differs
        self.reached += 1

    def malloc(self, event: int, address: int, size: int, stream: int, pool: PoolId) -> None:
        grown, there = int(self.source.steps.grown[event]), self.allocator.segments
        self.recording.offer(entry for entry in self.entries[event - grown : event] if entry[1] not in there)
        super().malloc(event, address, size, stream, pool)

    def out_of_memory(self, event: int, address: int, size: int, stream: int, pool: PoolId) -> None:
        super().out_of_memory(event, address, size, stream, pool)
        # It got what the recording was refused.
        raise _Differs
