"""The steps of a run, the same on every device: place, convert, warm up, measure."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from memviz.predictor.repetition import RunPass, key_of_inputs
from memviz.predictor.run_device import RunDevice
from memviz.runner.plan import Plan, pieces_of
from memviz.runner.request import Optimizer
from memviz.runner.workloads import Workload
from memviz.trace.model import Trace
from optimizations import apply_all
from optimizations.attention_backend import let_go_of_kernels
from optimizations.gradient_accumulation import GradientAccumulation

Tell = Callable[[str], None]
"""Receives the name of each phase as it begins."""


@contextmanager
def kernels_of_its_own() -> Iterator[None]:
    """End a run's choice of kernels with the run, as it holds for the whole process."""
    try:
        yield
    finally:
        let_go_of_kernels()


def convert_on_host(plan: Plan, model: nn.Module) -> None:
    """Apply the optimizations that come before the weights are on the device."""
    if plan.on_host:
        apply_all(model, plan.on_host)


def prepare(plan: Plan, device: RunDevice, model: nn.Module, tell: Tell) -> nn.Module:
    """Load the model onto the device and apply what `convert_on_host` left. The peak counts all of it."""
    offload = plan.offload
    tell("placing the weights")
    with device.phase("load"):
        model = device.place(model, () if offload is None else offload.offloaded(model))
    rest = [change for change in plan.optimizations if change not in plan.on_host]
    if rest:
        tell("applying the optimizations")
        with device.phase("conversion"):
            # Settings of the environment are the predicted device's own from the start.
            changes = [change for change in rest if not (device.is_predicted and change.environment)]
            there = str(device.torch_device)
            apply_all(model, [replace(one, onload_device=there) if one is offload else one for one in changes])
    return model


def run_always(key: Hashable, weights: Sequence[torch.Tensor], take: Callable[[], Any]) -> Any:
    return take()


MakePasses = Callable[[nn.Module], Callable[[], Any]]
"""Makes a callable that runs all passes of a step on the model."""


def take_steps(
    plan: Plan,
    device: RunDevice,
    model: nn.Module,
    tell: Tell,
    *,
    warmed: Callable[[], None] = lambda: None,
    make_passes: MakePasses | None = None,
    run_pass: RunPass = run_always,
) -> Trace:
    """Warm up, call `warmed`, take the steps, and return the trace as it is while everything is still alive."""
    request, workload = plan.request, plan.workload
    passes = make_passes(model) if make_passes else None
    inputs = device.inputs(workload) if passes is None else {}
    optimizer = make_optimizer(request.optimizer, model)
    pieces = pieces_of(plan.optimizations)
    step = RunStep(workload, device, model, inputs, optimizer, pieces=pieces, passes=passes, run_pass=run_pass)
    last_output = None
    for number in range(request.warmup):
        tell(f"warm-up {number + 1} of {request.warmup}")
        with device.phase("warm-up"):
            output = step()
        last_output = output if request.keep_output else None
        del output
    warmed()
    for number in range(request.steps):
        tell(f"step {number + 1} of {request.steps}")
        with device.phase(f"step {number + 1}"):
            step()
    tell("reading the trace")
    trace = device.finish()
    del last_output
    return trace


@dataclass
class RunStep:
    """One forward pass, or one training step with all its micro-batches."""

    workload: Workload
    device: RunDevice
    model: nn.Module
    inputs: dict[str, Any]
    optimizer: torch.optim.Optimizer | None
    pieces: GradientAccumulation | None = None
    passes: Callable[[], Any] | None = None
    """Run all passes of a step in another way than one micro-batch after the other."""

    run_pass: RunPass = run_always
    """Run a pass, or repeat an equal one."""

    def __post_init__(self) -> None:
        self.model.train(self.workload.training)
        self._trained = [weight for weight in self.model.parameters() if weight.requires_grad]

    def __call__(self) -> Any:
        if not self.workload.training:
            with self.device.phase("forward"), torch.no_grad():
                return self.run_pass(key_of_inputs(self.inputs), (), lambda: self.model(**self.inputs))
        output = self._all_batches() if self.passes is None else self.passes()
        if self.optimizer is not None:
            with self.device.phase("optimizer step"):
                self.optimizer.step()
                self.optimizer.zero_grad(set_to_none=True)
        return output

    def _all_batches(self) -> Any:
        for _ in range(self.workload.micro_batches):
            output = self._micro_batch()
        return output

    def _micro_batch(self) -> Any:
        """Return the output of the last piece; earlier outputs are freed before the next piece begins."""
        if self.pieces is None:
            return self._forward_and_backward(self.inputs, 1.0)
        output = None
        for arguments, share in self.pieces.split(self.inputs):
            del output
            output = self._forward_and_backward(arguments, share)
        return output

    def _forward_and_backward(self, arguments: dict[str, Any], share: float) -> Any:
        key = (key_of_inputs(arguments), share == 1) if self.passes is None else None
        return self.run_pass(key, self._trained, lambda: self._pass(arguments, share))

    def _pass(self, arguments: dict[str, Any], share: float) -> Any:
        with self.device.phase("forward"):
            output = self.model(**arguments)
            loss = self.workload.loss(output)
            loss = loss if share == 1 else loss * share
        with self.device.phase("backward"):
            loss.backward()  # type: ignore[no-untyped-call]
        return output


def make_optimizer(kind: Optimizer, model: nn.Module) -> torch.optim.Optimizer | None:
    if kind == "none":
        return None
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trained:
        raise ValueError("No weight of this model is trained, so an optimizer has nothing to do.")
    return optimizer_of(kind, trained)


def optimizer_of(kind: Optimizer, weights: list[nn.Parameter]) -> torch.optim.Optimizer:
    if kind == "sgd":
        return torch.optim.SGD(weights, lr=1e-3, foreach=True)
    if kind == "adamw-fused":
        return torch.optim.AdamW(weights, lr=1e-4, fused=True)
    return torch.optim.AdamW(weights, lr=1e-4, foreach=kind == "adamw")
