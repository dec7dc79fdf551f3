"""A plan to its run: predicted, on one card or many, or measured on the GPU that is here."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn

from memviz.allocator.context import NCCL_FACT
from memviz.allocator.replay_result import Figures
from memviz.allocator.replayer import Replayer
from memviz.allocator.settings import settings_from_environment
from memviz.errors import UsageError
from memviz.memory import without_collection
from memviz.predictor.accuracy import expected_error, fit_of_replay, fit_on, reserved_elsewhere, unproven_sentence
from memviz.predictor.device import PredictedDevice
from memviz.predictor.group.ranks import GroupRank, classes_of
from memviz.predictor.ledger import trains
from memviz.predictor.repetition import NotRepeatable
from memviz.predictor.shapes import KnownResults
from memviz.runner.measure.accelerator import Disturbances, find_accelerator
from memviz.runner.measure.measured_run import measure
from memviz.runner.plan import Plan
from memviz.runner.request import RankClass, Run
from memviz.runner.step import (
    PEAKS,
    Outcome,
    Tell,
    attention_kernels_restored,
    check,
    convert_on_host,
    keeping_what_was_recorded,
    own_bytes,
    peaks_of,
    prepare,
    run_always,
    run_with,
    sizes_of,
    take_steps,
    torch_warnings,
    weights_at_peak,
)
from memviz.runner.workloads.workload import FromConfiguration
from memviz.trace.model import Trace

_OF_WHAT_IT_DOES = (
    *("flops", "bytes_moved", "host_bytes", "weights_bytes", "parameters", "seconds", "notes"),
    *("weights_at_peak_bytes", "link_bytes", "pinned_host_bytes", "host_peak_bytes"),
    *("peak_while_loading", "warnings"),
)
"""Figures in which allocator settings have no part."""
_COUNTED = ("flops", "bytes_moved", "host_bytes", "link_bytes")
"""Counts of the steps alone, without warm-up."""


def predict(
    plan: Plan, tell: Tell, rank: GroupRank | None = None, *, figures_only: bool = False, repeats: bool = True
) -> Outcome:
    """Predict the steps of a plan on its card, or on the card of one rank.

    With `figures_only` the trace has no stacks, and the figures are the same. With `repeats`, a pass that is
    equal to an earlier one is not run again.
    """
    try:
        return _predict(plan, tell, rank, figures_only=figures_only, repeats=repeats, trained=repeats)
    except NotRepeatable:
        return _predict(plan, tell, rank, figures_only=figures_only, repeats=repeats, trained=False)


def _predict(
    plan: Plan, tell: Tell, rank: GroupRank | None, *, figures_only: bool, repeats: bool, trained: bool
) -> Outcome:
    """Predict; with `trained`, layers of a training step that are equal to an earlier one are not run again."""
    begun = time.perf_counter()
    tell("building the model")
    with torch.device("meta"), without_collection():
        # The first of its kind imports its library.
        model = plan.workload.build()
    check(plan, model)
    # Of a checkpoint that is loaded to the host each process has all weights there.
    loaded_on_host = own_bytes(model) if plan.request.load == "host" else 0
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
    predicted.passes.is_on = repeats and rank is None and _has_equal_layers(plan)
    with attention_kernels_restored(plan), predicted as device:
        before: dict[str, int] = {}

        def begin_counting() -> None:
            before.update({name: getattr(device, name) for name in _COUNTED})

        with keeping_what_was_recorded(device):
            trace, weights_bytes, loaded_bytes = _record_steps(
                plan, device, model, tell, begin_counting, follows=trained
            )
        if device.blocks.failed:
            raise NotRepeatable
        results = {
            **peaks_of(device, loaded_bytes),
            **{name: (getattr(device, name) - before[name]) // plan.request.steps for name in _COUNTED},
            "pinned_host_bytes": device.pinned_host_bytes,
            # Whole MiB, rounded up: how long small CPU tensors live depends on when Python collects cycles.
            "host_peak_bytes": max(loaded_on_host, -(-device.recorder.host_memory.peak.total_bytes >> 20) << 20),
            "warnings": device.warnings(),
            "notes": (*device.unseen(), *filter(None, [unproven_sentence(device.unproven())])),
        }
        operators, unproven, ran = device.recorder.operators, device.unproven(), _figures_of(device)
    error = expected_error(operators, trains=trains(trace), card=plan.card, unproven=unproven)
    said, peak = device.allocator_calls(), results["peak_reserved_bytes"]
    error = replace(error, **reserved_elsewhere(trace, said, platform, peak))
    fit = fit_on(trace, plan.card, device.highest_bytes().reserved, error, platform=platform, ran=ran)
    took = time.perf_counter() - begun
    results |= {
        **(model_sizes or sizes_of(model)),
        "weights_bytes": weights_bytes,
        "seconds": None,
        "fit": fit,
        "took_seconds": took,
        "expected_error": error,
        "weights_at_peak_bytes": weights_at_peak(plan, model, trace),
    }
    run = run_with(plan, "predicted", plan.card.name, results)
    if NCCL_FACT in trace.about.facts:
        run = replace(run, provenance={**run.provenance, NCCL_FACT: trace.about.facts[NCCL_FACT]})
    return Outcome(run, trace, said, device.layout)


def _figures_of(device: PredictedDevice) -> Figures | None:
    """Return the figures of a run with the whole card; None where it was refused memory."""
    if device.out_of_memory or device.settings.per_process_memory_fraction < 1:
        return None
    requested, allocated, reserved = device.highest_bytes()
    return Figures(device.settings, None, requested, allocated, reserved, device.reserved_bytes, 0, None)


def _has_equal_layers(plan: Plan) -> bool:
    """Return False for a user's own program, and where a pass learns from another or weights are stepped within."""
    learns = any(getattr(optimization, "ahead", False) for optimization in plan.optimizations)
    steps = any(optimization.name == "optimizer_in_backward" for optimization in plan.optimizations)
    return isinstance(plan.workload, FromConfiguration) and not learns and not steps


