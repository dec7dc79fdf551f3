"""A run as JSON: what `python -m memviz run --json` prints, and what programs that ask the page get."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from memviz.allocator.context import context_on
from memviz.runner.run import Run


def run_json(run: Run, path: Path | None = None) -> dict[str, Any]:
    request = run.request
    return {
        "workload": request.workload,
        "settings": dict(request.settings),
        "optimizations": [{"name": name, **knobs} for name, knobs in request.optimizations],
        "optimizer": request.optimizer,
        "mode": run.mode,
        "device": run.device,
        "peak_allocated_bytes": run.peak_allocated_bytes,
        "peak_reserved_bytes": run.peak_reserved_bytes,
        "peak_while_loading": run.peak_while_loading,
        "peak_reserved_on_card_bytes": None if run.fit is None else run.fit.peak_reserved_bytes,
        "fits": None if run.fit is None else run.fit.fits,
        "fit": None if run.fit is None else run.fit.word,
        "context": None if run.fit is None else context_on(run.device).as_json(),
        "expected_error": None if run.expected_error is None else run.expected_error.as_json(),
        "pinned_host_bytes": run.pinned_host_bytes,
        "weights_bytes": run.weights_bytes,
        "seconds": None if run.seconds is None else run.seconds.median,
        "seconds_low": None if run.seconds is None else run.seconds.low,
        "seconds_high": None if run.seconds is None else run.seconds.high,
        "seconds_count": None if run.seconds is None else run.seconds.count,
        "flops": run.flops,
        "numerics": run.numerics,
        "warnings": list(run.warnings),
        "trace": None if path is None else str(path),
        "run": run.as_json(),
    }
