"""Who gave segments back in a recording: the allocator, because memory was short, or the program's `empty_cache`.

A malloc that follows need not have been the reason. The program it was where something cached would have served
that malloc, and where the recording reserves as much at another time, so that memory was not short. A program that
does so once does so before other mallocs too, unless their stacks say better. What is left shows how much memory
the process had.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from memviz.allocator.blocks import PoolId
from memviz.allocator.settings import Settings
from memviz.allocator.steps import Forced, Steps
from memviz.trace.model import DeviceTrace, Ints8, driver_free
from memviz.trace.reserved_bytes import reserved_after


@dataclass(frozen=True)
class Memory:
    """What a process had, in bytes, by what it got and what was refused to it."""

    least: int
    most: int


@dataclass(frozen=True)
class WhoFreed:
    emptied: Mapping[int, frozenset[PoolId]]
    """Events at which the program emptied the cache, with the pools that gave something back then."""
    short: tuple[Forced, ...]
    """Where the allocator itself gave memory back."""
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


def who_freed(device: DeviceTrace, settings: Settings, steps: Steps, needless: Collection[int]) -> WhoFreed:
    """`needless` are mallocs that something cached would have served, as a replay of the recording finds."""
    reserved = reserved_after(device)
    peak = int(reserved.max(initial=0))
    collects = settings.garbage_collection_threshold > 0

    def had_no_need(forced: Forced) -> bool:
        there_was_more = 0 < forced.grown_bytes <= peak - int(reserved[forced.first]) and not collects
        return there_was_more or forced.malloc in needless

    unsure = [free for free in steps.forced if not free.is_sure]
    by_program = unsure if any(map(had_no_need, unsure)) else []
    short = [free for free in steps.forced if free not in by_program]
    emptied = {**steps.emptied, **{free.first: free.pools for free in by_program}}
    memory = None if collects else _memory(device, reserved, short, steps.out_of_memory)
    return WhoFreed(emptied, tuple(short), steps.out_of_memory, memory)


def _memory(device: DeviceTrace, reserved: Ints8, short: list[Forced], failed: tuple[int, ...]) -> Memory | None:
    peak = int(reserved.max(initial=0))
    if failed:
        free = driver_free(device.events, failed[0])
        exact = int(reserved[failed[0] + 1]) + free if free is not None else -1
        return Memory(exact, exact) if exact >= peak else None
    refused = [int(reserved[free.first]) + free.grown_bytes for free in short if free.grown_bytes]
    if not refused or min(refused) <= peak:
        return None
    return Memory(peak, min(refused) - 1)
