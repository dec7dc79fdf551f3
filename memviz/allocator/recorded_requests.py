"""Requests that a recording made of the allocator, event by event, and who released its segments.

The file does not say who released segments. A run of `segment_free` and `segment_unmap` before a new segment or an
out-of-memory event can belong to that malloc: the allocator ran short or collected garbage. Any other run is the
program's `empty_cache`. Stacks decide where there are some. Without them the program released memory where something
cached would have served that malloc, and where the recording reserves as much at another time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

import numpy as np

from memviz.allocator.blocks import DEFAULT_POOL, Platform, PoolId, address_space
from memviz.allocator.settings import settings_of
from memviz.allocator.start_layout import StartLayout, address_spaces, start_layout
from memviz.errors import UsageError
from memviz.trace.intern import is_among
from memviz.trace.model import (
    NO_STACK,
    Action,
    Bools,
    Bytes1,
    DeviceTrace,
    Events,
    Ints4,
    Ints8,
    State,
    Trace,
    driver_free,
    reserved_after,
)


class ReplayStep(IntEnum):
    NOTHING = 0
    MALLOC = 1
    FREE = 2
    """Requested and complete at once: the next event is its completion."""
    REQUEST_FREE = 3
    COMPLETE_FREE = 4
    RELEASE = 5
    """A segment or pages go back."""
    GROW = 6
    """A segment or pages without a malloc right after: the malloc ran out of memory, or another thread intervened."""
    OUT_OF_MEMORY = 7
    COPY = 8
    """An entry that changes nothing."""
    ANNOTATE = 9
    LET_GO = 10
    """A free in a file that leaves the completions out: complete at once, because nothing says when."""


@dataclass(frozen=True)
class ReleaseBeforeMalloc:
    """A run of releases that a malloc may have needed; the program may also have emptied the cache just before."""

    first: int
    """Event of the first release."""
    malloc: int
    """The malloc's own event, or the one that says it ran out."""
    grown_bytes: int
    """Bytes taken from the device afterwards; 0 where it ran out of memory."""
    pools: frozenset[PoolId]
    is_sure: bool
    """Its stacks are the malloc's own, as only the allocator writes them: a program's call has another stack, or where
    frees are recorded without stacks, shows those of the segments. Before it runs out it frees what it can."""


@dataclass(frozen=True)
class Steps:
    step: Bytes1
    grown: Ints8
    """For a MALLOC: how many events just before it are its own new segments or pages."""
    ladders: dict[int, int]
    """Event of the malloc by its ladder's first event, after the cache search failed: it does not search again."""
    emptied: dict[int, frozenset[PoolId]]
    """Events at which the program emptied the cache, with the pools that gave something back then."""
    before_mallocs: tuple[ReleaseBeforeMalloc, ...]
    """The other releases: a malloc follows that may have needed them."""
    out_of_memory: tuple[int, ...]
    """Events at which the recording itself ran out."""
    waited: int
    """Frees that another stream delayed."""


def steps_of(trace: Trace, device: DeviceTrace) -> Steps:
    events = device.events
    action, count = events.action, len(events)
    step = np.zeros(count, dtype=np.uint8)
    for recorded, wanted in _PLAIN.items():
        step[action == recorded] = wanted
    _classify_frees(device, step)
    grows = is_among(action, (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP))
    grown = _run_before(grows)
    step[grows & ~_leads_to(grows, action == Action.ALLOC)] = ReplayStep.GROW
    within = _within_malloc(events)
    # Before the ladders, which make some frees wait.
    waited = int(np.count_nonzero(step == ReplayStep.REQUEST_FREE))
    return Steps(
        step=step,
        grown=grown,
        ladders=_release_ladders(events, step, within),
        emptied={int(run[0]): _pools(trace, events, run) for run in _release_runs(events, ~within)},
        before_mallocs=tuple(_before_mallocs(trace, events, within)),
        out_of_memory=tuple(np.flatnonzero(action == Action.OOM).tolist()),
        waited=waited,
    )


_PLAIN = {
    Action.ALLOC: ReplayStep.MALLOC,
    Action.FREE_REQUESTED: ReplayStep.REQUEST_FREE,
    Action.FREE_COMPLETED: ReplayStep.COMPLETE_FREE,
    Action.SEGMENT_FREE: ReplayStep.RELEASE,
    Action.SEGMENT_UNMAP: ReplayStep.RELEASE,
    Action.OOM: ReplayStep.OUT_OF_MEMORY,
    Action.SNAPSHOT: ReplayStep.COPY,
    Action.ANNOTATE: ReplayStep.ANNOTATE,
}


