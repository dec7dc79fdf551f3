"""Changes that computed nothing in a comparison, so that equal results prove nothing about them.

The operators of one step are listed with a change and without it. If both lists agree, operator by operator and shape
by shape, the change's own code did not run. Views are left out, since they compute nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from memviz.runner.output_check.model_runs import ComparedStep, MakeOptimizer, Split, adapter_name
from optimizations.lora import Adapted, Lora

# Changes that did nothing where they were compared: equal results say nothing of those.
#
# The operators of one step are listed with a change and without it. Where both lists are the same, operator by
# operator and shape by shape, the change's own code computed nothing. Views are left out, since they compute nothing
# either.

Apply = Callable[[nn.Module], Callable[[], None]]
SAME_OPERATORS = "it computes the same with and without it"


@dataclass(frozen=True)
class NotExercised:
    title: str
    reason: str


@dataclass(frozen=True)
class OperatorChange:
    """One of several changes that are applied one after the other."""

    title: str
    apply: Apply
    """Applies it and all before it."""
    split: Split | None = None
    reason: str = SAME_OPERATORS
    """Why it would do nothing."""
    lossy: bool = False
    """It may compute as much as it likes: what it loses must show in the results."""
    in_steps: bool = False
    """Its loss shows only in the weights after several optimizer steps."""


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[int] = []

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not getattr(operator, "is_view", False):
            tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
            shapes = tuple((type(tensor), tuple(tensor.shape), tensor.dtype) for tensor in tensors)
            self.seen.append(hash((str(operator), shapes)))
        return operator(*args, **(kwargs or {}))


def not_exercised(
    model: nn.Module, step: ComparedStep, changes: Sequence[OperatorChange], make: MakeOptimizer
) -> tuple[NotExercised, ...]:
    """Those of the changes that add no operator of their own to a step, its optimizer's included."""
    idle, before = [], _Traced.of(deepcopy(model), step, make)
    for change in changes:
        copy = deepcopy(model)
        undo = change.apply(copy)
        try:
            after = _Traced.of(copy, replace(step, split=change.split), make)
        finally:
            undo()
        if (change.lossy or after.operators == before.operators) and after.gives_like(before):
            idle.append(NotExercised(change.title, change.reason))
        before = after
    return tuple(idle)


@dataclass(frozen=True)
class _Traced:
    operators: list[int]
    results: dict[str, Tensor]

    @classmethod
    def of(cls, model: nn.Module, step: ComparedStep, make: MakeOptimizer) -> _Traced:
        with _Operators() as operators:
            if step.training:
                losses = step.losses(model, 1, make, None)
                results = {"loss": torch.tensor(losses, dtype=torch.float64)}
            else:
                results = step.run(model).outputs
        return cls(operators.seen, results)

    def gives_like(self, other: _Traced) -> bool:
        return all(torch.equal(result, other.results.get(name, result)) for name, result in self.results.items())


class MergedAdapter(Adapted):
    """An adapter that computes with its product added to the weight, as after `merge`, and is trained all the same."""

    def forward(self, x: Tensor) -> Tensor:
        product = self.lora_up.weight @ self.lora_down.weight * self.scale
        weight: Any = self.base.weight
        merged = weight + (product if isinstance(self.base, nn.Linear) else product.t()).to(weight.dtype)
        output: Tensor = functional_call(self.base, {"weight": merged}, (x,))
        return output


def with_merged_adapters(model: nn.Module, lora: Lora) -> nn.Module:
    """A copy that trains the adapters that `lora` trains, and computes with weights that they are merged into."""
    copy = deepcopy(model)
    replace(lora, by="torch").apply(copy)
    for module in copy.modules():
        if isinstance(module, Adapted):
            module.__class__ = MergedAdapter
    return copy


def adapter_weights(model: nn.Module) -> dict[str, Tensor]:
    return {
        adapter_name(name): weight.detach().clone()
        for name, weight in model.named_parameters()
        if ".lora_" in adapter_name(name)
    }


@torch.no_grad()
def load_adapters(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    for name, weight in model.named_parameters():
        if adapter_name(name) in weights:
            weight.copy_(weights[adapter_name(name)])
