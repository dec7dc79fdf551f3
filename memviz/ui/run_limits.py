"""How much one visitor may ask of the runner. On a Space strangers share two cores; at home nobody else waits."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from memviz.runner.process import TIMEOUT_SECONDS


@dataclass(frozen=True)
class RunLimits:
    variants: int = 32
    """In one order."""
    seconds: float = TIMEOUT_SECONDS
    """For each variant."""
    estimate_seconds: float = 20.0
    """An estimate that takes longer is none: nobody asked for it."""
    waiting: int = 32
    """Orders of all visitors together."""


AT_HOME = RunLimits()
ON_A_SPACE = RunLimits(variants=12, seconds=240.0, estimate_seconds=10.0, waiting=8)


def run_limits(environment: Mapping[str, str] = os.environ) -> RunLimits:
    return ON_A_SPACE if environment.get("SPACE_ID") else AT_HOME
