"""One thing worth knowing about a device's history: a sentence with its figure, and the allocations that show it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from memviz.analysis.purpose.reasons import Certainty
from memviz.trace.model import Ints8


class FindingKind(StrEnum):
    OUT_OF_MEMORY = "out_of_memory"
    ACTIVATIONS = "activations"
    KEPT_TOO_LONG = "kept_too_long"
    GROWING = "growing"
    SPIKE = "spike"
    PINNED_SEGMENTS = "pinned_segments"
    DUPLICATED_WEIGHTS = "duplicated_weights"
    GRADIENTS_IN_FORWARD = "gradients_in_forward"
    WIDER_COPIES = "wider_copies"
    LARGE_TEMPORARY = "large_temporary"
    PRIVATE_POOLS = "private_pools"
    WAITING_FREES = "waiting_frees"


@dataclass(frozen=True, eq=False)
class Finding:
    kind: FindingKind
    bytes: int
    """What it is ranked by; the sentence says of what."""
    sentence: str
    remedy: str
    rows: Ints8
    """Of `lifetimes`: what shows it, rising."""
    event: int
    """After which it is seen best."""
    site: str = ""
    """Of most of it; empty where no stack was recorded, or no single place made it."""
    certainty: Certainty = Certainty.SURE
    number: int = 1
    """Among those of its kind, the largest first."""

    @property
    def key(self) -> str:
        """What it is named by in links and requests."""
        return f"{self.kind}-{self.number}"
