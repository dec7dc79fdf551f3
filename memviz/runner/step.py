"""The steps of a run, the same on every device: place, convert, warm up, measure; and their outcome.

An outcome is the figures as a Run, the trace, and what was live when the run failed.
"""

from __future__ import annotations

import platform
import re
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from memviz.allocator.recorded_requests import AllocatorCalls
from memviz.errors import UsageError
from memviz.predictor.device import PredictedDevice, RunDevice
from memviz.predictor.estimate import fingerprint_of
from memviz.predictor.group.ranks import Layout
from memviz.predictor.ledger import live_changes
from memviz.predictor.repetition import RunPass, key_of_inputs
from memviz.runner.measure.cuda_device import CudaDevice
from memviz.runner.plan import Plan, code_of_plan, library_code_of, pieces_of
from memviz.runner.record.log import EventsByAddress
from memviz.runner.request import Optimizer, Run, command_of, library_versions
from memviz.runner.workloads import Workload
from memviz.trace.model import Action, Category, Trace
from optimizations import apply_all
from optimizations.attention_backend import AttentionBackend, restore_kernels
from optimizations.gradient_accumulation import GradientAccumulation
from optimizations.weight_offload import host_bytes
from optimizations.weight_quantization import Quantized

Tell = Callable[[str], None]
"""Receives the name of each phase as it begins."""


@contextmanager
def attention_kernels_restored(plan: Plan) -> Iterator[None]:
    """Restore the choice of attention kernels after the run: it holds for the whole process."""
    try:
        yield
    finally:
        if any(isinstance(change, AttentionBackend) for change in plan.optimizations):
            restore_kernels()


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
    """Runs the passes of a step other than by one micro-batch after the other."""

    run_pass: RunPass = run_always
    """Run a pass, or repeat an equal one."""

    def __post_init__(self) -> None:
        self.model.train(self.workload.training)
        self._trained = [weight for weight in self.model.parameters() if weight.requires_grad]

    def __call__(self) -> Any:
        if not self.workload.training:
            with self.device.phase("forward"), torch.no_grad():
                return self.run_pass(key_of_inputs(self.inputs), (), lambda: self.model(**self.inputs))
        if self.passes is None:
            for _ in range(self.workload.micro_batches):
                output = self._micro_batch()
        else:
            output = self.passes()
        if self.optimizer is not None:
            with self.device.phase("optimizer step"):
                self.optimizer.step()
                self.optimizer.zero_grad(set_to_none=True)
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
        raise ValueError("No weight of this model requires gradients, so an optimizer has nothing to do.")
    return optimizer_of(kind, trained)


def optimizer_of(kind: Optimizer, weights: list[nn.Parameter]) -> torch.optim.Optimizer:
    if kind == "sgd":
        return torch.optim.SGD(weights, lr=1e-3, foreach=True)
    if kind == "adamw-fused":
        return torch.optim.AdamW(weights, lr=1e-4, fused=True)
    return torch.optim.AdamW(weights, lr=1e-4, foreach=kind == "adamw")


@dataclass(frozen=True)
class Outcome:
    run: Run
    trace: Trace
    said: AllocatorCalls | None = None
    """Allocator calls of a prediction that its events do not show."""
    layout: Layout | None = None
    """Layout of one rank of many."""
    others: Mapping[int, Outcome] = field(default_factory=dict)
    """Among many ranks, one outcome for each other class, by rank."""

    @property
    def fingerprint(self) -> str:
        """The same for ranks of equal memory."""
        return fingerprint_of(self.trace)


class Interrupted(Exception):
    """A run that ended early, with what was recorded until then. Its cause is what ended it."""

    def __init__(self, trace: Trace | None, live_bytes: int) -> None:
        self.trace = trace
        self.live_bytes = live_bytes
        super().__init__("The run ended early.")


@contextmanager
def keeping_what_was_recorded(device: RunDevice) -> Iterator[None]:
    """Wrap a failure so that it carries the trace and the live bytes at that moment."""
    try:
        yield
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        live, trace = 0, None
        # What failed first is what people need to hear.
        with suppress(Exception):
            live = device.allocated_bytes
            trace = device.finish()
        raise Interrupted(trace, live) from error


PEAKS = ("peak_allocated_bytes", "peak_reserved_bytes", "peak_requested_bytes")


