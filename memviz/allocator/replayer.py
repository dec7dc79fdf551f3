"""Walks a recording's events and puts each to the model: the parts that both kinds of replay share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from memviz.allocator.blocks import Block, PoolId
from memviz.allocator.caching import CachingAllocator
from memviz.allocator.history import ModelHistory, described, replayed_trace
from memviz.allocator.recorded_requests import (
    ReleaseCauses,
    ReplayStep,
    Steps,
    pools_of_events,
    release_causes,
    steps_of,
)
from memviz.allocator.replay_result import (
    Agreement,
    Figures,
    RanOut,
    Replayed,
    of_mismatch,
    of_settings,
    of_start,
    of_streams,
)
from memviz.allocator.settings import Settings, settings_of
from memviz.allocator.start_layout import StartLayout, address_spaces, start_layout, unsigned
from memviz.allocator.state import DeviceMemory, unrecorded
from memviz.allocator.statistics import Tally
from memviz.trace.model import Action, DeviceTrace, Ints4, Trace

CHUNK = 1 << 11
"""Events that are turned into Python numbers at a time. So often it is asked whether the replay is to go on: in a
recording that is made for it, a single event can take milliseconds."""

Progress = Callable[[int, int], None]
"""Told how many events are done, and of how many. What it raises ends the replay."""


def part_of(progress: Progress | None, number: int, count: int) -> Progress | None:
    """Return the progress of one of `count` replays of equal length, numbered from 0."""
    tell = progress
    return None if tell is None else lambda done, total: tell(number * total + done, count * total)


def rest_of(progress: Progress | None, first: int, count: int) -> Progress | None:
    """Return the joint progress of the parts from `first` on, of `count` parts of equal length."""
    tell = progress
    return None if tell is None else lambda done, total: tell(first * total + (count - first) * done, count * total)


@dataclass(frozen=True)
class AllocatorCalls:
    """Calls of a program to the allocator between two events; where nothing was cached, no event shows them."""

    emptied: tuple[int, ...]
    """Numbers of the events before which it emptied the cache, in order."""
    reset: int = 0
    """The event from which peaks count."""


class Source:
    """Input of both kinds of replay."""

    def __init__(self, trace: Trace, device: DeviceTrace) -> None:
        self.trace = trace
        self.device = device
        self.recorded, self.settings_are_inferred = settings_of(trace, device)
        self.steps: Steps = steps_of(trace, device)
        self.needless: frozenset[int] | None = None
        """Mallocs before which memory was freed although they did not need it; a replay as recorded finds them."""
        self.is_exact: bool | None = None
        """True if a replay as recorded reproduces every address; None before there was one."""
        self.said: AllocatorCalls | None = None
        """Calls of a predicted program; None where they are derived from what was released."""
        self._freed: tuple[frozenset[int] | None, ReleaseCauses] | None = None
        self.pools: Ints4 = pools_of_events(trace, device)
        self.know_sizes({})

    @property
    def freed(self) -> ReleaseCauses:
        if self._freed is None or self._freed[0] is not self.needless:
            freed_by = release_causes(self.device, self.recorded, self.steps, self.needless or ())
            self._freed = (self.needless, freed_by)
        return self._freed[1]

    def know_sizes(self, sizes: Mapping[int, int]) -> None:
        """Set the sizes of blocks live before the first event, by address."""
        self.layout: StartLayout = start_layout(self.trace, self.device, self.recorded, sizes)
        self.spaces = address_spaces(self.trace, self.device, self.layout)


Handler = Callable[[int, int, int, int, PoolId], None]


class RequestReplay(ABC):
    """Event by event. Recorded addresses only name blocks; where the model put them is its own affair."""

    starts_afresh = False
    """True if blocks live before the first event are placed anew."""
    progress: Progress | None = None
    lands_as_recorded = False
    """True if a block at another address than in the recording is worth a note."""
    grown: Mapping[int, int] = {}
    """For each malloc, how many events just before it made memory for it."""
    after_ladder: Mapping[int, bool] = {}
    """For each malloc that memory was freed for, whether something cached would have served it before."""

    def __init__(self, source: Source, settings: Settings, device: DeviceMemory) -> None:
        self.source = source
        self.settings = settings
        self.device = device
        self.history = ModelHistory()
        self.allocator = CachingAllocator(settings, device, statistics=Tally())
        self.live: dict[int, Block] = {}
        self.oom: RanOut | None = None

    def run(self) -> None:
        self.run_events(0, len(self.source.device.events))

    def run_events(self, begin: int, end: int) -> None:
        handlers = self.handlers()
        events, steps, pools = self.source.device.events, self.source.steps.step, self.source.pools
        names, history, addresses = self.source.trace.pools, self.history, unsigned(events.address)
        for first in range(begin, end, CHUNK):
            if self.progress:
                self.progress(first, len(events))
            part = first + np.flatnonzero(steps[first : min(first + CHUNK, end)])
            columns = (part, steps[part], addresses[part], events.size[part], events.stream[part], pools[part])
            for event, step, address, size, stream, pool in zip(*(column.tolist() for column in columns), strict=True):
                history.now = event
                handlers[step](event, address, size, stream, names[pool])

    def handlers(self) -> list[Handler]:
        by_step: dict[int, Handler] = {
            ReplayStep.MALLOC: self.malloc,
            ReplayStep.FREE: self.free,
            ReplayStep.REQUEST_FREE: self.request_free,
            ReplayStep.COMPLETE_FREE: self.complete_free,
            ReplayStep.RELEASE: self.release,
            ReplayStep.GROW: self.grow,
            ReplayStep.OUT_OF_MEMORY: self.out_of_memory,
            ReplayStep.COPY: self.copy,
            ReplayStep.ANNOTATE: self.annotate,
            ReplayStep.LET_GO: self.let_go,
        }
        return [by_step.get(step, self.copy) for step in range(len(ReplayStep))]

    @abstractmethod
    def malloc(self, event: int, address: int, size: int, stream: int, pool: PoolId) -> None: ...

    @abstractmethod
    def release(self, event: int, address: int, size: int, stream: int, pool: PoolId) -> None: ...

    @abstractmethod
    def grow(self, event: int, address: int, size: int, stream: int, pool: PoolId) -> None: ...

    @abstractmethod
    def out_of_memory(self, event: int, address: int, size: int, stream: int, pool: PoolId) -> None: ...

    def free(self, event: int, address: int, size: int, stream: int, pool: PoolId) -> None:
        block = self.live.get(address)
        if block is not None and block.allocated:
            del self.live[address]
            self.allocator.request_free(block)
            self.history.now = event + 1
            self.allocator.complete_free(block)

    def request_free(self, event: int, address: int, size: int, stream: int, pool: PoolId) -> None:
        block = self.live.get(address)
        if block is not None and block.allocated:
            self.allocator.request_free(block)
            self.allocator.pending.hold(block)

    def complete_free(self, event: int, address: int, size: int, stream: int, pool: PoolId) -> None:
        block = self.live.pop(address, None)
        if block is None:
            return
        if block.allocated:
            with self._unwritten():
                self.allocator.request_free(block)
            self.allocator.complete_free(block)
        elif block in self.allocator.pending.blocks:
            self.allocator.pending.complete(block)

    def let_go(self, event: int, address: int, size: int, stream: int, pool: PoolId) -> None:
        block = self.live.get(address)
        if block is not None and block.allocated:
            del self.live[address]
            self.allocator.request_free(block)
            with self._unwritten():
                self.allocator.complete_free(block)

    @contextmanager
    def _unwritten(self) -> Iterator[None]:
        """Record no entries here that the file leaves out, so that both read the same way."""
        self.allocator.record, record = unrecorded, self.allocator.record
        yield
        self.allocator.record = record

    def copy(self, event: int, address: int, size: int, stream: int, pool: PoolId) -> None:
        action = Action(int(self.source.device.events.action[event]))
        self.history.add(action, address, size, stream, pool)

    def annotate(self, event: int, address: int, size: int, stream: int, pool: PoolId) -> None:
        block = self.live.get(address)
        self.history.add(Action.ANNOTATE, block.address if block else address, size, stream, pool)

    def free_what_is_there(self, address: int) -> None:
        """The address is handed out again, so its free is missing in the file."""
        self.complete_free(self.history.now, address, 0, 0, (0, 0))

    def figures(self, retries: int) -> Figures:
        now = self.allocator.statistics
        return Figures(
            settings=self.settings,
            memory=self.device.memory,
            peak_requested_bytes=now.peak_requested,
            peak_allocated_bytes=now.peak_allocated,
            peak_reserved_bytes=now.peak_reserved,
            reserved_end_bytes=now.reserved,
            retries=retries,
            oom=self.oom,
        )

    def finished(self, agreement: Agreement | None, retries: int) -> Replayed:
        source = self.source
        notes = [
            *of_settings(self.settings, are_inferred=source.settings_are_inferred),
            *of_start(source.layout, afresh=self.starts_afresh),
        ]
        if agreement is not None:
            notes += of_mismatch(agreement.first_mismatch, agreement.address_mismatches)
        else:
            notes += of_streams(source.steps.waited)
        trace = replayed_trace(source.trace, source.device, source.layout, self.allocator, self.history)
        return Replayed(
            **vars(self.figures(retries)),
            trace=described(trace, self.settings, self.device.memory, notes),
            sources=self.history.causes(),
            agreement=agreement,
            waiting_at_start_bytes=source.layout.waiting_bytes,
            is_placed_anew=self.starts_afresh and bool(source.layout.segments),
        )
