"""Each captured run beside its prediction for the same card and the same release of torch. Needs no GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.gpu.case import Case
from tests.gpu.machine import card_of, release_of
from tests.gpu.results import Results

NEEDS_GPU = False
AT_ONCE = 4


def cases(results: Results, *, small: bool) -> list[Case]:
    """Runs that ran to their end; programs are of no workload and are not predicted."""
    done = [each for each in results.of("capture") if "result" in each and not each["result"]["ran_out"]]
    runs = [each for each in done if "request" in each["arguments"]]
    return [_case(each) for each in runs]


def _case(captured: dict[str, Any]) -> Case:
    """In the environment that it was captured in: allocator settings are looked for there."""
    return Case("truth", captured["name"], {"of": captured["name"]}, 60, environment=captured["environment"])


def prepare() -> None:
    import memviz.runner.execute  # noqa: F401


def run(case: Case, out: Path) -> dict[str, Any]:
    from memviz.runner.plan import plan_of
    from memviz.runner.predict.predicted_run import predict
    from memviz.runner.request import Request
    from memviz.trace.load import load_trace
    from tests.gpu.comparing import gpu_of, most_different

    captured = Results(out).read("capture", case.arguments["of"])
    assert captured is not None
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
