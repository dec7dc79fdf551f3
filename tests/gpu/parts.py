"""The parts in the order in which they are worth most: first whether to trust the recorder, then what it records."""

from __future__ import annotations

from typing import Any

from tests.gpu import capture, check, cost, replay, samples, seeds, seeds_predicted, truth, what_if
from tests.gpu.case import Case

PARTS: dict[str, Any] = {
    "check": check,
    "capture": capture,
    "what-if": what_if,
    "seeds": seeds,
    "cost": cost,
    "replay": replay,
    "truth": truth,
    "seeds-predicted": seeds_predicted,
    "samples": samples,
}
"""Each a module with CASES and run(case, out). The last four need no GPU, only what the others left in OUT: they can
be done later and elsewhere."""

CASES: tuple[Case, ...] = tuple(case for part in PARTS.values() for case in part.CASES)
