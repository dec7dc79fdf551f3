"""What the host holds in pinned memory: torch has an allocator for it too.

A block is as large as the next power of two, and kept for whoever wants one of that size again; the host gets none
back while the program runs. Read in torch's source, `CachingHostAllocator.h`.
"""

from __future__ import annotations

from collections import Counter

from torch import Tensor

from memviz.runner.predict.by_storage import MarkedStorages


class PinnedHost(MarkedStorages):
    def __init__(self) -> None:
        super().__init__()
        self._used: Counter[int] = Counter()
        """Blocks of each size, now."""
        self._made: Counter[int] = Counter()

    @property
    def held_bytes(self) -> int:
        """So much of the host's memory is taken, and stays taken."""
        return sum(size * count for size, count in self._made.items())

    def add(self, tensor: Tensor) -> None:
        super().add(tensor)
        size = _block(tensor.untyped_storage().nbytes())
        self._used[size] += 1
        self._made[size] = max(self._made[size], self._used[size])

    def _take(self, key: int) -> None:
        known = self._refs.get(key)
        if known is not None:
            self._used[_block(known.size)] -= 1
        super()._take(key)


def _block(size: int) -> int:
    return 1 << (size - 1).bit_length() if size else 0
