"""A plan's outputs against the baseline, on a small twin of its workload with real numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from memviz.runner.measure.accelerator import find_accelerator
from memviz.runner.output_check.compare_outputs import compare_outputs
from memviz.runner.plan import Plan, fitted, pieces_of
from memviz.runner.step import Tell
from memviz.runner.workloads import Workload
from optimizations import apply_all
from optimizations.gradient_accumulation import GradientAccumulation


def numerics_of(plan: Plan, tell: Tell, mode: str) -> dict[str, Any] | None:
    """None where nothing is changed. Measured runs compare on the GPU, where their kernels are."""
    if not plan.optimizations:
        return None
    tell("comparing the outputs on a small twin")
    twin = plan.workload.small()
    place = place_of(mode)
    chosen = [change for change in plan.optimizations if change.name != "allocator_settings"]
    pieces = _pieces_of(plan, twin)
    passes = twin.micro_batches * (1 if pieces is None else pieces.pieces)
    changes = tuple(fitted(change, {}, passes) for change in chosen)
    # Twins are too small to gain by threads, and threads that wait for each other cost whole seconds.
    torch.set_num_threads(1)

    def build() -> nn.Module:
        torch.manual_seed(twin.seed)
        return twin.build().to(place)

    def apply(model: nn.Module) -> Callable[[], None]:
        return apply_all(model, changes)

    numerics = compare_outputs(
        build,
        [twin.inputs(place, number) for number in range(twin.micro_batches)],
        apply,
        loss=twin.loss,
        training=twin.training,
        claim=plan.claim,
        withheld={name for change in changes for name in getattr(change, "withholds", ())},
        split=None if pieces is None else pieces.split,
    )
    return {"on": f"{twin.describe()}, on {place.type}", **numerics.as_json()}


def _pieces_of(plan: Plan, twin: Workload) -> GradientAccumulation | None:
    """A twin's batch is small, and so are its pieces."""
    pieces, batch = pieces_of(plan.optimizations), getattr(twin, "batch", None)
    return replace(pieces, pieces=min(pieces.pieces, batch)) if pieces is not None and batch else pieces


def place_of(mode: str) -> torch.device:
    """The device that the run was measured on, whichever kind that is: its kernels are the question."""
    return torch.device(find_accelerator().kind if mode == "measured" else "cpu")
