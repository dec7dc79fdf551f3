"""A device that hands out the addresses which a recording has."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from memviz.allocator.address_spaces import AddressSpaces
from memviz.allocator.device import DeviceMemory
from memviz.trace.model import Action

Entry = tuple[int, int, int]
"""Action, address and size."""

_BEYOND_REAL_ADDRESSES = 1 << 62


class RecordedDevice(DeviceMemory):
    """Where the recording has no segment for what is asked, an address that no device has."""

    def __init__(self, spaces: AddressSpaces, memory: int | None = None, *, total: int | None = None) -> None:
        super().__init__(memory, total=total)
        self._next_address = _BEYOND_REAL_ADDRESSES
        self._spaces = spaces
        self._offered: deque[Entry] = deque()

    def offer(self, entries: Iterable[Entry]) -> None:
        """The new segments and pages that the recording has for the malloc to come."""
        self._offered = deque(entries)

    def malloc(self, size: int) -> int | None:
        if self._offered and self._offered[0][0] == Action.SEGMENT_ALLOC and self._offered[0][2] == size:
            return self._offered.popleft()[1] if self.map(size) else None
        return super().malloc(size)

    def reserve(self, size: int) -> tuple[int, int]:
        """A segment that expands begins with the first page mapped in it, and ends where the next one begins."""
        if self._offered and self._offered[0][0] == Action.SEGMENT_MAP:
            address = self._offered[0][1]
            return address, self._spaces.size(address, size)
        return super().reserve(size)