def _classify_frees(device: DeviceTrace, step: Bytes1) -> None:
    events, states = device.events, device.blocks.state
    is_request, done = step == ReplayStep.REQUEST_FREE, step == ReplayStep.COMPLETE_FREE
    waiting = (states == State.ACTIVE_PENDING_FREE) | (states == State.ACTIVE_AWAITING_FREE)
    if is_request.any() and not done.any() and not waiting.any():
        step[is_request] = ReplayStep.LET_GO
        return
    together = is_request[:-1] & done[1:] & (events.address[:-1] == events.address[1:])
    step[:-1][together] = ReplayStep.FREE
    step[1:][together] = ReplayStep.NOTHING


def _within_malloc(events: Events) -> Bools:
    """Frees that complete in between are part of a malloc's ladder too, so they do not end a run."""
    kept = _of_the_allocator(events)
    action, stack = events.action[kept], events.stack[kept]
    releases = is_among(action, (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP))
    follower = _next_where(~releases)
    follows = releases & (follower < len(kept))
    follower = np.minimum(follower, max(len(kept) - 1, 0))
    takes = is_among(action[follower], (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP, Action.OOM))
    own_stack = (stack == stack[follower]) | (stack == NO_STACK) | (stack[follower] == NO_STACK)
    foreign = np.unique(follower[releases & ~own_stack])
    within = np.zeros(len(events), dtype=np.bool_)
    # Some segments freed by `empty_cache` may be at the address of the next malloc's segment.
    within[kept] = follows & takes & ~np.isin(follower, foreign)
    return within


def _of_the_allocator(events: Events) -> Ints8:
    return np.flatnonzero((events.action != Action.FREE_COMPLETED) & (events.action <= Action.OOM))


def _release_ladders(events: Events, step: Bytes1, within: Bools) -> dict[int, int]:
    follower = _next_where(events.action == Action.ALLOC)[within]
    starts = {}
    for malloc in np.unique(follower[follower < len(events)]).tolist():
        start = malloc
        while start and _belongs_to_ladder(events, step, within, start - 1):
            start -= 1
        if not within[start:malloc].any():
            # What was released led to running out, some time before.
            continue
        if events.action[start] == Action.FREE_COMPLETED and step[start] == ReplayStep.NOTHING:
            # It looked like a free of its own, complete at once; the malloc may as well have waited for it.
            step[start - 1 : start + 1] = (ReplayStep.REQUEST_FREE, ReplayStep.COMPLETE_FREE)
        starts[start] = malloc
    return starts


def _belongs_to_ladder(events: Events, step: Bytes1, within: Bools, event: int) -> bool:
    action = events.action[event]
    if Action.SEGMENT_ALLOC <= action <= Action.SEGMENT_UNMAP:
        return bool(step[event] != ReplayStep.RELEASE or within[event])
    return bool(action == Action.FREE_COMPLETED)


def _release_runs(events: Events, chosen: Bools) -> list[Ints8]:
    """Releases that stand together, of those chosen."""
    kept = _of_the_allocator(events)
    wanted = is_among(events.action[kept], (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)) & chosen[kept]
    starts = wanted.copy()
    starts[1:] &= ~wanted[:-1]
    bounds = np.cumsum(starts[wanted]).searchsorted(np.arange(1, starts.sum()), "right")
    return [run for run in np.split(kept[wanted], bounds) if len(run)]


def _pools(trace: Trace, events: Events, run: Ints8) -> frozenset[PoolId]:
    return frozenset(trace.pools[pool] for pool in np.unique(events.pool[run]).tolist())


def _before_mallocs(trace: Trace, events: Events, within: Bools) -> Iterator[ReleaseBeforeMalloc]:
    ends = np.flatnonzero(is_among(events.action, (Action.ALLOC, Action.OOM)))
    grows = is_among(events.action, (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP))
    made, seen = dict[int, int](), 0
    frees_have_stacks = bool((events.stack[events.action == Action.FREE_REQUESTED] != NO_STACK).any())
    for run in _release_runs(events, within):
        for at in (seen + np.flatnonzero(grows[seen : run[0]])).tolist():
            made[int(events.address[at])] = int(events.stack[at])
        seen = int(run[0])
        after = int(np.searchsorted(ends, run[-1]))
        malloc = int(ends[after]) if after < len(ends) else len(events) - 1
        grown = int(events.size[run[-1] : malloc][grows[run[-1] : malloc]].sum())
        own = [made.get(address, NO_STACK) for address in events.address[run].tolist()]
        theirs = zip(events.stack[run].tolist(), own, strict=True)
        is_sure = events.action[malloc] == Action.OOM or any(
            stack != NO_STACK and (frees_have_stacks or segment not in (NO_STACK, stack)) for stack, segment in theirs
        )
        yield ReleaseBeforeMalloc(int(run[0]), malloc, grown, _pools(trace, events, run), bool(is_sure))


