"""Start and end of each allocation, including those from before the first event.

An address is reused all the time, so events are matched per address in order: alloc, free_requested,
free_completed. Allocations from before the first event show as a free without its alloc, or as a block that
is active at the end without any event. So totals are right for histories that start late and for ring buffers
that have wrapped.

Where a file contradicts itself (events left out by `skip_actions`, a damaged file) the faults are counted,
and the rule is written at the line that applies it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from memviz.analysis.cache import cached
from memviz.errors import UsageError
from memviz.trace.model import NO_STACK, Action, Bools, Columns, DeviceTrace, Ints4, Ints8, State

Whole = TypeVar("Whole", np.int32, np.int64)

BEFORE = -1
"""`start` of what was live before the first event."""


@dataclass(frozen=True, eq=False)
class Lifetimes(Columns):
    """One row per allocation, by start, then address. Live after event e: start <= e < end."""

    start: Ints8
    """Event of the alloc, or BEFORE."""
    free_requested: Ints8
    """Event that requested the free, from which it only waits for another stream; BEFORE if that was before the first
    event; the number of events if never."""
    end: Ints8
    """Event that completed the free; the number of events where it is live at the end."""
    size: Ints8
    """Requested bytes."""
    address: Ints8
    stack: Ints4
    """Stack of the allocation. Blocks live at the start and freed later have none: a free shows another place."""
    stream: Ints4
    pool: Ints4
    block: Ints4
    """Row of the final blocks, or -1."""

    def live_after(self, event: int) -> Bools:
        return (self.start <= event) & (self.end > event)


@dataclass(frozen=True)
class Faults:
    """Contradictions between events and final state. All zero in a sound file."""

    stray_frees: int = 0
    """Frees of an address that was free already: their allocs are missing, and they are ignored."""
    implied_frees: int = 0
    """Allocations whose address was handed out again before their free was complete."""
    lost_blocks: int = 0
    """Live by the events, but free or absent in the final segments."""
    lost_bytes: int = 0

    def __bool__(self) -> bool:
        return bool(self.stray_frees or self.implied_frees or self.lost_blocks)


@dataclass(frozen=True)
class Matched:
    lifetimes: Lifetimes
    faults: Faults


def lifetimes(device: DeviceTrace) -> Lifetimes:
    return matched(device).lifetimes


def delayed_frees(device: DeviceTrace) -> Bools:
    """True for rows whose free waited for another stream; other frees are requested and completed by two events."""
    rows, count = lifetimes(device), len(device.events)
    delayed = (rows.end - rows.free_requested > 1) | (rows.end == count)
    return np.asarray((rows.free_requested < count) & delayed)


@cached
def matched(device: DeviceTrace) -> Matched:
    events, count = device.events, len(device.events)
    runs, stray_frees = _Runs.of(device)
    runs = runs.by_start(count)
    blocks = np.flatnonzero(device.blocks.state != State.INACTIVE)
    block = _block_of(runs, blocks, device)

    end = runs.completed.copy()
    # Address reused without a completed free: it ended when the free was requested, or at the latest now.
    implied = (end == count) & ~runs.is_last
    end[implied] = np.minimum(runs.requested[implied], runs.next_start[implied])
    # Free requested, no completion recorded, and free in the final state: `skip_actions` left it out.
    open_last = (end == count) & runs.is_last
    settled = open_last & (block < 0) & (runs.requested < count) & bool(len(device.blocks))
    end[settled] = runs.requested[settled]
    lost = open_last & ~settled & (block < 0) & bool(len(device.blocks))

    started = runs.start >= 0
    source = np.where(started, runs.start, runs.first)
    rest = np.setdiff1d(blocks, block[block >= 0], assume_unique=True)
    requested = np.minimum(runs.requested, end)
    if (events.action == Action.FREE_REQUESTED).any() or count == 1:
        # Its free was completed but not requested in the trace, so it was requested before.
        requested[~started & (runs.completed < count) & (runs.requested == count)] = BEFORE
    rest_waits = device.blocks.state[rest] != State.ACTIVE_ALLOCATED
    # An alloc's own stack; else the final block's, which torch may record even without stacks per event.
    stack = np.where(started, device.events.stack[source], NO_STACK).astype(np.int32)
    missing = (stack == NO_STACK) & (block >= 0)
    stack[missing] = device.blocks.stack[block[missing]]
    rows = Lifetimes(
        start=_appended(runs.start.astype(np.int64), np.full(len(rest), BEFORE)),
        free_requested=_appended(requested.astype(np.int64), np.where(rest_waits, BEFORE, count)),
        end=_appended(end.astype(np.int64), np.full(len(rest), count)),
        size=_appended(events.size[source], device.blocks.requested[rest]),
        address=_appended(events.address[source], device.blocks.address[rest]),
        stack=_appended(stack, device.blocks.stack[rest]),
        stream=_appended(events.stream[source], device.segments.stream[device.blocks.segment[rest]]),
        pool=_appended(events.pool[source], device.segments.pool[device.blocks.segment[rest]]),
        block=_appended(block, rest).astype(np.int32),
    )
    faults = Faults(
        stray_frees=stray_frees,
        implied_frees=int(implied.sum()),
        lost_blocks=int(lost.sum()),
        lost_bytes=int(events.size[source][lost].sum()),
    )
    before = np.flatnonzero(rows.start == BEFORE)
    if len(before):
        # Those from before the first event go by address; the others are sorted already.
        begun = np.flatnonzero(rows.start != BEFORE)
        rows = rows.select(np.concatenate([before[np.argsort(rows.address[before], kind="stable")], begun]))
    return Matched(rows, faults)


@dataclass(frozen=True, eq=False)
class _Runs(Columns):
    """Events of one allocation each, in four bytes. The number of events means *never*."""

    first: Ints4
    start: Ints4
    requested: Ints4
    completed: Ints4
    next_start: Ints4
    is_last: Bools
    """No later run at the same address."""

    @staticmethod
    def of(device: DeviceTrace) -> tuple[_Runs, int]:
        """Return the runs, and the number of frees of what was free already."""
        events, never = device.events, len(device.events)
        index = np.flatnonzero(events.action <= Action.FREE_COMPLETED).astype(np.int32)
        order, new_address = _by_address(events.address[index])
        index = index[order]
        # As large as all events; what follows does without it.
        del order
        action = events.action[index]

        after_free = np.zeros(len(index), dtype=np.bool_)
        after_free[1:] = action[:-1] == Action.FREE_COMPLETED
        is_alloc = action == Action.ALLOC
        opens = is_alloc | new_address | after_free
        first = np.flatnonzero(opens)
        # A run that neither starts with an alloc nor opens its address: a free of what was free already.
        keep = np.flatnonzero((is_alloc | new_address)[first])

        last = np.append(first[1:], len(index))[: len(first)] - 1
        requested = np.full(len(first), never, dtype=np.int32)
        requests = np.flatnonzero(action == Action.FREE_REQUESTED)[::-1]
        run_of = np.cumsum(opens, dtype=np.int32) - 1
        requested[run_of[requests]] = index[requests]
        completed = np.where(action[last] == Action.FREE_COMPLETED, index[last], np.int32(never))[keep]
        address = np.cumsum(new_address, dtype=np.int32)[first[keep]]
        first_event = index[first[keep]]
        runs = _Runs(
            first=first_event,
            start=np.where(is_alloc[first[keep]], first_event, np.int32(BEFORE)),
            requested=requested[keep],
            completed=completed,
            next_start=np.append(first_event[1:], np.int32(never))[: len(keep)],
            is_last=np.append(address[1:] != address[:-1], True)[: len(keep)],
        )
        return runs, len(first) - len(keep)

    def by_start(self, count: int) -> _Runs:
        """Order by start, unknown starts first. No two start at one event, so a scatter replaces the sort."""
        run_of_event = np.full(count, -1, dtype=np.int32)
        begun = np.flatnonzero(self.start != BEFORE)
        run_of_event[self.start[begun]] = begun
        return self.select(np.concatenate([np.flatnonzero(self.start == BEFORE), run_of_event[run_of_event >= 0]]))


def _block_of(runs: _Runs, blocks: Ints8, device: DeviceTrace) -> Ints8:
    """The final block of each run that is still open at the end of its address."""
    block_of = np.full(len(runs.first), -1)
    open_runs = np.flatnonzero(runs.is_last & (runs.completed == len(device.events)))
    if not len(blocks) or not len(open_runs):
        return block_of
    by_address = blocks[np.argsort(device.blocks.address[blocks], kind="stable")]
    addresses = device.blocks.address[by_address]
    wanted = device.events.address[runs.first[open_runs]]
    place = np.minimum(np.searchsorted(addresses, wanted), len(addresses) - 1)
    hit = addresses[place] == wanted
    block_of[open_runs[hit]] = by_address[place[hit]]
    return block_of


def _appended(first: npt.NDArray[Whole], second: npt.NDArray[Any]) -> npt.NDArray[Whole]:
    return np.concatenate([first, second.astype(first.dtype, copy=False)])


def _by_address(address: Ints8) -> tuple[Ints8, Bools]:
    """A stable order by address, and where in it another address begins.

    numpy sorts numbers several times as fast as it finds their order.
    """
    if not len(address):
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.bool_)
    offset = (address - address.min()).view(np.uint64)
    used = int(np.bitwise_or.reduce(offset))
    lowest = (used & -used).bit_length() - 1
    place_bits = len(address).bit_length()
    if used.bit_length() - lowest + place_bits <= 64:
        # Address above, place below: sorted as one number each.
        keys = (offset >> np.uint64(max(lowest, 0))) << np.uint64(place_bits)
        keys |= np.arange(len(address), dtype=np.uint64)
        keys.sort()
        place = np.uint64((1 << place_bits) - 1)
        return np.asarray(keys & place).view(np.int64), _changes(keys & ~place)
    order = np.arange(len(address))
    for shift in range(max(lowest, 0), used.bit_length(), 16):
        digit = (offset >> np.uint64(shift)).astype(np.uint16)
        order = order[np.argsort(digit[order], kind="stable")]
    return order, _changes(address[order])


def _changes(values: npt.NDArray[Any]) -> Bools:
    return np.append(True, values[1:] != values[:-1])


_EARLIEST_EPOCH_SECONDS = 1e8
"""Seconds from here on are a date (1973 and later), below it they count from the first event."""


def live_rows(device: DeviceTrace, event: int) -> Ints8:
    """Rows of `lifetimes` that are live after this event; BEFORE (-1) is before the first one."""
    check_event(device, event)
    rows = lifetimes(device)
    begun = int(np.searchsorted(rows.start, event, side="right"))
    return np.flatnonzero(rows.end[:begun] > event)


def check_event(device: DeviceTrace, event: int) -> None:
    last = len(device.events) - 1
    if not BEFORE <= event <= last:
        reach = f"from 0 to {last}" if last >= 0 else "none"
        raise UsageError(
            f"Device {device.name} has no event {event}. Its events: {reach}; {BEFORE} is the moment before the first."
        )


def has_times(device: DeviceTrace) -> bool:
    """torch before 2.2 recorded none, and on a predicted device no clock runs."""
    return device.is_timed and has_times_or_counts(device)


@cached
def has_times_or_counts(device: DeviceTrace) -> bool:
    """True with times, or counts in their place: enough to place annotations between events."""
    return bool(device.events.time_us.any())


@cached
def clock(device: DeviceTrace) -> Ints8:
    """Times that never run backwards: threads may record an event a little after a later one."""
    times = device.events.time_us
    # Most clocks never do, and a column less is kept.
    return times if (times[1:] >= times[:-1]).all() else np.maximum.accumulate(times)


def event_at_time(device: DeviceTrace, time_us: int) -> int:
    """The last event not later than this time; BEFORE (-1) where all are later."""
    if not has_times(device):
        raise UsageError(f"The events of device {device.name} have no times. Give an event instead.")
    return int(np.searchsorted(clock(device), time_us, side="right")) - 1


def event_at_epoch_or_offset(device: DeviceTrace, seconds: float) -> int:
    """Return the event at a time in seconds since the first event, or since 1970."""
    if not isfinite(seconds):
        raise UsageError(f"{seconds} is not a time.")
    microseconds = round(seconds * 1e6)
    if seconds < _EARLIEST_EPOCH_SECONDS and len(device.events):
        microseconds += int(clock(device)[0])
    return event_at_time(device, microseconds)


def time_of_event(device: DeviceTrace, event: int) -> int | None:
    """None before the first event, and in a file without times."""
    if event == BEFORE or not has_times(device):
        return None
    return int(device.events.time_us[event])