def peaks_of(device: PredictedDevice | CudaDevice, loaded_bytes: int) -> dict[str, Any]:
    """`loaded_bytes` is the peak of loading, in allocated bytes."""
    peaks = {name: getattr(device, name) for name in PEAKS}
    return {"peak_while_loading": 0 < device.peak_allocated_bytes <= loaded_bytes, **peaks}


def sizes_of(model: nn.Module) -> dict[str, int]:
    """Return the sizes of a model's weights; quantized codes count as the weights that they replace."""
    codes = [module for module in model.modules() if isinstance(module, Quantized)]
    return {
        "weights_bytes": own_bytes(model),
        "parameters": sum(weight.numel() for weight in model.parameters()) + sum(each.replaced for each in codes),
    }


def weights_at_peak(plan: Plan, model: nn.Module, trace: Trace) -> int | None:
    """Return the bytes of weights on the card at the peak; None where no weight waits in host memory."""
    events, labels = trace.devices[0].events, trace.devices[0].event_labels
    is_offloaded = plan.offload is not None or any(hasattr(module, "_diffusers_hook") for module in model.modules())
    if labels is None or not len(events) or not (is_offloaded and host_bytes(model)):
        return None
    at = int(np.argmax(np.cumsum(live_changes(events.action, events.size))))
    weights = np.flatnonzero((events.action == Action.ALLOC) & (labels.category == Category.PARAMETER))
    live = weights[(weights <= at) & (EventsByAddress(events).next_free(weights) > at)]
    return int(events.size[live].sum())


def check(plan: Plan, model: nn.Module) -> None:
    """Let each optimization refuse the model, before a device holds any of it.

    One that trains other weights is applied temporarily, since later ones check the model that it returns.
    """
    with ExitStack() as undo:
        undo.enter_context(torch.random.fork_rng(devices=[]))
        for optimization in plan.optimizations:
            optimization.check(model, training=plan.workload.training)
            if getattr(optimization, "trains_others", False):
                undo.callback(optimization.apply(model))


def own_bytes(model: nn.Module) -> int:
    """Return the bytes of the weights that a rank holds: of sharded ones only its shards."""
    own = [getattr(weight, "_local_tensor", weight) for weight in model.parameters()]
    own += [codes for module in model.modules() if isinstance(module, Quantized) for codes in module.buffers()]
    return sum(weight.numel() * weight.element_size() for weight in own)


def run_with(plan: Plan, mode: Any, device: str, values: dict[str, Any]) -> Run:
    return Run(
        request=plan.request,
        label=plan.label,
        describes=plan.describes,
        mode=mode,
        device=device,
        why="",
        window=plan.window,
        provenance={"python": platform.python_version(), "seed": str(plan.workload.seed), **library_versions()},
        command=command_of(plan.request),
        code=code_of_plan(plan),
        library_code=library_code_of(plan),
        claim=plan.claim,
        **values,
    )


_MOST_WARNINGS = 16
_MOST_WARNING_CHARACTERS = 400
_FROM_CPP = "Triggered internally"
_WHERE = re.compile(rf"\s*\({_FROM_CPP} at .*\)\s*$", re.DOTALL)
_REFUSED = "not used because"
_NO_KERNEL = "no available kernel"


class TorchWarnings:
    """Warnings of PyTorch, each sentence once, in order."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def add(self, message: Warning | str, category: type[Warning], filename: str, *_: Any, **__: Any) -> None:
        text = str(message)
        if _FROM_CPP not in text and "/torch/" not in filename.replace("\\", "/"):
            return
        line = " ".join(_WHERE.sub("", text).split())
        if line and line not in self.words and len(self.words) < _MOST_WARNINGS:
            is_long = len(line) > _MOST_WARNING_CHARACTERS
            self.words.append(f"{line[:_MOST_WARNING_CHARACTERS]} …" if is_long else line)

    def notes(self) -> tuple[str, ...]:
        return tuple(f"PyTorch warns: {sentence}" for sentence in self.words)

    def about(self, error: BaseException) -> str:
        """Return torch's warnings on why it rejected each attention kernel, where none was left."""
        first = next((at for at, sentence in enumerate(self.words) if _REFUSED in sentence), None)
        if _NO_KERNEL not in str(error).lower() or first is None:
            return ""
        return f"PyTorch's reasons: {' '.join(self.words[first:])}"


@contextmanager
def torch_warnings() -> Iterator[TorchWarnings]:
    """Collect PyTorch's warnings, even those that filters would hide."""
    warned = TorchWarnings()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = warned.add
        yield warned
