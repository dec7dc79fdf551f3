"""Ranks of a run that take the same memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from memviz.runner.parallel.parallel import MOST_GPUS

_BYTES = ("peak_allocated_bytes", "peak_reserved_bytes", "peak_requested_bytes", "weights_bytes")


@dataclass(frozen=True)
class RankClass:
    ranks: tuple[int, ...]
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    peak_requested_bytes: int
    weights_bytes: int
    fit: str = ""
    """"yes", "no" or "close", as of a run."""

    @property
    def shown(self) -> int:
        """The one that was predicted."""
        return self.ranks[0]

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RankClass:
        """TypeError where a file says what is none."""
        known = {attribute.name: value[attribute.name] for attribute in fields(cls)}
        known["ranks"] = tuple(known["ranks"])
        numbers = [*known["ranks"], *(known[name] for name in _BYTES)]
        if not 0 < len(known["ranks"]) <= MOST_GPUS or not all(type(one) is int and one >= 0 for one in numbers):
            raise TypeError("no class of ranks")
        if known["fit"] not in ("", "yes", "no", "close"):
            raise TypeError("no class of ranks")
        return cls(**known)
