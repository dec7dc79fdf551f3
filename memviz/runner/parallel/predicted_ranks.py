"""A plan for many GPUs, predicted: one rank for each class of equal ones, and the one that takes most for all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from memviz.runner.outcome import Outcome
from memviz.runner.parallel.rank_class import RankClass
from memviz.runner.plan import Plan
from memviz.runner.predict.estimate import fingerprint_of
from memviz.runner.predict.group.ranks import GroupRank, Layout, classes_of
from memviz.runner.predict.predicted_run import predict
from memviz.runner.step import Tell


@dataclass(frozen=True)
class _Predicted:
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
    """On one card or on many; with `figures_only` the traces have no stacks."""
    if plan.parallel.gpus == 1:
        return predict(plan, tell, figures_only=figures_only)
    count = plan.parallel.gpus

    def run(ranks: Sequence[int]) -> list[_Predicted]:
        def of(number: int) -> Tell:
            return lambda phase: tell(f"rank {number} of {count}: {phase}")

        return [
            _Predicted(number, predict(plan, of(number), GroupRank(number, count), figures_only=figures_only))
            for number in ranks
        ]

    classes = classes_of(count, run, same_program=True)
    return _fullest(plan, classes)


def _fullest(plan: Plan, classes: list[tuple[list[int], Any]]) -> Outcome:
    """The run of the rank that reserves most, as the others fit where it does; and what the others come to."""
    _, most = max(classes, key=lambda item: item[1].done.run.peak_reserved_bytes)
    figures = tuple(_figures(ranks, one) for ranks, one in classes)
    took = sum(one.done.run.took_seconds for _, one in classes)
    run = replace(most.done.run, rank=most.number, classes=figures, took_seconds=took)
    others = {
        one.number: replace(one.done, run=replace(one.done.run, rank=one.number, classes=figures))
        for _, one in classes
        if one is not most
    }
    made: Outcome = replace(most.done, run=run, others=others)
    return made


def _figures(ranks: list[int], one: _Predicted) -> RankClass:
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
