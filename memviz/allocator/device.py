"""The device below the allocator: how much it has, and where what it gives lies.

Real addresses are the driver's affair. Here they grow from a fixed start, so that the same requests always
land in the same places; a replay feeds in the recorded ones (see `memviz.allocator.recorded_device`).
"""

from __future__ import annotations

from collections.abc import Iterable

from memviz.trace.rounding import MiB

_FIRST_ADDRESS = 0x7F0000000000
_GRANULE = 2 * MiB
_UPPER_HALF = 1 << 62
"""Some devices hand out addresses up there, far from where ours begin."""
_UNKNOWN_CARD = 1 << 40
"""Address space for an expandable segment is reserved by the card's size; without one, more than any has."""


class AllocationFailed(Exception):
    """PyTorch would raise OutOfMemoryError here. The figures are those after everything was tried."""

    def __init__(self, *, requested: int, asked_of_device: int, allocated: int, reserved: int) -> None:
        self.requested = requested
        self.asked_of_device = asked_of_device
        """What PyTorch's message calls "Tried to allocate"."""
        self.allocated = allocated
        self.reserved = reserved
        super().__init__(
            f"Tried to allocate {asked_of_device} bytes for a request of {requested}, "
            f"with {allocated} allocated and {reserved} reserved."
        )


class DeviceMemory:
    """`memory` is what this process can have of it, in bytes; None is without limit."""

    def __init__(self, memory: int | None = None, *, total: int | None = None) -> None:
        self.memory = memory
        self.total = memory if total is None else total
        """The card's whole size, of which memory fractions and address space are counted."""
        self.in_use = 0
        self._next_address = _FIRST_ADDRESS

    @property
    def free_bytes(self) -> int:
        return max(0, self.memory - self.in_use) if self.memory is not None else 0

    @property
    def card_bytes(self) -> int:
        return _UNKNOWN_CARD if self.total is None else self.total

    def malloc(self, size: int) -> int | None:
        """cudaMalloc: an address, or None where there is not enough left."""
        if not self.map(size):
            return None
        return self._new_range(size)

    def free(self, size: int) -> None:
        self.in_use -= size

    def reserve(self, size: int) -> tuple[int, int]:
        """Address space alone costs nothing: where it begins, and how much it is."""
        return self._new_range(size), size

    def map(self, size: int) -> bool:
        """Puts memory behind reserved addresses: all of it or nothing."""
        if self.memory is not None and self.in_use + size > self.memory:
            return False
        self.in_use += size
        return True

    def begin_after(self, addresses: Iterable[int]) -> None:
        """What is given from now on lies above, with room for what expands below it."""
        highest = max((address for address in addresses if address < _UPPER_HALF), default=0)
        self._next_address = max(self._next_address, (highest + 2 * self.card_bytes) & -_GRANULE)

    def _new_range(self, size: int) -> int:
        address = self._next_address
        self._next_address += (size + _GRANULE - 1) & -_GRANULE
        return address
