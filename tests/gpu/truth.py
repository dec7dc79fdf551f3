"""Each captured run beside its prediction for the same card and the same release of torch. Needs no GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from memviz.runner.plan import plan_of
from memviz.runner.predict.predicted_run import predict
from memviz.runner.request import Request
from memviz.trace.load import load_trace
from tests.gpu import capture
from tests.gpu.case import Case
from tests.gpu.comparing import gpu_of, most_different
from tests.gpu.machine import card_of, release_of
from tests.gpu.results import Results

# In the environment that each was captured in, where allocator settings are looked for. Programs are not predicted:
# they are of no workload.
CASES = tuple(
    Case(
        "truth", each.name, seconds=60, environment=each.environment, libraries=each.libraries, small=each.small,
        needs_gpu=False, of=("capture", each.name),
    )
    for each in capture.CASES
    if "request" in each.arguments
)  # fmt: skip


def run(case: Case, out: Path) -> dict[str, Any]:
    captured = case.result_in(Results(out))
    machine, measured = captured["machine"], captured["result"]
    wanted = {**captured["arguments"]["request"], "on": "predict", "numerics": False, "torch": release_of(machine)}
    plan = replace(plan_of(Request.from_json(wanted)), card=card_of(machine))
    done = predict(plan, lambda phase: None)
    trace = load_trace(out / "capture" / measured["file"])
    peaks = {
        name: _beside(measured[f"peak_{name}_bytes"], getattr(done.run, f"peak_{name}_bytes"))
        for name in ("allocated", "reserved", "requested")
    }
    return {
        **peaks,
        "device": machine["device"],
        "label": done.run.label,
        "events": {"measured": len(gpu_of(trace).events), "predicted": len(gpu_of(done.trace).events)},
        "categories": most_different(trace, done.trace, "category"),
        "modules": most_different(trace, done.trace, "module"),
        "not_predicted": list(done.run.notes),
    }


def _beside(measured: int, predicted: int) -> dict[str, Any]:
    """The error is the prediction's: positive where it says too much."""
    return {"measured": measured, "predicted": predicted, "error_percent": 100 * (predicted / measured - 1)}
