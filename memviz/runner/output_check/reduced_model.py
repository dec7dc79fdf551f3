"""Outputs of a plan against its baseline, on a reduced model of the workload with real numbers.

Pieces (tokens, windows, tiles) shrink in proportion with the model, so that the same code paths run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from memviz.runner.measure.accelerator import find_accelerator
from memviz.runner.output_check.comparison import compare_outputs
from memviz.runner.output_check.coverage import SAME_OPERATORS, OperatorChange, with_merged_adapters
from memviz.runner.output_check.model_runs import Split, flatten
from memviz.runner.plan import Plan, fitted, pieces_of, weakest
from memviz.runner.step import Tell, optimizer_of
from memviz.runner.workloads import Workload
from memviz.runner.workloads.workload import FromConfiguration
from optimizations import Optimization, apply_all
from optimizations.gradient_accumulation import GradientAccumulation
from optimizations.lora import Lora

# A plan's outputs against the baseline, on a reduced model of its workload with real numbers.
#
# What is cut into pieces by a size, of tokens, windows or tiles, is cut on the reduced model in the same proportion:
# what takes several pieces in the run takes several there, and what takes one takes one.

_MOST_PIECES = 3
"""Most pieces of a batch on the reduced model."""


def check_outputs(plan: Plan, tell: Tell, mode: str, *, pinned: int | None = None) -> dict[str, Any] | None:
    """None where nothing is changed. Measured runs compare on the GPU, where their kernels are.

    `pinned` is what the run itself held in host memory, where that was counted.
    """
    if not plan.optimizations:
        return None
    tell("comparing the outputs on a reduced model")
    # Twins are too small to gain by threads, and threads that wait for each other cost whole seconds.
    torch.set_num_threads(1)
    return _Check(plan, place_of(mode), pinned).numerics()


class _Check:
    """One plan, on its reduced model."""

    def __init__(self, plan: Plan, place: torch.device, pinned: int | None) -> None:
        self.plan, self.place, self.pinned = plan, place, pinned
        self.twin = _reduced_model_of(plan)
        self.applied: list[Optimization] = []
        self.changes = list(self._changes())

    def build(self) -> nn.Module:
        torch.manual_seed(self.twin.seed)
        return self.twin.build().to(self.place)

    def numerics(self) -> dict[str, Any]:
        twin, optimizer = self.twin, self.plan.request.optimizer
        lora = next((change for change in self.applied if isinstance(change, Lora)), None)
        # Adapters are another training from the start, and are held against the same training.
        claims = ["rounding" if change is lora else change.claim for change in self.applied]
        numerics = compare_outputs(
            self.build,
            [twin.inputs(self.place, number) for number in range(twin.micro_batches)],
            _applying(self.applied),
            loss=twin.loss,
            training=twin.training,
            claim=weakest(claims),
            optimizer=lambda weights: optimizer_of("adamw" if optimizer == "none" else optimizer, weights),
            withheld={name for change in self.applied for name in getattr(change, "withholds", ())},
            split=_split(self.applied),
            changes=self.changes,
            trained_beside=None if lora is None else lambda model: with_merged_adapters(model, lora),
        )
        sees_less = any(getattr(change, "sees_less", False) for change in self.applied)
        numerics = replace(numerics, sees_less=sees_less)
        weights = ", random weights" if isinstance(twin, FromConfiguration) else ""
        return {"on": f"{twin.describe()}{weights}, on {self.place.type}", **numerics.as_json()}

    def _changes(self) -> Iterator[OperatorChange]:
        """Each with all before it. One that the reduced model does not take is left out, and said to be."""
        model = self.build()
        pieces = pieces_of(self.plan.optimizations)
        passes = self.twin.micro_batches * (1 if pieces is None else _fewer(pieces).pieces)
        for change in self.plan.optimizations:
            reduced = fitted(_reduced(change, self.plan.workload, self.twin), {}, passes)
            refusal = self._refusal(change, reduced, model)
            if not refusal:
                self.applied.append(reduced)
            reason = refusal or getattr(reduced, "idle_where", "") or SAME_OPERATORS
            lossy = reduced.claim == "lossy" and not isinstance(reduced, Lora)
            in_steps = reduced.claim == "training"
            now = list(self.applied)
            if change.name != "allocator_settings" or len(self.plan.optimizations) == 1:
                yield OperatorChange(change.title, _applying(now), _split(now), reason, lossy, in_steps)

    def _refusal(self, change: Optimization, reduced: Optimization, model: nn.Module) -> str:
        """Why a change is not compared; empty where it is."""
        if change.environment:
            return "it changes no computation"
        if self.pinned == 0 and getattr(change, "pins_host_memory", False):
            return "the run moved nothing to host memory"
        try:
            _applying([*self.applied, reduced])(deepcopy(model))()
        except ValueError as error:
            return f"the reduced model does not take it: {error}".rstrip(".")
        return ""


def _applying(changes: Sequence[Optimization]) -> Callable[[nn.Module], Callable[[], None]]:
    return lambda model: apply_all(model, changes)


def _split(changes: Sequence[Optimization]) -> Split | None:
    pieces = pieces_of(changes)
    return None if pieces is None else pieces.split


def _reduced_model_of(plan: Plan) -> Workload:
    """With a batch that its pieces divide as evenly as those of the run do."""
    twin, pieces, batch = plan.workload.small(), pieces_of(plan.optimizations), getattr(plan.workload, "batch", None)
    if pieces is None or not isinstance(batch, int):
        return twin
    made: Workload = replace(twin, batch=_fewer(pieces).pieces + bool(batch % pieces.pieces))  # type: ignore[type-var]
    return made


def _fewer(pieces: GradientAccumulation) -> GradientAccumulation:
    return replace(pieces, pieces=min(pieces.pieces, _MOST_PIECES))


def _reduced(change: Optimization, own: Workload, twin: Workload) -> Optimization:
    """With knobs for the reduced model: their `reduced` value, or in proportion to what they are counted in."""
    if isinstance(change, GradientAccumulation):
        return _fewer(change)
    knobs = {knob.name: knob.metadata for knob in fields(change)}  # type: ignore[arg-type]
    values = {name: said["reduced"] for name, said in knobs.items() if "reduced" in said}
    for name, said in knobs.items():
        if "counted_in" in said and isinstance(own, FromConfiguration):
            whole, reduced = _counts(own, twin, said["counted_in"])
            values[name] = max(in_proportion(getattr(change, name), whole, reduced), said["least"])
    return replace(change, **values) if values else change  # type: ignore[type-var]


def in_proportion(value: int, whole: int, reduced: int) -> int:
    """Scale `value` from `whole` to `reduced`. A proper part of the one stays a proper part of the other."""
    if value >= whole:
        return max(reduced, value * reduced // whole)
    return max(min(round(value * reduced / whole), reduced - 1), 1)


def _counts(own: Workload, twin: Workload, unit: str) -> tuple[int, int]:
    """Tokens of a batch ("rows") or of a sequence ("sequence"), in the largest input of both."""
    count = {"rows": _rows, "sequence": _sequence}[unit]
    meta = torch.device("meta")
    whole, reduced = ({name: count(x) for name, x in flatten(one.inputs(meta)).items()} for one in (own, twin))
    name = max(whole, key=lambda one: whole[one])
    return max(whole[name], 1), max(reduced.get(name, 1), 1)


def _rows(tensor: Tensor) -> int:
    """Count rows of a channels-last tensor; of latents count the elements, which grow with the tokens."""
    return tensor.numel() // (tensor.shape[-1] if tensor.dim() == 3 and tensor.is_floating_point() else 1)


def _sequence(tensor: Tensor) -> int:
    return tensor.shape[1] if tensor.dim() > 1 else 1


def place_of(mode: str) -> torch.device:
    """The device that the run was measured on, whichever kind that is: its kernels are the question."""
    return torch.device(find_accelerator().kind if mode == "measured" else "cpu")
