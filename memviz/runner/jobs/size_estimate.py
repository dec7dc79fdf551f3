"""How large a run would be, found out from its knobs before anything of that size is built.

A prediction holds no weights, so what it costs this machine is objects: modules, and a tensor without data for each
parameter, when the model is built; what is noted of each module's calls, when its steps are taken. Blocks of one kind
are alike, so a model of one and a model of two say what a million would be.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch import nn

from memviz.errors import UsageError
from memviz.runner.jobs.limits import MEMORY
from memviz.runner.knobs import least_of
from memviz.runner.plan import Plan
from memviz.runner.workloads.workload import FromConfiguration
from memviz.units import bytes_text, count_text

_OF_AN_OBJECT = 1_600
_OF_A_CALL = 600
"""Bytes, measured on stacks of 2,000 to 8,000 feed-forward layers and rounded down."""
_OF_PYTORCH = 350 << 20
"""Host memory of the process before it builds a model."""
_FEW_BLOCKS = 256
_FEW_PASSES = 1_000
"""Up to these counts a model is built within a second, so its size is not estimated first."""


class RunTooLarge(UsageError):
    """It would take more of this machine than a run may."""


@dataclass(frozen=True)
class Size:
    parameters: int
    objects: int
    calls: int

    @property
    def bytes(self) -> int:
        return _OF_PYTORCH + self.objects * _OF_AN_OBJECT + self.calls * _OF_A_CALL


def refuse_if_too_large(plan: Plan, most: int) -> None:
    """Raise RunTooLarge if the estimate exceeds `most`. For a user's file only the limit of the run itself applies."""
    workload = plan.workload
    if not isinstance(workload, FromConfiguration):
        return
    few = all(depth <= _FEW_BLOCKS for depth in _depths(workload).values())
    if few and _passes(plan) <= _FEW_PASSES:
        return
    size = size_of(plan, workload)
    if size.bytes > most:
        raise RunTooLarge(
            f"{workload.name}: {_words(plan, workload, size)}, and a run may take {bytes_text(most)}. {_REMEDY}"
        )


_DEPTH_WORDS = {
    "double_layers": "double layers",
    "single_layers": "single layers",
    "depth": "layers at the smallest size",
}
_REMEDY = f"Ask for less, or set {MEMORY} to more."


def _words(plan: Plan, workload: FromConfiguration, size: Size) -> str:
    depths = [f"{count_text(value)} {_DEPTH_WORDS.get(name, name)}" for name, value in _depths(workload).items()]
    passes = _passes(plan)
    parts = [
        *depths,
        f"{count_text(size.parameters)} parameters",
        *([f"{count_text(passes)} passes"] if passes > 1 else []),
    ]
    return f"{', '.join(parts)} would take about {bytes_text(size.bytes)} of this machine's own memory"


def size_of(plan: Plan, workload: FromConfiguration) -> Size:
    """Exact in parameters and objects; in bytes about."""
    depths = _depths(workload)
    lowest = {name: least_of(workload, name, 1) for name in depths}
    first = _counted(workload, lowest)
    total = list(first)
    for name, depth in depths.items():
        beyond = depth - lowest[name]
        if beyond > 0:
            more = _counted(workload, {**lowest, name: lowest[name] + 1})
            total = [whole + beyond * (two - one) for whole, one, two in zip(total, first, more, strict=True)]
    parameters, tensors, modules = total
    return Size(parameters, tensors + modules, modules * _passes(plan))


def _counted(workload: FromConfiguration, depths: dict[str, int]) -> tuple[int, int, int]:
    with torch.device("meta"):
        model = replace(workload, **depths).build()  # type: ignore[arg-type]
    weights = list(model.parameters())
    return sum(weight.numel() for weight in weights), len(weights), sum(1 for _ in model.modules())


def _depths(workload: FromConfiguration) -> dict[str, int]:
    """Return the depths that are set, by knob. Published depths are small."""
    values: dict[str, Any] = {name: getattr(workload, name) for name in workload.depths}
    return {name: value for name, value in values.items() if value is not None}


def _passes(plan: Plan) -> int:
    request = plan.request
    return (request.warmup + request.steps) * plan.passes


def refuse_if_twin_is_too_large(plan: Plan, most: int) -> None:
    """The small twin has real numbers, twice: as it is, and as it is optimized."""
    if not isinstance(plan.workload, FromConfiguration):
        return
    with torch.device("meta"):
        model: nn.Module = plan.workload.small().build()
    weights = sum(prod(weight.shape) * weight.element_size() for weight in model.parameters())
    needed = _OF_PYTORCH + 2 * weights
    if needed > most:
        raise RunTooLarge(
            f"Its small twin would take about {bytes_text(needed)} of this machine's own memory, and a run may take "
            f"{bytes_text(most)}. Choose a width that is a multiple of a power of two, which a twin can divide."
        )
