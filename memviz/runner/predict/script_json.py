"""A predicted script as JSON: the last line that `python -m memviz predict --json` prints."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from memviz.runner.predict.estimate import Estimate
from memviz.runner.predict.predicted_script import ScriptPrediction
from memviz.runner.predict.prediction_errors import DataNeeded, Stopped


def script_json(done: ScriptPrediction, output: Path | None = None) -> dict[str, Any]:
    estimate, stopped, whole = done.estimate, done.stopped, not done.not_known
    return {
        "card": estimate.card.name,
        "torch": estimate.torch,
        "exit_status": done.exit_status,
        "not_known": done.not_known or None,
        "rank": None if estimate.rank is None else estimate.rank.number,
        "world_size": None if estimate.rank is None else estimate.rank.world_size,
        "peak_requested_bytes": estimate.peak_requested,
        "peak_allocated_bytes": estimate.peak_allocated,
        "peak_reserved_bytes": estimate.peak_reserved,
        "peak_host_bytes": estimate.peak_host,
        "peak_reserved_on_card_bytes": estimate.peak_reserved_on_card,
        "peak_reserved_without_limit_bytes": estimate.peak_reserved_without_limit,
        "fits": done.fits,
        "fit": None if done.fits is None else estimate.fit_word(),
        "cards": estimate.common_fits() if whole and not estimate.limited else None,
        "context": estimate.context.as_json() if estimate.limited else None,
        "expected_error": estimate.expected_error.as_json() if whole else None,
        "out_of_memory": estimate.out_of_memory,
        "steps": estimate.steps,
        "by_category": estimate.by_category(),
        "processes": dict(estimate.commands),
        "windows": [asdict(window) for window in estimate.windows],
        "assumed": [stated.as_json() for stated in estimate.assumed],
        "notes": list(estimate.notes),
        "warnings": list(estimate.warnings),
        "unproven": [asdict(one) for one in estimate.unproven],
        **(_of_the_group(estimate) if estimate.rank is not None else {}),
        "optimizations": {name: list(models) for name, models in done.applied.items()},
        "file": None if output is None else str(output),
        "unused_assume": list(done.unused_assume),
        "stopped": None if stopped is None else _why(stopped),
    }


def _of_the_group(estimate: Estimate) -> dict[str, Any]:
    return {"fingerprint": estimate.fingerprint, "layout": estimate.layout.as_json()}


def _why(stopped: Stopped) -> dict[str, str]:
    assume = stopped.assume if isinstance(stopped, DataNeeded) else ""
    return {"where": stopped.where, "what": stopped.what, "assume": assume}
