"""A run on a card that is not there: what its memory would be, and whether it would fit."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from memviz.allocator.context import context_on
from memviz.allocator.replayer import CardMemory, Doubt, Replayer, always_had_room
from memviz.allocator.settings import Settings, settings_from_environment
from memviz.memory import without_collection
from memviz.runner.expected_error import ExpectedError
from memviz.runner.outcome import Outcome, check, keeping_what_was_recorded, own_bytes, peaks_of, run_with, sizes_of
from memviz.runner.plan import Plan
from memviz.runner.predict.accuracy import expected_error, unproven_sentence
from memviz.runner.predict.cards import KnownCard
from memviz.runner.predict.group.ranks import GroupRank
from memviz.runner.predict.predicted_device import PredictedDevice
from memviz.runner.predict.predicted_trace import trains
from memviz.runner.run import Fit, Run
from memviz.runner.step import Tell, convert_on_host, kernels_of_its_own, prepare, take_steps
from memviz.trace.model import Action, Category, Trace
from optimizations.weight_offload import host_bytes

_OF_WHAT_IT_DOES = (
    *("flops", "bytes_moved", "host_bytes", "weights_bytes", "parameters", "seconds", "expected_error", "notes"),
    *("weights_at_peak_bytes", "link_bytes", "pinned_host_bytes", "peak_while_loading", "warnings"),
)
"""Figures in which allocator settings have no part."""
_COUNTED = ("flops", "bytes_moved", "host_bytes", "link_bytes")


def predict(plan: Plan, tell: Tell, rank: GroupRank | None = None, *, figures_only: bool = False) -> Outcome:
    """The steps on tensors without data, as they would be on the plan's card; of several cards, on that of `rank`.

    With `figures_only` the trace has no stacks, and the figures are the same.
    """
    begun = time.perf_counter()
    tell("building the model")
    with torch.device("meta"), without_collection():
        # The first of its kind imports its library.
        model = plan.workload.build()
    check(plan, model)
    convert_on_host(plan, model)
    # On a rank only its part is left of it.
    whole = {} if rank is None else sizes_of(model)
    settings = settings_from_environment(plan.environment)
    release = plan.request.release
    predicted = PredictedDevice(plan.card, settings=settings, release=release, rank=rank, figures_only=figures_only)
    with kernels_of_its_own(), predicted as device:
        totals = _StepTotals(device)
        with keeping_what_was_recorded(device):
            trace, weights_bytes, loaded_bytes = _taken(plan, device, model, tell, totals.begin)
        known = {
            **peaks_of(device, loaded_bytes),
            **totals.of_one_step(plan.request.steps),
            "pinned_host_bytes": device.pinned_host_bytes,
            "warnings": device.warnings(),
            "notes": (*device.unseen(), *filter(None, [unproven_sentence(device.unproven())])),
        }
        operators, unproven = device.recorder.operators, device.unproven()
    error = expected_error(operators, trains=trains(trace), card=plan.card, unproven=unproven)
    fit = fit_on(trace, plan.card, device.highest_reserved_bytes, error)
    took = time.perf_counter() - begun
    known |= {
        **(whole or sizes_of(model)),
        "weights_bytes": weights_bytes,
        "seconds": None,
        "fit": fit,
        "took_seconds": took,
        "expected_error": error,
        "weights_at_peak_bytes": _weights_at_peak(trace) if host_bytes(model) else None,
    }
    run = run_with(plan, "predicted", plan.card.name, known)
    return Outcome(run, trace, device.said_between, device.layout)


def _taken(
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
    trace = take_steps(plan, device, model, tell, warmed=warmed, make_passes=passes)
    return trace, weights_bytes, loaded_bytes


def _weights_at_peak(trace: Trace) -> int | None:
    events, labels = trace.devices[0].events, trace.devices[0].event_labels
    if labels is None or not len(events):
        return None
    signs = np.select([events.action == Action.ALLOC, events.action == Action.FREE_COMPLETED], [1, -1], 0)
    change = signs * events.size
    until = int(np.argmax(np.cumsum(change))) + 1
    return int(change[:until][labels.category[:until] == Category.PARAMETER].sum())


def predict_again(plan: Plan, done: Outcome) -> Run:
    """A run that differs from one that is done in its allocator settings alone, and so asks for the same memory.

    What it asked for is replayed under these settings, which takes a fraction of the time. Where it does not fit,
    `fit.event` is an event of the run that is done.
    """
    begun = time.perf_counter()
    settings, replayer = settings_from_environment(plan.environment), Replayer(done.trace, done.trace.devices[0])
    assert done.said is not None
    replayer.calls = done.said
    figures = replayer.figures(settings)
    replayer.calls = replace(done.said, reset=0)
    run, error = done.run, done.run.expected_error
    known = {
        "peak_allocated_bytes": figures.peak_allocated_bytes,
        "peak_reserved_bytes": figures.peak_reserved_bytes,
        "peak_requested_bytes": figures.peak_requested_bytes,
        "fit": _fit_of(replayer, settings, plan.card, None, error),
        **{name: getattr(run, name) for name in _OF_WHAT_IT_DOES},
    }
    return run_with(plan, "predicted", plan.card.name, known | {"took_seconds": time.perf_counter() - begun})


class _StepTotals:
    """Totals of the steps alone, without warm-up."""

    def __init__(self, device: PredictedDevice) -> None:
        self._device = device
        self.begin()

    def begin(self) -> None:
        self._before = self._now()

    def _now(self) -> dict[str, int]:
        return {name: getattr(self._device, name) for name in _COUNTED}

    def of_one_step(self, steps: int) -> dict[str, int]:
        return {name: (count - self._before[name]) // steps for name, count in self._now().items()}


def fit_on(trace: Trace, card: KnownCard, peak_reserved_bytes: int, error: ExpectedError | None = None) -> Fit:
    """Does it fit? The run's own requests, replayed on the card with the memory that a process gets there.

    `peak_reserved_bytes` is what the run reserves where nothing limits it.
    """
    return _fit_of(Replayer(trace, trace.devices[0]), None, card, peak_reserved_bytes, error)


def _fit_of(
    replayer: Replayer,
    settings: Settings | None,
    card: KnownCard,
    peak_reserved_bytes: int | None,
    error: ExpectedError | None,
) -> Fit:
    """`peak_reserved_bytes` is None where a replay is to find it."""
    context = context_on(card.name)
    limited = CardMemory(card.memory_bytes, context.most_bytes)
    usable = limited.usable_bytes
    replayed = replayer.figures(settings, limited)
    out = replayed.oom
    if peak_reserved_bytes is None:
        free = replayed if always_had_room(replayed) else replayer.figures(settings)
        peak_reserved_bytes = free.peak_reserved_bytes
    return Fit(
        usable_bytes=usable,
        fits=out is None,
        peak_reserved_bytes=replayed.peak_reserved_bytes,
        event=None if out is None else out.event,
        requested_bytes=None if out is None else out.requested_bytes,
        allocated_bytes=None if out is None else out.allocated_bytes,
        too_much_bytes=peak_reserved_bytes - usable,
        overhead_bytes=limited.overhead_bytes,
        least_overhead_bytes=context.least_bytes,
        fit=replayer.fits(settings, card.memory_bytes, doubt_on(card, error), known=replayed),
    )


def doubt_on(card: KnownCard, error: ExpectedError | None) -> Doubt:
    """Return the uncertainty of a prediction; memory that is not counted can only add to it."""
    context = context_on(card.name)
    if error is None:
        return Doubt(context)
    return Doubt(context, error.share + error.least_growth, error.share, error.uncounted_bytes or 0)
