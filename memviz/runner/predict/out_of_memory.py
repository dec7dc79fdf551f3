"""Where a card has no memory left: torch's own error, which programs catch, read, and go on after.

On a card whatever an operator had made is freed before the program sees the error. Here Python's record of where the
error came from would keep it, so what is ours in that record is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from memviz.allocator.caching import CachingAllocator
from memviz.allocator.context import overhead_on
from memviz.allocator.device import AllocationFailed
from memviz.allocator.what_if import CardMemory
from memviz.runner.predict.cards import KnownCard
from memviz.runner.predict.program_frames import line_of_caller

OutOfMemoryError: type[RuntimeError] = torch.OutOfMemoryError
Observer = Callable[[int, int, int, int], Any]
"""Device, bytes wanted, bytes the program may have, bytes free."""
_MAGNITUDES = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


@dataclass(frozen=True)
class PretendedOutOfMemory:
    """One allocation that failed, whether or not the program went on."""

    event: int
    """Of the history: its place there."""
    where: str
    """The line, as far as there is one."""
    requested_bytes: int
    asked_bytes: int
    """Of the card, after rounding: what torch calls "tried to allocate"."""
    allocated_bytes: int
    reserved_bytes: int


class OutOfMemoryReport:
    """What is told when an allocation fails, and to whom."""

    def __init__(self, card: CardMemory) -> None:
        self.failures: list[PretendedOutOfMemory] = []
        self.observers: list[Observer] = []
        self._card = card

    def free_bytes(self, allocator: CachingAllocator) -> int:
        """As the driver would say it."""
        return max(0, self._card.usable_bytes - allocator.statistics.reserved)

    def of(self, failure: AllocationFailed, allocator: CachingAllocator, event: int) -> BaseException:
        requested, free = failure.asked_of_device, self.free_bytes(allocator)
        allowed = self._card.total_bytes if allocator.limit is None else allocator.limit
        figures = (failure.requested, requested, failure.allocated, failure.reserved)
        self.failures.append(PretendedOutOfMemory(event, line_of_caller(), *figures))
        for observer in self.observers:
            observer(0, requested, allowed, free)
        return OutOfMemoryError(self._text(failure, free, allocator.limit))

    def _text(self, failure: AllocationFailed, free: int, limit: int | None) -> str:
        """In torch's order and with its words, because programs look for them."""
        card, allocated, reserved = self._card, failure.allocated, failure.reserved
        in_use = card.overhead_bytes + reserved
        allowed = "" if limit is None else f"{size_text(limit)} allowed; "
        return (
            f"CUDA out of memory. Tried to allocate {size_text(failure.asked_of_device)}. "
            f"GPU 0 has a total capacity of {size_text(card.total_bytes)} of which {size_text(free)} is free. "
            f"Including non-PyTorch memory, this process has {size_text(in_use)} memory in use. "
            f"{allowed}Of the allocated memory {size_text(allocated)} is allocated by PyTorch, "
            f"and {size_text(reserved - allocated)} is reserved by PyTorch but unallocated."
        )


def card_memory(card: KnownCard) -> CardMemory:
    """What a process gets of it."""
    return CardMemory(card.memory_bytes, overhead_on(card.name))


def size_text(count: int) -> str:
    """As torch's messages write it."""
    for size, unit in _MAGNITUDES:
        if count > size:
            return f"{count / size:.2f} {unit}"
    return f"{count} bytes"


def without_our_frames(error: BaseException) -> BaseException:
    """The error as it leaves an operator: nothing that the operator made or was given lives on in it."""
    error.__context__ = error.__cause__ = None
    return error.with_traceback(None)
