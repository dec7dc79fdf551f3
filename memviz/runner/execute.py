"""Plan -> Run: builds the model, runs its steps on a device, measured or pretended, and reads off the figures."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import nn

from memviz.allocator.settings import parse_settings
from memviz.errors import UsageError
from memviz.runner.accelerator import Accelerator, find_accelerator
from memviz.runner.cuda_device import CudaDevice
from memviz.runner.drawing import drawn_on
from memviz.runner.fit import fit_on
from memviz.runner.plan import Plan, command_of
from memviz.runner.pretend.device import PretendedDevice
from memviz.runner.run import Run, Seconds
from memviz.runner.step import Step, Tell, make_optimizer, prepare, take_steps
from memviz.runner.workloads import Workload
from memviz.runner.workloads.model import FromConfiguration
from memviz.trace.model import Trace

_LIBRARIES = ("torch", "diffusers", "transformers")
_TIMED_STEPS = 10


@dataclass(frozen=True)
class Executed:
    run: Run
    trace: Trace


class Interrupted(Exception):
    """A run that ended early, with what was recorded until then. Its cause is what ended it."""

    def __init__(self, trace: Trace | None, live_bytes: int) -> None:
        self.trace = trace
        self.live_bytes = live_bytes
        super().__init__("The run ended early.")


def execute(plan: Plan, tell: Tell) -> Executed:
    """Measured where that was asked for, or where it is possible and nobody said otherwise."""
    if plan.request.on == "predict":
        return predict(plan, tell)
    try:
        accelerator = find_accelerator()
    except UsageError as error:
        if plan.request.on == "cuda":
            raise
        done = predict(plan, tell)
        why = str(error).split(" Recording needs")[0]
        return replace(done, run=replace(done.run, why=f"Predicted, because nothing can be measured here. {why}"))
    done = measure(plan, tell, accelerator)
    why = "Measured, because there is a GPU here." if plan.request.on == "auto" else ""
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
        with _keeping_what_was_recorded(device):
            trace = take_steps(plan, device, prepare(plan, device, model, tell), tell, warmed=work.begin)
        known = {
            **_peaks(device),
            "flops": work.flops // plan.request.steps,
            "bytes_moved": work.bytes_moved // plan.request.steps,
            "notes": device.unseen(),
        }
    fit = fit_on(trace, plan.card, device.highest_reserved_bytes)
    took = time.perf_counter() - begun
    known |= {**_sizes(model), "seconds": None, "fit": fit, "took_seconds": took}
    return Executed(_run(plan, "predicted", plan.card.name, known), trace)


def measure(plan: Plan, tell: Tell, accelerator: Accelerator) -> Executed:
    """Recorded once for the memory, then run again with nothing recorded for the seconds."""
    begun = time.perf_counter()
    tell("building the model")
    torch.manual_seed(plan.workload.seed)
    model = _drawn(plan.workload, accelerator)
    check(plan, model)
    with CudaDevice(accelerator=accelerator) as device, _keeping_what_was_recorded(device):
        model = prepare(plan, device, model, tell)
        trace = take_steps(plan, device, model, tell)
    notes = [f"PyTorch's own {name} differs: {text}" for name, text in _disagreements(device)]
    tell("timing with the recording off")
    known = {
        **_peaks(device),
        "flops": None,
        "bytes_moved": None,
        "notes": tuple(notes),
        "seconds": _seconds(plan, model, accelerator),
        "fit": None,
        **_sizes(model),
        "took_seconds": time.perf_counter() - begun,
    }
    return Executed(_run(plan, "measured", device.name, known), trace)


def _drawn(workload: Workload, accelerator: Accelerator) -> nn.Module:
    """A file of somebody's own says itself where its tensors begin."""
    if isinstance(workload, FromConfiguration):
        return drawn_on(accelerator, workload.build)
    return workload.build()


@contextmanager
def _keeping_what_was_recorded(device: PretendedDevice | CudaDevice) -> Iterator[None]:
    """Of a run that fails, what was live then is the best answer to why."""
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        live, trace = 0, None
        # What failed first is what people need to hear.
        with suppress(Exception):
            live = device.allocated_bytes
            trace = device.finish()
        raise Interrupted(trace, live) from error


def _peaks(device: PretendedDevice | CudaDevice) -> dict[str, int]:
    return {
        "peak_allocated_bytes": device.peak_allocated_bytes,
        "peak_reserved_bytes": device.peak_reserved_bytes,
        "peak_requested_bytes": device.peak_requested_bytes,
    }


def _disagreements(device: CudaDevice) -> Iterator[tuple[str, str]]:
    if device.peaks is not None:
        for name, each in (("allocated peak", device.peaks.allocated), ("reserved peak", device.peaks.reserved)):
            if each.difference:
                yield name, f"{each.difference:+,} bytes. {each.reason}"


def _seconds(plan: Plan, model: nn.Module, accelerator: Accelerator) -> Seconds:
    with CudaDevice(accelerator=accelerator, record=False) as device:
        optimizer = make_optimizer(plan.request.optimizer, model)
        step = Step(plan.workload, device, model, device.inputs(plan.workload), optimizer)
        timing = device.seconds(step, steps=_TIMED_STEPS, warmup=max(1, plan.request.warmup))
    return Seconds(timing.median, timing.spread, timing.count, timing.clock)


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


def check(plan: Plan, model: nn.Module) -> None:
    """Each optimization says whether it goes with this model, before a device holds anything of it."""
    for each in plan.optimizations:
        each.check(model, training=plan.workload.training)


def _sizes(model: nn.Module) -> dict[str, int]:
    weights = list(model.parameters())
    return {
        "weights_bytes": sum(each.numel() * each.element_size() for each in weights),
        "parameters": sum(each.numel() for each in weights),
    }


def _run(plan: Plan, mode: Any, device: str, known: dict[str, Any]) -> Run:
    return Run(
        request=plan.request,
        label=plan.label,
        describes=plan.workload.describe(),
        mode=mode,
        device=device,
        why="",
        window=plan.window,
        provenance=provenance(plan),
        command=command_of(plan.request),
        code="\n\n".join(each.code() for each in plan.optimizations),
        claim=plan.claim,
        **known,
    )


def provenance(plan: Plan) -> dict[str, str]:
    found = {"python": platform.python_version(), "seed": str(plan.workload.seed)}
    for name in _LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
