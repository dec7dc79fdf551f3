"""Plan -> Run: measured on the GPU that is here, or predicted for one that is not."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import torch

from memviz.allocator.settings import parse_settings
from memviz.errors import UsageError
from memviz.runner.executed import Executed, check, keeping_what_was_recorded, peaks_of, run_with, sizes_of
from memviz.runner.measure.accelerator import find_accelerator
from memviz.runner.measure.disturbances import Beside
from memviz.runner.measure.measured_run import measure
from memviz.runner.measure.torch_warnings import hearing_torch
from memviz.runner.plan import Plan
from memviz.runner.predict.device import PretendedDevice
from memviz.runner.predict.fit import fit_on
from memviz.runner.step import Tell, prepare, take_steps

_NOT_HERE = "Predicted, because nothing can be measured here."


def execute(
    plan: Plan, tell: Tell, *, until: float | None = None, recorded: Callable[[Executed], None] = lambda _: None
) -> Executed:
    """Measured where that was asked for, or where it is possible and nobody said otherwise.

    Args:
        until: By `time.monotonic()`, when whoever waits gives up. What is not needed is left out in time.
        recorded: Called with the memory of a measured run before its seconds are measured, which may fail.
    """
    if plan.request.on == "predict":
        return predict(plan, tell)
    try:
        accelerator = find_accelerator()
    except UsageError as error:
        if plan.request.on == "cuda":
            raise
        why = str(error).split(" Recording needs")[0]
        return _instead(plan, tell, f"{_NOT_HERE} {why}")
    beside = Beside(accelerator)
    try:
        # What has no effect on this platform is warned of once, with the first allocation.
        with hearing_torch() as warned:
            accelerator.start()
    except UsageError as error:
        if plan.request.on == "cuda":
            raise
        return _instead(plan, tell, _NOT_HERE, str(error))
    why = "Measured, because there is a GPU here." if plan.request.on == "auto" else ""

    def early(done: Executed) -> None:
        recorded(_because(done, why))

    done = measure(plan, tell, accelerator, beside=beside, until=until, recorded=early, notes=warned.notes())
    return _because(done, why)


def _instead(plan: Plan, tell: Tell, why: str, *notes: str) -> Executed:
    done = predict(plan, tell)
    return _because(replace(done, run=replace(done.run, notes=(*notes, *done.run.notes))), why)


def _because(done: Executed, why: str) -> Executed:
    return replace(done, run=replace(done.run, why=why))


def predict(plan: Plan, tell: Tell) -> Executed:
    begun = time.perf_counter()
    tell("building the model")
    with torch.device("meta"):
        model = plan.workload.build()
    check(plan, model)
    conf = plan.environment.get("PYTORCH_CUDA_ALLOC_CONF")
    settings = parse_settings(conf) if conf else None
    with PretendedDevice(plan.card, settings=settings, release=plan.request.release) as device:
        work = _Work(device)
        with keeping_what_was_recorded(device):
            trace = take_steps(plan, device, prepare(plan, device, model, tell), tell, warmed=work.begin)
        known = {
            **peaks_of(device),
            "flops": work.flops // plan.request.steps,
            "bytes_moved": work.bytes_moved // plan.request.steps,
            "notes": device.unseen(),
        }
    fit = fit_on(trace, plan.card, device.highest_reserved_bytes)
    took = time.perf_counter() - begun
    known |= {**sizes_of(model), "seconds": None, "fit": fit, "took_seconds": took}
    return Executed(run_with(plan, "predicted", plan.card.name, known), trace)


class _Work:
    """Of the steps alone, without what warmed them up."""

    def __init__(self, device: PretendedDevice) -> None:
        self._device = device
        self.begin()

    def begin(self) -> None:
        self._flops, self._bytes = self._device.flops, self._device.bytes_moved

    @property
    def flops(self) -> int:
        return self._device.flops - self._flops

    @property
    def bytes_moved(self) -> int:
        return self._device.bytes_moved - self._bytes
