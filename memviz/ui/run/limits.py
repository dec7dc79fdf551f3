"""How much one visitor may ask of the runner. On a Space strangers share two cores; at home nobody else waits."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

from memviz.runner.jobs.limits import TIMEOUT_SECONDS, most_bytes, most_seconds


@dataclass(frozen=True)
class RunLimits:
    variants: int = 32
    """In one order."""
    seconds: float = TIMEOUT_SECONDS
    """For each variant."""
    memory_bytes: int | None = None
    """Of this machine's own, for each variant; without it what suits the machine."""
    patience_seconds: float = 120.0
    """For which an order that nobody follows goes on: somebody who reloads the page comes back to it."""
    estimate_seconds: float = 20.0
    """An estimate that takes longer is none: nobody asked for it."""
    waiting: int = 32
    """Visitors at once."""
    searches: int = 8
    """For ways that fit, at once: each is a process of its own."""


AT_HOME = RunLimits()
ON_A_SPACE = RunLimits(variants=12, seconds=240.0, estimate_seconds=10.0, waiting=24, patience_seconds=30.0, searches=2)


def run_limits(environment: Mapping[str, str] = os.environ) -> RunLimits:
    """MEMVIZ_MAX_RUN_SECONDS and MEMVIZ_MAX_RUN_BYTES set two of them."""
    usual = ON_A_SPACE if environment.get("SPACE_ID") else AT_HOME
    return replace(usual, seconds=most_seconds(usual.seconds, environment), memory_bytes=most_bytes(environment))
