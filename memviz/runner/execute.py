"""Plan -> Run: measured on the GPU that is here, or predicted for one that is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from memviz.errors import UsageError
from memviz.runner.measure.accelerator import find_accelerator
from memviz.runner.measure.disturbances import Disturbances
from memviz.runner.measure.measured_run import measure
from memviz.runner.measure.torch_warnings import hearing_torch
from memviz.runner.outcome import Outcome
from memviz.runner.parallel.predicted_ranks import predict_plan
from memviz.runner.plan import Plan
from memviz.runner.step import Tell

_NOT_HERE = "Predicted, because nothing can be measured here."


def execute(
    plan: Plan, tell: Tell, *, until: float | None = None, recorded: Callable[[Outcome], None] = lambda _: None
) -> Outcome:
    """Measured where that was asked for, or where it is possible and nobody said otherwise.

    Args:
        until: By `time.monotonic()`, when whoever waits gives up. What is not needed is left out in time.
        recorded: Called with the memory of a measured run before its seconds are measured, which may fail.
    """
    if plan.request.on == "predict" or plan.parallel.gpus > 1:
        return predict_plan(plan, tell)
    try:
        accelerator = find_accelerator()
    except UsageError as error:
        if plan.request.on == "cuda":
            raise
        why = str(error).split(" Recording needs")[0]
        return _instead(plan, tell, f"{_NOT_HERE} {why}")
    beside = Disturbances(accelerator)
    try:
        # What has no effect on this platform is warned of once, with the first allocation.
        with hearing_torch() as warned:
            accelerator.start()
    except UsageError as error:
        if plan.request.on == "cuda":
            raise
        return _instead(plan, tell, _NOT_HERE, str(error))
    why = "Measured, because there is a GPU here." if plan.request.on == "auto" else ""

    def early(done: Outcome) -> None:
        recorded(_because(done, why))

    done = measure(plan, tell, accelerator, beside=beside, until=until, recorded=early, notes=warned.notes())
    return _because(done, why)


def _instead(plan: Plan, tell: Tell, why: str, *notes: str) -> Outcome:
    done = predict_plan(plan, tell)
    return _because(replace(done, run=replace(done.run, notes=(*notes, *done.run.notes))), why)


def _because(done: Outcome, why: str) -> Outcome:
    return replace(done, run=replace(done.run, why=why))
