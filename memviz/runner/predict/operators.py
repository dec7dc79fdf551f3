"""What the predictor does at each operator, looked up once an operator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from memviz.runner.predict import in_place
from memviz.runner.predict.flops import Formula, formula_of
from memviz.runner.predict.shapes import SHAPES
from memviz.runner.predict.workspaces import TEMPORARIES, USES_CUBLAS, Temporaries

aten = torch.ops.aten
Operator = Any
"""`torch._ops.OpOverload`, which has no types."""
Instead = Callable[[Any, Any, Any], Any]
"""Operator, arguments, keyword arguments -> the result, or NotImplemented where the operator itself is right."""

_RESIZING = {"resize_", "resize_as_", "set_"}
_MADE_OF_OTHERS = {
    aten._safe_softmax.default,
    aten.binary_cross_entropy_with_logits.default,
    aten.logsumexp.default,
    aten.dist.default,
    aten._euclidean_dist.default,
    aten.soft_margin_loss.default,
}
"""Operators that CUDA runs as several others, with tensors between them."""


@dataclass(frozen=True, slots=True)
class Treatment:
    name: str
    """As in C++ stacks: `add_Tensor`."""
    gives_new: bool
    """Whether a result may have memory of its own."""
    writes: bool
    """Into an argument."""
    resizes: bool
    uses_cublas: bool
    decides: bool
    """Its answer is in the data."""
    instead: Instead | None
    shape: Instead | None
    """What it gives, found faster than torch would."""
    parts_in: Callable[..., Any] | None
    """The operator spelled out in others, where it reaches us whole."""
    temporaries: Temporaries | None
    formula: Formula | None


def treatment_of(func: Operator, kernels: Mapping[str, Callable[..., Any]]) -> Treatment:
    schema = func._schema
    packet = func.overloadpacket
    new = any(each.alias_info is None for each in schema.returns)
    return Treatment(
        name=_name(func),
        gives_new=new,
        writes=schema.is_mutable,
        resizes=packet.__name__ in _RESIZING or any(each.is_out for each in schema.arguments),
        uses_cublas=packet in USES_CUBLAS,
        decides=torch.Tag.data_dependent_output in func.tags,
        instead=in_place.add if func is aten.add.Tensor else None,
        shape=SHAPES.get(func),
        parts_in=kernels.get(func.name().removeprefix("aten::")) or _parts_in(func),
        temporaries=TEMPORARIES.get(packet),
        formula=formula_of(func),
    )


def _name(func: Operator) -> str:
    name = func.overloadpacket.__name__
    overload = func._overloadname
    return name if overload in ("", "default") else f"{name}_{overload}"


def _parts_in(func: Operator) -> Callable[..., Any] | None:
    """In inference mode even operators that are only names for others arrive whole."""
    if func in _MADE_OF_OTHERS:
        return _spelled_out(func, "CompositeExplicitAutograd")
    name, key = func.name(), "CompositeImplicitAutograd"
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    if has(name, key) and not has(name, "Meta"):
        return _spelled_out(func, key)
    return None


def _spelled_out(func: Operator, key: str) -> Callable[..., Any] | None:
    which = getattr(torch._C.DispatchKey, key)
    run = getattr(func, "_op_dk", None)
    return None if run is None else lambda *args, **kwargs: run(which, *args, **kwargs)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """An operator takes and gives tensors, lists of them, and lists of lists."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from tensors_in(each)
