"""A predicted run: the steps of a plan on tensors without data, and whether their memory fits the card."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn

from memviz.allocator.replayer import Replayer
from memviz.allocator.settings import settings_from_environment
from memviz.memory import without_collection
from memviz.predictor.accuracy import expected_error, fit_of_replay, fit_on, reserved_elsewhere, unproven_sentence
from memviz.predictor.device import PredictedDevice
from memviz.predictor.group.ranks import GroupRank
from memviz.predictor.ledger import trains
from memviz.predictor.shapes import KnownResults
from memviz.runner.outcome import (
    Outcome,
    check,
    keeping_what_was_recorded,
    own_bytes,
    peaks_of,
    run_with,
    sizes_of,
    weights_at_peak,
)
from memviz.runner.plan import Plan
from memviz.runner.run import Run
from memviz.runner.step import Tell, convert_on_host, kernels_of_its_own, prepare, take_steps
from memviz.runner.workloads.workload import FromConfiguration
from memviz.trace.model import Trace

_OF_WHAT_IT_DOES = (
    *("flops", "bytes_moved", "host_bytes", "weights_bytes", "parameters", "seconds", "notes"),
    *("weights_at_peak_bytes", "link_bytes", "pinned_host_bytes", "peak_while_loading", "warnings"),
)
"""Figures in which allocator settings have no part."""
_COUNTED = ("flops", "bytes_moved", "host_bytes", "link_bytes")
"""Counts of the steps alone, without warm-up."""


def predict(
    plan: Plan,
    tell: Tell,
    rank: GroupRank | None = None,
    *,
    figures_only: bool = False,
    repeats: bool = True,
) -> Outcome:
    """Predict the steps of a plan on its card, or on the card of one rank.

    With `figures_only` the trace has no stacks, and the figures are the same. With `repeats`, a pass that is
    equal to an earlier one is not run again.
    """
    begun = time.perf_counter()
    tell("building the model")
    with torch.device("meta"), without_collection():
        # The first of its kind imports its library.
        model = plan.workload.build()
    check(plan, model)
    with KnownResults():
        convert_on_host(plan, model)
    # On a rank only its part is left of it.
    model_sizes = {} if rank is None else sizes_of(model)
    settings = settings_from_environment(plan.environment)
    release = plan.request.release
    platform = plan.request.platform
    predicted = PredictedDevice(
        plan.card, settings=settings, release=release, rank=rank, figures_only=figures_only, platform=platform
    )
    predicted.passes.is_on = repeats and rank is None and _has_equal_passes(plan)
    with kernels_of_its_own(), predicted as device:
        before: dict[str, int] = {}

        def begin_counting() -> None:
            before.update({name: getattr(device, name) for name in _COUNTED})

        begin_counting()
        with keeping_what_was_recorded(device):
            trace, weights_bytes, loaded_bytes = _record_steps(plan, device, model, tell, begin_counting)
        results = {
            **peaks_of(device, loaded_bytes),
            **{name: (getattr(device, name) - before[name]) // plan.request.steps for name in _COUNTED},
            "pinned_host_bytes": device.pinned_host_bytes,
            "warnings": device.warnings(),
            "notes": (*device.unseen(), *filter(None, [unproven_sentence(device.unproven())])),
        }
        operators, unproven = device.recorder.operators, device.unproven()
    error = expected_error(operators, trains=trains(trace), card=plan.card, unproven=unproven)
    said, peak = device.allocator_calls, results["peak_reserved_bytes"]
    error = replace(error, **reserved_elsewhere(trace, said, platform, peak))
    fit = fit_on(trace, plan.card, device.highest_reserved_bytes, error, platform=platform)
    took = time.perf_counter() - begun
    results |= {
        **(model_sizes or sizes_of(model)),
        "weights_bytes": weights_bytes,
        "seconds": None,
        "fit": fit,
        "took_seconds": took,
        "expected_error": error,
        "weights_at_peak_bytes": weights_at_peak(model, trace),
    }
    run = run_with(plan, "predicted", plan.card.name, results)
    return Outcome(run, trace, said, device.layout)


def _has_equal_passes(plan: Plan) -> bool:
    """Return False for a user's own program, and where a pass learns from another or hooks take its gradients."""
    learns = any(getattr(optimization, "ahead", False) for optimization in plan.optimizations)
    moves_gradients = any(optimization.name in _MOVES_GRADIENTS for optimization in plan.optimizations)
    return isinstance(plan.workload, FromConfiguration) and not learns and not moves_gradients


_MOVES_GRADIENTS = ("flat_gradients", "optimizer_in_backward")
"""Optimizations whose hooks take gradients away in a backward pass, which a repeated pass does not call."""


def _record_steps(
    plan: Plan, device: PredictedDevice, model: nn.Module, tell: Tell, warmed: Callable[[], None]
) -> tuple[Trace, int, int]:
    """Return the trace, the bytes of the weights, and the allocated peak of loading."""
    if device.rank is None:
        model, passes = prepare(plan, device, model, tell), None
    else:
        # The libraries of many GPUs take a second to import.
        from memviz.runner.parallel.rank_model import prepare_rank

        model, passes = prepare_rank(plan, device, model, tell)
    weights_bytes, loaded_bytes = own_bytes(model), device.peak_allocated_bytes
    if device.passes.is_on:
        device.blocks.follow(model)
    trace = take_steps(plan, device, model, tell, warmed=warmed, make_passes=passes, run_pass=device.passes.run)
    return trace, weights_bytes, loaded_bytes


def predict_again(plan: Plan, done: Outcome) -> Run:
    """Predict a run that differs from a done one in its allocator settings alone, by a replay of the same requests.

    Where it does not fit, `fit.event` is an event of the run that is done.
    """
    begun = time.perf_counter()
    settings, replayer = settings_from_environment(plan.environment), Replayer(done.trace, done.trace.devices[0])
    assert done.said is not None
    replayer.calls, platform = done.said, plan.request.platform
    replayer.platform = platform
    figures = replayer.figures(settings)
    run, error = done.run, done.run.expected_error
    if error is not None:
        elsewhere = reserved_elsewhere(done.trace, done.said, platform, figures.peak_reserved_bytes, settings)
        error = replace(error, **elsewhere)
    replayer.calls = replace(done.said, reset=0)
    results = {
        "peak_allocated_bytes": figures.peak_allocated_bytes,
        "peak_reserved_bytes": figures.peak_reserved_bytes,
        "peak_requested_bytes": figures.peak_requested_bytes,
        "fit": fit_of_replay(replayer, settings, plan.card, None, error),
        **{name: getattr(run, name) for name in _OF_WHAT_IT_DOES},
        "expected_error": error,
    }
    return run_with(plan, "predicted", plan.card.name, results | {"took_seconds": time.perf_counter() - begun})
