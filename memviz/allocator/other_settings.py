"""The replay under settings or on a card that the recording did not have."""

from __future__ import annotations

from memviz.allocator.as_recorded import with_needless
from memviz.allocator.blocks import PoolId
from memviz.allocator.caching import CachingAllocator
from memviz.allocator.device import AllocationFailed, DeviceMemory
from memviz.allocator.lay_out import lay_out_afresh, lay_out_as_recorded
from memviz.allocator.quick_replay import run_quickly
from memviz.allocator.release import release_cached
from memviz.allocator.replayed import Figures, RanOut, Replayed
from memviz.allocator.replayer import Progress, Replay, Source
from memviz.allocator.settings import Settings, changes_layout
from memviz.allocator.state import Record, unrecorded
from memviz.allocator.statistics import Tally


class OtherSettings(Replay):
    def __init__(
        self, source: Source, settings: Settings, *, memory: int | None, total: int | None, afresh: bool = False
    ) -> None:
        """`afresh` even where the settings would allow the recorded layout: to compare with some that do not."""
        super().__init__(source, settings, DeviceMemory(memory, total=total))
        self.emptied = with_needless(source).freed.emptied
        self.starts_afresh = afresh or changes_layout(source.recorded, settings)

    def result(self, progress: Progress | None = None) -> Replayed:
        self._run_to_its_end(progress, self.history.add)
        return self.finished(None, self.allocator.statistics.num_alloc_retries)

    def only_figures(self, progress: Progress | None = None) -> Figures:
        """Without the history, in half the time."""
        self._run_to_its_end(progress, unrecorded)
        return self.figures(self.allocator.statistics.num_alloc_retries)

    def run_events(self, begin: int, end: int) -> None:
        # The quick way tells what it serves to the history alone.
        is_told_to_others = self.allocator.record not in (self.history.add, unrecorded)
        if self.allocator.counts_age or is_told_to_others:
            super().run_events(begin, end)
        else:
            run_quickly(self, begin, end)

    def _run_to_its_end(self, progress: Progress | None, record: Record) -> None:
        self.progress = progress
        try:
            self._start()
            self.allocator.record = record
            self.run()
        except AllocationFailed as error:
            figures = (error.requested, error.asked_of_device, error.allocated, error.reserved)
            self.oom = RanOut(self.history.now, *figures)

    def _start(self) -> None:
        if not self.starts_afresh:
            self._start_as_recorded()
        if self.starts_afresh:
            self.live = lay_out_afresh(self.allocator, self.source.layout)
        self.allocator.statistics.reset_peak()
        self.allocator.statistics.reset_accumulated()

    def _start_as_recorded(self) -> None:
        memory, self.device.memory = self.device.memory, None
        self.device.begin_after(segment.end for segment in self.source.layout.segments)
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
            # It gave memory back, so by then nobody held it.
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
    """Of a program whose every word to the allocator is known, and not only what came of it under its own settings."""

    def run(self) -> None:
        said, begun = self.source.said, 0
        assert said is not None
        for stop in sorted({*said.emptied, said.reset}):
            self.run_events(begun, stop)
            begun = stop
            for _ in range(said.emptied.count(stop)):
                self.allocator.empty_cache()
            if stop == said.reset:
                self.allocator.statistics.reset_peak()
        self.run_events(begun, len(self.source.device.events))

    def release(self, event: int, address: int, size: int, stream: int, pool: PoolId) -> None:
        """What is given back where the cache is emptied is its own affair too."""
