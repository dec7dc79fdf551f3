"""Replays of a recording's requests through the model of the allocator.

Under the recorded settings the model must land on every recorded address. It takes the addresses of new segments from
the file, because the driver chooses them, and releases what the file releases, because the file does not say how full
the card was. Under other settings, or in another amount of memory, the model decides everything; frees and the
completions of other streams keep their places in the history. `divergence` finds where such a replay leaves the
recording.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from memviz.allocator.blocks import AllocationFailed, DeviceMemory, PoolId, Record, address_space, unrecorded
from memviz.allocator.caching import CachingAllocator, release_cached
from memviz.allocator.event_replay import Progress, RequestReplay
from memviz.allocator.recorded_replay import Entry, RecordedDevice, ensure_replayed
from memviz.allocator.recorded_requests import ReplayStep, Source
from memviz.allocator.replay_result import Figures, RanOut, Replayed, reserved_after_events
from memviz.allocator.settings import Settings, changes_layout
from memviz.allocator.start_layout import lay_out_afresh, lay_out_as_recorded, unsigned
from memviz.allocator.statistics import Tally
from memviz.trace.model import Action, reserved_after
from memviz.units import bytes_text, count_text


class OtherSettings(RequestReplay):
    def __init__(
        self, source: Source, settings: Settings, *, memory: int | None, total: int | None, afresh: bool = False
    ) -> None:
        """`afresh` even where the settings would allow the recorded layout: to compare with some that do not."""
        device = DeviceMemory(memory, total=total, addresses=address_space(source.platform))
        super().__init__(source, settings, device)
        if source.steps.before_mallocs:
            # A replay as recorded finds which of these releases were the program's own.
            ensure_replayed(source)
        self.emptied = source.releases.emptied
        self.starts_afresh = afresh or changes_layout(source.recorded, settings)

    def result(self, progress: Progress | None = None) -> Replayed:
        self._run_to_its_end(progress, self.history.add)
        return self.finished(None, self.allocator.statistics.num_alloc_retries)

    def only_figures(self, progress: Progress | None = None) -> Figures:
        """Without the history, in half the time."""
        self._run_to_its_end(progress, unrecorded)
        return self.figures(self.allocator.statistics.num_alloc_retries)

    def _run_to_its_end(self, progress: Progress | None, record: Record) -> None:
        self.progress = progress
        try:
            if not self.starts_afresh:
                self._start_as_recorded()
            if self.starts_afresh:
                self.live = lay_out_afresh(self.allocator, self.source.layout)
            self.allocator.statistics.reset_peak()
            self.allocator.statistics.reset_accumulated()
            self.allocator.record = record
            self.run()
        except AllocationFailed as error:
            figures = (error.requested, error.asked_of_device, error.allocated, error.reserved)
            self.oom = RanOut(self.history.now, *figures)

    def _start_as_recorded(self) -> None:
        memory, self.device.memory = self.device.memory, None
        self.device.begin_beside([(segment.address, segment.size) for segment in self.source.layout.segments])
        self.live = lay_out_as_recorded(self.allocator, self.source.layout, self.source.spaces)
        self.device.memory = memory
        if self._holds_too_much():
            # On such a card it would have been given back before.
            release_cached(self.allocator)
        if self._holds_too_much():
            # What was live lay too far apart for this card, so there it cannot have lain like that.
            self.starts_afresh = True
            self.device.in_use = 0
            self.allocator = CachingAllocator(self.settings, self.device, statistics=Tally())

    def _holds_too_much(self) -> bool:
        limits = [limit for limit in (self.device.memory, self.allocator.limit) if limit is not None]
        return bool(limits) and self.allocator.statistics.reserved > min(limits)

    def malloc(self, event: int, address: int, size: int, stream: int, pool: PoolId) -> None:
        if address in self.live:
            self.free_what_is_there(address)
        block = self.allocator.malloc(size, stream, pool)
        block.cause = event
        self.live[address] = block

    def release(self, event: int, address: int, size: int, stream: int, pool: PoolId) -> None:
        emptied = self.emptied.get(event)
        if emptied is None:
            return
        private = [
            self.allocator.private_pools[pool_id] for pool_id in emptied if pool_id in self.allocator.private_pools
        ]
        for pair in private:
            # The pool gave memory back, so no graph used it any more.
            pair.use_count = 0
        release_cached(self.allocator)
        for pair in private:
            pair.use_count = 1

    def grow(self, event: int, address: int, size: int, stream: int, pool: PoolId) -> None:
        """Its own affair, under these settings."""

    def out_of_memory(self, event: int, address: int, size: int, stream: int, pool: PoolId) -> None:
        """It is asked for again. Where there is room now, the file has no more to say about it: let go at once."""
        block = self.allocator.malloc(size, stream, pool)
        block.cause = event
        self.allocator.request_free(block)
        self.allocator.complete_free(block)


class SameRequests(OtherSettings):
    """Replay of a program whose every allocator call is known, and not only their effects under its own settings."""

    def run(self) -> None:
        calls, begun = self.source.calls, 0
        assert calls is not None
        for stop in sorted({*calls.emptied, calls.reset}):
            self.run_events(begun, stop)
            begun = stop
            for _ in range(calls.emptied.count(stop)):
                self.allocator.empty_cache()
            if stop == calls.reset:
                self.allocator.statistics.reset_peak()
        self.run_events(begun, len(self.source.device.events))

    def release(self, event: int, address: int, size: int, stream: int, pool: PoolId) -> None:
        """Ignore recorded releases: `empty_cache` releases the model's own memory."""


