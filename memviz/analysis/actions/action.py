"""Something that could be done about a trace, and the requests as they would be then."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from memviz.trace.model import Trace


class ActionKind(StrEnum):
    FREE_EARLIER = "free_earlier"
    CHECKPOINT = "checkpoint"
    HALF_PRECISION = "half_precision"
    AUTOCAST = "autocast"
    EXPANDABLE_SEGMENTS = "expandable_segments"


@dataclass(frozen=True, eq=False)
class Proposal:
    """What an estimate is made of. Its figures come of a replay."""

    kind: ActionKind
    name: str
    """As a button says it: 'checkpoint 24 layers'."""
    assumptions: tuple[str, ...]
    trace: Trace | None
    """The edited requests, of one device; None where only the allocator's settings are others."""
