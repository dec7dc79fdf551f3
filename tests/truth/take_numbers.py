"""`python -m tests.truth.take_numbers snapshot.pickle [N]`: the events of a recording as numbers, and nothing else.

With N they end after so many allocations, of a recording that shows everything from the beginning.
"""

import sys
from textwrap import fill

from memviz.allocator.blocks import Block, DeviceMemory
from memviz.allocator.caching import CachingAllocator
from memviz.allocator.settings import Settings
from memviz.trace.load import load_trace
from memviz.trace.model import Action, DeviceTrace, State
from tests.replays import replay


def numbers(device: DeviceTrace) -> tuple[int, list[int], list[int]]:
    """Return bytes live from before the first event to the end, sizes of earlier blocks that are freed, and events."""
    events = device.events
    rows = list(zip(events.action.tolist(), events.size.tolist(), events.address.tolist(), strict=True))
    live: dict[int, int] = {}
    freed: list[int] = []
    taken: list[int] = []
    numbered: list[tuple[bool, int]] = []
    """Sizes of allocations, and indices in `freed` or `taken` of frees."""
    for action, size, address in rows:
        if action == Action.ALLOC:
            live[address] = len(taken)
            taken.append(size)
            numbered.append((True, size))
        elif action == Action.FREE_COMPLETED and address in live:
            numbered.append((False, live.pop(address) + 1))
        elif action == Action.FREE_COMPLETED:
            freed.append(size)
            numbered.append((False, -len(freed)))
    told = [number if is_size else _place(number, len(freed)) for is_size, number in numbered]
    return _live_at_the_end(device) - sum(taken[at] for at in live.values()), freed, told


def _place(number: int, before: int) -> int:
    """Renumber a freed allocation: those before the first event are counted first."""
    return number if number < 0 else -(number + before)


def _live_at_the_end(device: DeviceTrace) -> int:
    blocks = device.blocks
    return int(blocks.requested[blocks.state != State.INACTIVE].sum())


def first(events: list[int], count: int) -> list[int]:
    ends = [at for at, event in enumerate(events) if event > 0]
    return events[: ends[count - 1] + 1]


def peaks_of(events: list[int]) -> tuple[int, int, int]:
    """Live, allocated and reserved, by the model of the allocator, which has to land where the recording did."""
    allocator = CachingAllocator(Settings(), DeviceMemory(), lambda *event: None)
    taken: list[Block] = []
    for event in events:
        if event > 0:
            taken.append(allocator.malloc(event, 0, None))
        else:
            allocator.free(taken[-event - 1])
    statistics = allocator.statistics
    return statistics.peak_requested, statistics.peak_allocated, statistics.peak_reserved


if __name__ == "__main__":
    trace = load_trace(sys.argv[1])
    (device,) = trace.devices
    whole = replay(trace)
    before, freed, events = numbers(device)
    peaks = whole.peak_requested_bytes, whole.peak_allocated_bytes, whole.peak_reserved_bytes
    if len(sys.argv) > 2:
        assert whole.exact and not before and not freed
        events = first(events, int(sys.argv[2]))
        peaks = peaks_of(events)
    print("peaks:", *peaks)
    if before:
        print("before:", before)
    if freed:
        print("freed:", *freed)
    print("events")
    print(fill(" ".join(map(str, events)), 150))
