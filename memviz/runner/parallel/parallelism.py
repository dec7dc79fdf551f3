"""Parallel layout of a workload over GPUs (data, tensor, pipeline), and the classes of ranks with equal memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import prod
from pathlib import Path
from typing import Any

from memviz.errors import UsageError
from memviz.text import nearest

MOST_GPUS = 4_096
GPUS = "gpus"


@dataclass(frozen=True)
class Parallel:
    """The product of all is the number of GPUs. Ranks are numbered along them, the last of these first."""

    pipeline: int = 1
    """Stages, each of some blocks."""
    data: int = 1
    """Whole copies, which sum their gradients."""
    shard: int = 1
    """Parts of weights, gradients and optimizer states, gathered block by block."""
    tensor: int = 1
    """Parts of each matrix and of the sequence between them."""

    @property
    def gpus(self) -> int:
        return prod(self.sizes.values())

    @property
    def sizes(self) -> dict[str, int]:
        """Axis sizes by name, as a device mesh takes them."""
        return {axis.name: getattr(self, axis.name) for axis in fields(self)}

    @property
    def used(self) -> dict[str, int]:
        """Only those along which there is more than one."""
        return {name: size for name, size in self.sizes.items() if size > 1}

    @property
    def words(self) -> str:
        """ "8 GPUs: 2 data x 4 shard"."""
        return f"{self.gpus:,} GPUs: {self.parts}" if self.parts else "1 GPU"

    @property
    def parts(self) -> str:
        """ "2 data x 4 shard"."""
        return " x ".join(f"{size} {name}" for name, size in self.used.items())

    @property
    def as_texts(self) -> dict[str, str]:
        return {name: str(size) for name, size in self.used.items()}


ALONE = Parallel()
AXES = tuple(ALONE.sizes)


def parallel_of(texts: Mapping[str, str]) -> Parallel:
    """Parse the axes. With `gpus` and no `shard`, weights are sharded over the GPUs that other axes leave."""
    names = (GPUS, *AXES)
    for name in texts:
        if name not in names:
            raise UsageError(f"GPUs are parted along {', '.join(AXES)}; there is no {name}.{nearest(name, names)}")
    sizes = {name: _size(name, text) for name, text in texts.items() if text.strip()}
    gpus = sizes.pop(GPUS, None)
    others = prod(size for name, size in sizes.items() if name != "shard")
    if gpus is not None and "shard" not in sizes and gpus % others == 0:
        sizes["shard"] = gpus // others
    parallel = Parallel(**sizes)
    if gpus is not None and parallel.gpus != gpus:
        value = " x ".join(f"{size} {name}" for name, size in sizes.items())
        remedy = "give axes whose product it is" if "shard" in sizes else f"{others} must divide it"
        raise UsageError(f"gpus is {gpus}, and {value} are {parallel.gpus}: {remedy}.")
    if parallel.gpus > MOST_GPUS:
        raise UsageError(f"These would be {parallel.gpus:,} GPUs; {MOST_GPUS:,} are the most.")
    return parallel


def _size(name: str, text: str) -> int:
    if not text.strip().isdecimal() or not 1 <= int(text) <= MOST_GPUS:
        raise UsageError(f"{name} is a whole number from 1 to {MOST_GPUS:,}, not {text.strip()[:20]}.")
    return int(text)


_BYTES = ("peak_allocated_bytes", "peak_reserved_bytes", "peak_requested_bytes", "weights_bytes")
_WORK = ("flops", "bytes_moved", "host_bytes", "link_bytes")


@dataclass(frozen=True)
class RankClass:
    ranks: tuple[int, ...]
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    peak_requested_bytes: int
    weights_bytes: int
    fit: str = ""
    """"yes", "no" or "close", as of a run."""
    flops: int = 0
    bytes_moved: int = 0
    host_bytes: int = 0
    link_bytes: int = 0
    """Bytes of one step, as in `Run`; 0 in older files."""

    @property
    def shown(self) -> int:
        """The one that was predicted."""
        return self.ranks[0]

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RankClass:
        """Raise TypeError for invalid values of a file."""
        names = [attribute.name for attribute in fields(cls)]
        values = {name: value[name] if name not in _WORK else value.get(name, 0) for name in names}
        values["ranks"] = tuple(values["ranks"])
        numbers = [*values["ranks"], *(values[name] for name in (*_BYTES, *_WORK))]
        if not 0 < len(values["ranks"]) <= MOST_GPUS or not all(type(one) is int and one >= 0 for one in numbers):
            raise TypeError("no class of ranks")
        if values["fit"] not in ("", "yes", "no", "close"):
            raise TypeError("no class of ranks")
        return cls(**values)


def file_of_rank(run: Path, rank: int, rank_of_run: int | None) -> Path:
    return run if rank == rank_of_run else run.with_name(f"{run.stem}.rank{rank}{run.suffix}")