def _next_where(wanted: Bools) -> Ints8:
    """For each place the first from there on that is wanted; the length where there is none."""
    places = np.where(wanted, np.arange(len(wanted)), len(wanted))
    return np.minimum.accumulate(places[::-1])[::-1]


def _leads_to(run: Bools, wanted: Bools) -> Bools:
    """Return for each place whether the first place after its run is wanted."""
    follower = _next_where(~run)
    leads = follower < len(run)
    return np.asarray(leads & wanted[np.minimum(follower, len(run) - 1)]) if len(run) else run


def _run_before(run: Bools) -> Ints8:
    """Length of the run that ends just before each place."""
    places = np.arange(len(run))
    last_other = np.maximum.accumulate(np.where(run, -1, places))
    length = places - last_other
    return np.concatenate([np.zeros(1, dtype=np.int64), length])[:-1] if len(run) else length


def pools_of_events(trace: Trace, device: DeviceTrace) -> Ints4:
    """Return the pool of each event: releases before 2.8 do not write it, so the segment at the address decides."""
    events, segments = device.events, device.segments
    default = [index for index, pool in enumerate(trace.pools) if pool == DEFAULT_POOL]
    if not np.isin(events.pool, default).all() or np.isin(segments.pool, default).all():
        return events.pool
    order = np.argsort(segments.address.view(np.uint64), kind="stable")
    starts = segments.address.view(np.uint64)[order]
    addresses = events.address.view(np.uint64)
    place = np.searchsorted(starts, addresses, side="right") - 1
    holder = order[np.maximum(place, 0)]
    inside = (place >= 0) & (addresses - starts[np.maximum(place, 0)] < segments.size[holder].astype(np.uint64))
    return np.where(inside, segments.pool[holder], events.pool).astype(np.int32)


@dataclass(frozen=True)
class Memory:
    """Bounds of a process's memory in bytes, from what it got and what it was refused."""

    least: int
    most: int


@dataclass(frozen=True)
class ReleaseCauses:
    emptied: Mapping[int, frozenset[PoolId]]
    """Events at which the program emptied the cache, with the pools that gave something back then."""
    short: tuple[ReleaseBeforeMalloc, ...]
    """Releases by the allocator itself."""
    out_of_memory: tuple[int, ...]
    """Events at which the recording ran out."""
    memory: Memory | None
    """None where memory was never short, or not always at the same amount."""

    @property
    def was_short(self) -> bool:
        return bool(self.short or self.out_of_memory)

    @property
    def retries(self) -> int:
        """Mallocs that had to free everything cached first."""
        return len({free.malloc for free in self.short}.union(self.out_of_memory))


def _memory(
    device: DeviceTrace, reserved: Ints8, short: list[ReleaseBeforeMalloc], failed: tuple[int, ...]
) -> Memory | None:
    peak = int(reserved.max(initial=0))
    if failed:
        free = driver_free(device.events, failed[0])
        exact = int(reserved[failed[0] + 1]) + free if free is not None else -1
        return Memory(exact, exact) if exact >= peak else None
    refused = [int(reserved[free.first]) + free.grown_bytes for free in short if free.grown_bytes]
    if not refused or min(refused) <= peak:
        return None
    return Memory(peak, min(refused) - 1)


@dataclass(frozen=True)
class AllocatorCalls:
    """Calls of a program to the allocator between two events; where nothing was cached, no event shows them."""

    emptied: tuple[int, ...]
    """Numbers of the events before which it emptied the cache, in order."""
    reset: int = 0
    """The event from which peaks count."""


_MOST_SEGMENTS, _NEARLY_ALL = 4096, 0.95
_LOWEST_ON_LINUX = 1 << 40
"""There the driver takes addresses from the process, which are far above."""


