"""Counters of `torch.cuda.memory_stats()`, counted the same way."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

_BOTH = 0
_KINDS = ("all", "small_pool", "large_pool")


class Stat:
    """One figure for all memory, the small pool and the large pool."""

    __slots__ = ("allocated", "current", "freed", "peak")

    def __init__(self) -> None:
        self.current = [0, 0, 0]
        self.peak = [0, 0, 0]
        self.allocated = [0, 0, 0]
        self.freed = [0, 0, 0]

    def increase(self, kind: int, amount: int) -> None:
        current, peak, allocated = self.current, self.peak, self.allocated
        now = current[kind] + amount
        current[kind] = now
        if now > peak[kind]:
            peak[kind] = now
        allocated[kind] += amount
        now = current[_BOTH] + amount
        current[_BOTH] = now
        if now > peak[_BOTH]:
            peak[_BOTH] = now
        allocated[_BOTH] += amount

    def decrease(self, kind: int, amount: int) -> None:
        current, freed = self.current, self.freed
        current[kind] -= amount
        freed[kind] += amount
        current[_BOTH] -= amount
        freed[_BOTH] += amount

    def change(self, kind: int, amount: int) -> None:
        if amount > 0:
            self.increase(kind, amount)
        elif amount < 0:
            self.decrease(kind, -amount)

    def reset_peak(self) -> None:
        self.peak = list(self.current)

    def reset_accumulated(self) -> None:
        self.allocated = [0, 0, 0]
        self.freed = [0, 0, 0]

    def figures(self, name: str) -> dict[str, int]:
        columns = {"current": self.current, "peak": self.peak, "allocated": self.allocated, "freed": self.freed}
        return {f"{name}.{_KINDS[kind]}.{key}": column[kind] for kind in range(3) for key, column in columns.items()}


@dataclass(slots=True)
class Statistics:
    """Each figure moves where PyTorch moves it: `allocated` falls with free(), `active` when the free completes."""

    allocation: Stat = field(default_factory=Stat)
    allocated_bytes: Stat = field(default_factory=Stat)
    active: Stat = field(default_factory=Stat)
    active_bytes: Stat = field(default_factory=Stat)
    requested_bytes: Stat = field(default_factory=Stat)
    segment: Stat = field(default_factory=Stat)
    reserved_bytes: Stat = field(default_factory=Stat)
    inactive_split: Stat = field(default_factory=Stat)
    inactive_split_bytes: Stat = field(default_factory=Stat)
    oversize_allocations: Stat = field(default_factory=Stat)
    oversize_segments: Stat = field(default_factory=Stat)
    num_alloc_retries: int = 0
    num_ooms: int = 0
    num_sync_all_streams: int = 0
    num_device_alloc: int = 0
    num_device_free: int = 0
    num_oom_rejections: int = 0

    def handed_out(self, kind: int, size: int, requested: int) -> None:
        """`size` is the block's, which may exceed the rounded request where the rest was too small to split."""
        self.allocation.increase(kind, 1)
        self.allocated_bytes.increase(kind, size)
        self.active.increase(kind, 1)
        self.active_bytes.increase(kind, size)
        self.requested_bytes.increase(kind, requested)

    def freed(self, kind: int, size: int) -> None:
        self.allocation.decrease(kind, 1)
        self.allocated_bytes.decrease(kind, size)

    def free_completed(self, kind: int, size: int, requested: int) -> None:
        self.active.decrease(kind, 1)
        self.active_bytes.decrease(kind, size)
        self.requested_bytes.decrease(kind, requested)

    def split_cached(self, kind: int, blocks: int, size: int) -> None:
        """Cached parts of segments that are partly in use: they cannot go back to the device."""
        self.inactive_split.change(kind, blocks)
        self.inactive_split_bytes.change(kind, size)

    @property
    def allocated(self) -> int:
        return self.allocated_bytes.current[_BOTH]

    @property
    def reserved(self) -> int:
        return self.reserved_bytes.current[_BOTH]

    def reset_peak(self) -> None:
        for name in _STATS:
            getattr(self, name).reset_peak()

    def reset_accumulated(self) -> None:
        for name in _STATS:
            getattr(self, name).reset_accumulated()
        for name in _COUNTERS:
            setattr(self, name, 0)

    @property
    def peak_requested(self) -> int:
        return self.requested_bytes.peak[_BOTH]

    @property
    def peak_allocated(self) -> int:
        return self.allocated_bytes.peak[_BOTH]

    @property
    def peak_reserved(self) -> int:
        return self.reserved_bytes.peak[_BOTH]

    def as_dict(self) -> dict[str, int]:
        """Under the names of `torch.cuda.memory_stats()`."""
        figures: dict[str, int] = {}
        for name in _STATS:
            of_name = getattr(self, name).figures(name)
            if name.startswith("oversize"):
                # Only large blocks can be, so these have no pools.
                of_name = {key.replace(".all.", "."): value for key, value in of_name.items() if ".all." in key}
            figures |= of_name
        return figures | {name: getattr(self, name) for name in _COUNTERS}


_STATS = tuple(figure.name for figure in fields(Statistics) if figure.type == "Stat")
_COUNTERS = tuple(figure.name for figure in fields(Statistics) if figure.type == "int")


class Tally(Statistics):
    """Statistics reduced to the bytes that a replay needs of each malloc and free, which takes a third less time."""

    __slots__ = ()

    def handed_out(self, kind: int, size: int, requested: int) -> None:
        _raise(self.allocated_bytes, size)
        _raise(self.requested_bytes, requested)

    def freed(self, kind: int, size: int) -> None:
        self.allocated_bytes.current[_BOTH] -= size

    def free_completed(self, kind: int, size: int, requested: int) -> None:
        self.requested_bytes.current[_BOTH] -= requested

    def split_cached(self, kind: int, blocks: int, size: int) -> None:
        pass


def _raise(stat: Stat, amount: int) -> None:
    current = stat.current
    now = current[_BOTH] = current[_BOTH] + amount
    if now > stat.peak[_BOTH]:
        stat.peak[_BOTH] = now
