"""Puts an allocator through its paces in a test's own few words."""

from memviz.allocator.blocks import Block, DeviceMemory, Platform, PoolId, address_space
from memviz.allocator.caching import CachingAllocator
from memviz.allocator.settings import parse_settings
from memviz.trace.model import Action

MiB = 1 << 20
GiB = 1 << 30


class Driver:
    """An allocator with its history, and short names for values that tests check."""

    def __init__(self, settings: str = "", *, card: int | None = None, platform: Platform = "linux") -> None:
        self.history: list[tuple[str, int]] = []
        device = DeviceMemory(card, addresses=address_space(platform))
        self.allocator = CachingAllocator(parse_settings(settings), device, self._record)

    def _record(self, action: Action, address: int, size: int, stream: int, pool: PoolId) -> None:
        self.history.append((action.name.lower(), size))

    def malloc(self, size: float, **more: int) -> Block:
        return self.allocator.malloc(int(size), **more)

    def free(self, *blocks: Block) -> None:
        for block in blocks:
            self.allocator.free(block)

    def cached(self, size: float) -> Block:
        """A block that was allocated and freed."""
        block = self.malloc(size)
        self.free(block)
        return block

    def since(self, *actions: str) -> list[tuple[str, int]]:
        """Entries of these actions since the last call."""
        found = [entry for entry in self.history if not actions or entry[0] in actions]
        self.history.clear()
        return found

    def stat(self, name: str) -> int:
        return self.allocator.statistics.as_dict()[name]

    @property
    def allocated(self) -> int:
        return self.allocator.statistics.allocated

    @property
    def reserved(self) -> int:
        return self.allocator.statistics.reserved

    @property
    def segments(self) -> list[int]:
        """Return the sizes of segments in order of creation; for an expandable segment, its address space."""
        return [sum(block.size for block in head.chain()) for head in self.allocator.segments.values()]