def platform_of(device: DeviceTrace) -> Platform:
    """Return the platform whose order of addresses the recorded segments have, else whose addresses they have."""
    events = device.events
    rows = np.flatnonzero((events.action == Action.SEGMENT_ALLOC) | (events.action == Action.SEGMENT_FREE))
    rows = rows[:_MOST_SEGMENTS]
    recorded = list(zip(*(part[rows].tolist() for part in (events.action, events.address, events.size)), strict=True))
    linux, windows = _count_in_recorded_order(recorded, "linux"), _count_in_recorded_order(recorded, "windows")
    if linux != windows:
        segments = sum(action == Action.SEGMENT_ALLOC for action, _, _ in recorded)
        # On Linux, segments that fill holes below others ascend for a while.
        return "windows" if linux < windows and windows >= _NEARLY_ALL * segments else "linux"
    addresses = device.segments.address
    return "windows" if len(addresses) and 0 <= addresses.min() < _LOWEST_ON_LINUX else "linux"


def _count_in_recorded_order(recorded: Iterable[tuple[int, int, int]], platform: Platform) -> int:
    """Return how many new segments are on the recorded side of the previous one of their size."""
    space, agreed = address_space(platform), 0
    live: dict[int, int] = {}
    newest: dict[int, tuple[int, int]] = {}
    for action, address, size in recorded:
        if action == Action.SEGMENT_FREE:
            if address in live:
                space.give_back(live.pop(address), size)
            continue
        here = live[address] = space.take(size)
        there, then = newest.get(size, (address, here))
        agreed += (address > there) == (here > then)
        newest[size] = (address, here)
    return agreed


class Source:
    """Requests of one device's recording, and what all replays derive from them once."""

    def __init__(self, trace: Trace, device: DeviceTrace | None = None) -> None:
        device = trace.devices[0] if device is None else device
        if device.kind != "gpu":
            raise UsageError("Pinned memory uses another allocator; only a GPU's history can be replayed.")
        # The upper half of addresses is kept as negative numbers.
        if any(
            ((rows.address < 0) & (rows.address + rows.size > 0)).any() for rows in (device.segments, device.blocks)
        ):
            raise UsageError("The segments exceed the address space: no allocator could place them.")
        self.trace = trace
        self.device = device
        self.recorded, self.settings_are_inferred = settings_of(trace, device)
        self.steps: Steps = steps_of(trace, device)
        self.unneeded_releases: frozenset[int] | None = None
        """Mallocs before which cached memory was released although they did not need it, from a replay as recorded."""
        self.is_exact: bool | None = None
        """True if a replay as recorded reproduces every address; None before there was one."""
        self.calls: AllocatorCalls | None = None
        """Calls of a predicted program; None where they are derived from what was released."""
        self.pools: Ints4 = pools_of_events(trace, device)
        self.set_start_sizes({})

    @cached_property
    def platform(self) -> Platform:
        return platform_of(self.device)

    @cached_property
    def releases(self) -> ReleaseCauses:
        unneeded = self.unneeded_releases or ()
        reserved = reserved_after(self.device)
        peak = int(reserved.max(initial=0))
        collects = self.recorded.garbage_collection_threshold > 0

        def was_avoidable(release: ReleaseBeforeMalloc) -> bool:
            there_was_more = 0 < release.grown_bytes <= peak - int(reserved[release.first]) and not collects
            return there_was_more or release.malloc in unneeded

        unsure = [free for free in self.steps.before_mallocs if not free.is_sure]
        by_program = unsure if any(map(was_avoidable, unsure)) else []
        short = [free for free in self.steps.before_mallocs if free not in by_program]
        emptied = {**self.steps.emptied, **{free.first: free.pools for free in by_program}}
        memory = None if collects else _memory(self.device, reserved, short, self.steps.out_of_memory)
        return ReleaseCauses(emptied, tuple(short), self.steps.out_of_memory, memory)

    def set_agreement(self, unneeded_releases: Iterable[int], *, is_exact: bool) -> None:
        """Note what a replay as recorded has shown."""
        self.unneeded_releases, self.is_exact = frozenset(unneeded_releases), is_exact
        self.__dict__.pop("releases", None)

    def set_start_sizes(self, sizes: Mapping[int, int]) -> None:
        """Set the sizes of blocks live before the first event, by address."""
        self.layout: StartLayout = start_layout(self.trace, self.device, self.recorded, sizes)
        self.spaces = address_spaces(self.trace, self.device, self.layout)
