"""Predictions of which a search wants the figures alone: no file is written, and what can be replayed is.

Runs that differ in their allocator settings alone ask for the same memory, so of several of them that are asked for
one after the other only the first is carried out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from memviz.collector import without_collection
from memviz.runner.jobs.bounds import most_bytes
from memviz.runner.request import Request

if TYPE_CHECKING:
    from memviz.runner.outcome import Outcome

ALLOCATOR_SETTINGS = "allocator_settings"


class SearchedRuns:
    def __init__(self, send: Callable[..., None]) -> None:
        self._send = send
        self._done: tuple[Request, Outcome] | None = None

    def run(self, number: int, request: Request) -> None:
        with without_collection():
            from memviz.runner.jobs.size_estimate import refuse_if_too_large
            from memviz.runner.parallel.predicted_ranks import predict_plan
            from memviz.runner.plan import plan_of
            from memviz.runner.predict.predicted_run import predict_again

        plan = plan_of(request)
        # Of many GPUs, another rank may reserve most under other settings.
        is_alone = plan.parallel.gpus == 1
        if is_alone and self._done is not None and without_settings(request) == without_settings(self._done[0]):
            run = predict_again(plan, self._done[1])
        else:
            self._done = None
            refuse_if_too_large(plan, most_bytes())
            outcome = predict_plan(plan, lambda phase: self._send("phase", number, phase=phase), figures_only=True)
            self._done, run = (request, outcome), outcome.run
        self._send("done", number, run=run.as_json())


def without_settings(request: Request) -> Request:
    """The same for all that differ in allocator settings alone."""
    others = tuple((name, knobs) for name, knobs in request.optimizations if name != ALLOCATOR_SETTINGS)
    return replace(request, label="", optimizations=others)
