"""The parts in the order in which they are worth most: first whether to trust the recorder, then what it records."""

from __future__ import annotations

import importlib
from typing import Any

PARTS = ("check", "capture", "what-if", "seeds", "cost", "replay", "truth", "seeds-predicted", "samples")
"""The last four need no GPU, only what the others left in OUT: they can be done later and elsewhere."""


def part_named(name: str) -> Any:
    """A module with NEEDS_GPU, AT_ONCE, cases(results, small=...), prepare() and run(case, out)."""
    return importlib.import_module(f"tests.gpu.{name.replace('-', '_')}")