def _record_steps(
    plan: Plan, device: PredictedDevice, model: nn.Module, tell: Tell, warmed: Callable[[], None], *, follows: bool
) -> tuple[Trace, int, int]:
    """Return the trace, the bytes of the weights, and the allocated peak of loading."""
    if device.rank is None:
        model, passes = prepare(plan, device, model, tell), None
    else:
        # The libraries of many GPUs take a second to import.
        from memviz.runner.rank_model import prepare_rank

        model, passes = prepare_rank(plan, device, model, tell)
    weights_bytes, loaded_bytes = own_bytes(model), device.peak_allocated_bytes
    if device.passes.is_on and follows:
        device.blocks.follow(model)
    # A repeated pass does not call the hooks of flat gradients, which count passes.
    is_counted = any(optimization.name == "flat_gradients" for optimization in plan.optimizations)
    run_pass = run_always if is_counted else device.passes.run
    trace = take_steps(plan, device, model, tell, warmed=warmed, make_passes=passes, run_pass=run_pass)
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
        **{name: getattr(figures, name) for name in PEAKS},
        "fit": fit_of_replay(replayer, settings, plan.card, None, error),
        **{name: getattr(run, name) for name in _OF_WHAT_IT_DOES},
        "expected_error": error,
        "took_seconds": time.perf_counter() - begun,
    }
    return replace(run_with(plan, "predicted", plan.card.name, results), provenance=run.provenance)


def predict_plan(plan: Plan, tell: Tell, *, figures_only: bool = False) -> Outcome:
    """Predict on one card or on many; with `figures_only` the traces have no stacks."""
    if plan.parallel.gpus == 1:
        return predict(plan, tell, figures_only=figures_only)
    count = plan.parallel.gpus

    def predict_rank(number: int) -> Outcome:
        def tell_rank(phase: str) -> None:
            tell(f"rank {number} of {count}: {phase}")

        done = predict(plan, tell_rank, GroupRank(number, count), figures_only=figures_only)
        return replace(done, run=replace(done.run, rank=number))

    classes: list[tuple[list[int], Outcome]]
    classes = classes_of(count, lambda ranks: list(map(predict_rank, ranks)), same_program=True)
    # The rank that reserves most speaks for all.
    _, most = max(classes, key=lambda item: item[1].run.peak_reserved_bytes)
    figures = tuple(RankClass.of(ranks, one.run) for ranks, one in classes)
    took = sum(one.run.took_seconds for _, one in classes)
    run = replace(most.run, classes=figures, took_seconds=took)
    others = {
        one.run.rank or 0: replace(one, run=replace(one.run, classes=figures)) for _, one in classes if one is not most
    }
    return replace(most, run=run, others=others)


_NOT_HERE = "Predicted, because this machine has no GPU to measure on."


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
    why = "Measured, because this machine has a GPU." if plan.request.on == "auto" else ""

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
