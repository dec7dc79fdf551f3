"""What comes of a run, predicted or measured: its figures as a Run, its trace, and what was there when it failed."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from torch import nn

from memviz.errors import UsageError
from memviz.runner.measure.cuda_device import CudaDevice
from memviz.runner.plan import Plan, command_of
from memviz.runner.predict.device import PretendedDevice
from memviz.runner.run import Run
from memviz.trace.model import Trace
from optimizations import Optimization

_LIBRARIES = ("torch", "diffusers", "transformers")
_UNDO = "\nundo = "


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


@contextmanager
def keeping_what_was_recorded(device: PretendedDevice | CudaDevice) -> Iterator[None]:
    """Of a run that fails, what was live then is the best answer to why."""
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


def peaks_of(device: PretendedDevice | CudaDevice) -> dict[str, int]:
    return {
        "peak_allocated_bytes": device.peak_allocated_bytes,
        "peak_reserved_bytes": device.peak_reserved_bytes,
        "peak_requested_bytes": device.peak_requested_bytes,
    }


def sizes_of(model: nn.Module) -> dict[str, int]:
    weights = list(model.parameters())
    return {
        "weights_bytes": sum(each.numel() * each.element_size() for each in weights),
        "parameters": sum(each.numel() for each in weights),
    }


def check(plan: Plan, model: nn.Module) -> None:
    """Each optimization says whether it goes with this model, before a device holds anything of it."""
    for each in plan.optimizations:
        each.check(model, training=plan.workload.training)


def run_with(plan: Plan, mode: Any, device: str, known: dict[str, Any]) -> Run:
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
        code=code_of(plan.optimizations),
        claim=plan.claim,
        **known,
    )


def code_of(optimizations: Sequence[Optimization]) -> str:
    """Each of several has an undo of its own."""
    parts = [each.code() for each in optimizations]
    if sum(_UNDO in each for each in parts) > 1:
        parts = [text.replace(_UNDO, f"\nundo_{each.name} = ") for each, text in zip(optimizations, parts, strict=True)]
    return "\n\n".join(parts)


def provenance(plan: Plan) -> dict[str, str]:
    found = {"python": platform.python_version(), "seed": str(plan.workload.seed)}
    for name in _LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
