"""Plan -> Run: measure on the GPU that is here, or predict; of many GPUs, one rank of each class of equal ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from memviz.errors import UsageError
from memviz.predictor.estimate import fingerprint_of
from memviz.predictor.group.ranks import GroupRank, Layout, classes_of
from memviz.runner.measure.accelerator import find_accelerator
from memviz.runner.measure.gpu_state import Disturbances
from memviz.runner.measure.measured_run import measure
from memviz.runner.outcome import Outcome, torch_warnings
from memviz.runner.parallel.parallelism import RankClass
from memviz.runner.plan import Plan
from memviz.runner.predicted_run import predict
from memviz.runner.step import Tell


@dataclass(frozen=True)
class _PredictedRank:
    number: int
    done: Outcome

    @property
    def fingerprint(self) -> str:
        return fingerprint_of(self.done.trace)

    @property
    def layout(self) -> Layout:
        assert self.done.layout is not None
        return self.done.layout


def predict_plan(plan: Plan, tell: Tell, *, figures_only: bool = False) -> Outcome:
    """Predict on one card or on many; with `figures_only` the traces have no stacks."""
    if plan.parallel.gpus == 1:
        return predict(plan, tell, figures_only=figures_only)
    count = plan.parallel.gpus

    def predict_rank(number: int) -> _PredictedRank:
        def tell_rank(phase: str) -> None:
            tell(f"rank {number} of {count}: {phase}")

        done = predict(plan, tell_rank, GroupRank(number, count), figures_only=figures_only)
        return _PredictedRank(number, done)

    return _largest_rank(classes_of(count, lambda ranks: list(map(predict_rank, ranks)), same_program=True))


def _largest_rank(classes: list[tuple[list[int], Any]]) -> Outcome:
    """Return the outcome of the rank that reserves most, with those of the other classes."""
    _, most = max(classes, key=lambda item: item[1].done.run.peak_reserved_bytes)
    figures = tuple(_class_figures(ranks, one) for ranks, one in classes)
    took = sum(one.done.run.took_seconds for _, one in classes)
    run = replace(most.done.run, rank=most.number, classes=figures, took_seconds=took)
    others = {
        one.number: replace(one.done, run=replace(one.done.run, rank=one.number, classes=figures))
        for _, one in classes
        if one is not most
    }
    return replace(most.done, run=run, others=others)  # type: ignore[no-any-return]


def _class_figures(ranks: list[int], one: _PredictedRank) -> RankClass:
    run = one.done.run
    return RankClass(
        ranks=tuple(ranks),
        peak_allocated_bytes=run.peak_allocated_bytes,
        peak_reserved_bytes=run.peak_reserved_bytes,
        peak_requested_bytes=run.peak_requested_bytes,
        weights_bytes=run.weights_bytes,
        fit="" if run.fit is None else run.fit.word,
        flops=run.flops or 0,
        bytes_moved=run.bytes_moved or 0,
        host_bytes=run.host_bytes or 0,
        link_bytes=run.link_bytes or 0,
    )


_NOT_HERE = "Predicted, because nothing can be measured here."


def execute(
    plan: Plan, tell: Tell, *, until: float | None = None, recorded: Callable[[Outcome], None] = lambda _: None
) -> Outcome:
    """Measure if the request demands it, or if it allows both and a GPU is available; else predict.

    Args:
        until: Deadline by `time.monotonic()`, before which optional parts are left out.
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
        return _predict_instead(plan, tell, f"{_NOT_HERE} {why}")
    disturbances = Disturbances(accelerator)
    try:
        # Torch warns of settings without effect on this platform once, with the first allocation.
        with torch_warnings() as warned:
            accelerator.start()
    except UsageError as error:
        if plan.request.on == "cuda":
            raise
        return _predict_instead(plan, tell, _NOT_HERE, str(error))
    why = "Measured, because there is a GPU here." if plan.request.on == "auto" else ""

    def early(done: Outcome) -> None:
        recorded(_with_reason(done, why))

    done = measure(
        plan, tell, accelerator, disturbances=disturbances, until=until, recorded=early, notes=warned.notes()
    )
    return _with_reason(done, why)


def _predict_instead(plan: Plan, tell: Tell, why: str, *notes: str) -> Outcome:
    done = predict_plan(plan, tell)
    return _with_reason(replace(done, run=replace(done.run, notes=(*notes, *done.run.notes))), why)


def _with_reason(done: Outcome, why: str) -> Outcome:
    return replace(done, run=replace(done.run, why=why))