@dataclass(frozen=True)
class Divergence:
    event: int
    """The recorded event at which they first differ."""
    gives_back: bool
    """The recording gives memory back there."""


def divergence(source: Source, replayed: Replayed, total: int | None = None) -> Divergence | None:
    """None where this replay of the recorded settings does all that is recorded, up to where it ran out.

    `total` is the whole card that it was on.
    """
    recorded = reserved_after(source.device)
    ours = reserved_after_events(replayed, len(source.device.events))
    # What a malloc takes and gives back on its way the recording has before it, a replay within it.
    passing = [ReplayStep.NOTHING, ReplayStep.RELEASE, ReplayStep.GROW, ReplayStep.COPY, ReplayStep.ANNOTATE]
    settled = np.flatnonzero(~np.isin(source.steps.step, passing)[: len(ours) - 1]) + 1
    differs = settled[ours[settled] != recorded[settled]]
    if len(differs):
        # The recording has the releases of a malloc before it.
        malloc = int(differs[0]) - 1
        ladders = (ladder for ladder in source.steps.before_mallocs if ladder.malloc not in source.steps.out_of_memory)
        return _divergence_at(source, next((ladder.first for ladder in ladders if ladder.malloc == malloc), malloc))
    failed = source.steps.out_of_memory
    if replayed.oom is not None and replayed.oom.event not in failed:
        return _divergence_at(source, replayed.oom.event)
    if not source.steps.before_mallocs and not failed and not replayed.retries:
        return None
    return _ComparedReplay(source, replayed.memory, total).divergence()


def _divergence_at(source: Source, event: int) -> Divergence:
    actions = source.device.events.action
    gives_back = 0 <= event < len(actions) and actions[event] in (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)
    return Divergence(event, bool(gives_back))


def why_diverged(source: Source, recorded: Replayed, base: Replayed, total: int | None = None) -> str:
    """In words that go on after a colon; empty where the replay does what is recorded."""
    first = recorded.agreement.first_mismatch if recorded.agreement else None
    if first is not None:
        return f"the model follows it only up to event {count_text(first.event)}"
    if base.is_placed_anew:
        return PLACED_ANEW
    at = divergence(source, base, total)
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


class _Diverged(Exception):
    pass


class _ComparedReplay(OtherSettings):
    """On recorded addresses, held against the recording entry by entry."""

    def __init__(self, source: Source, memory: int | None, total: int | None) -> None:
        wanted = source.recorded if total is not None else replace(source.recorded, per_process_memory_fraction=1.0)
        super().__init__(source, wanted, memory=memory, total=total)
        self.recording = RecordedDevice(source.spaces, memory, total=total)
        self.device = self.allocator.device = self.recording
        events = source.device.events
        columns = (events.action, unsigned(events.address), events.size)
        self.entries: list[Entry] = list(zip(*(column.tolist() for column in columns), strict=True))
        self.compared: list[int] = np.flatnonzero(events.action <= Action.SEGMENT_UNMAP).tolist()
        self.reached = 0

    def divergence(self) -> Divergence | None:
        try:
            self._run_to_its_end(None, self._compare)
        except _Diverged:
            return self._here()
        is_whole = self.reached == len(self.compared) or self.oom is not None
        return None if is_whole and not self.starts_afresh else self._here()

    def _here(self) -> Divergence:
        ends = [*self.compared, len(self.entries)]
        return _divergence_at(self.source, ends[self.reached])

    def _compare(self, action: Action, address: int, size: int, stream: int, pool: PoolId) -> None:
        if action is Action.OOM:
            # It ends there; what the driver called free need not be the same number.
            return
        if self.reached == len(self.compared) or self.entries[self.compared[self.reached]] != (action, address, size):
            raise _Diverged
        self.reached += 1

    def malloc(self, event: int, address: int, size: int, stream: int, pool: PoolId) -> None:
        grown, there = int(self.source.steps.grown[event]), self.allocator.segments
        self.recording.offer(entry for entry in self.entries[event - grown : event] if entry[1] not in there)
        super().malloc(event, address, size, stream, pool)

    def out_of_memory(self, event: int, address: int, size: int, stream: int, pool: PoolId) -> None:
        super().out_of_memory(event, address, size, stream, pool)
        # It got what the recording was refused.
        raise _Diverged
