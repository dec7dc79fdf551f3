"""Ranks of a run that take the same memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from memviz.runner.parallel.parallel import MOST_GPUS

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
    """Of one step, as of a run; none in files of before."""

    @property
    def shown(self) -> int:
        """The one that was predicted."""
        return self.ranks[0]

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RankClass:
        """TypeError where a file says what is none."""
        names = [attribute.name for attribute in fields(cls)]
        known = {name: value[name] if name not in _WORK else value.get(name, 0) for name in names}
        known["ranks"] = tuple(known["ranks"])
        numbers = [*known["ranks"], *(known[name] for name in (*_BYTES, *_WORK))]
        if not 0 < len(known["ranks"]) <= MOST_GPUS or not all(type(one) is int and one >= 0 for one in numbers):
            raise TypeError("no class of ranks")
        if known["fit"] not in ("", "yes", "no", "close"):
            raise TypeError("no class of ranks")
        return cls(**known)
