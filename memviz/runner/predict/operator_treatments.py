"""How the predictor handles each operator, looked up once per operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from memviz.runner.predict.arguments import tensors_of
from memviz.runner.predict.decompositions import WRITES_INTO_ZEROS, add_in_place, seeds_on_host, write_into_zeros
from memviz.runner.predict.evidence import USES_CUBLAS, rule_of, temporaries_of
from memviz.runner.predict.host import MOVES, may_say_of_unknown
from memviz.runner.predict.known_values import may_return_indices
from memviz.runner.predict.shapes import SHAPE_RULES, ResultCache, ShapeKey
from memviz.runner.predict.workspaces import Temporaries

aten = torch.ops.aten
Operator = Any
"""`torch._ops.OpOverload`, which has no types."""
Instead = Callable[[Any, Any, Any], Any]
"""Operator, arguments, keyword arguments -> the result, or NotImplemented where the operator itself is right."""
Formula = Callable[..., int]
"""Floating-point operations, from the operator's arguments."""

_RESIZING = {"resize_", "resize_as_", "set_"}
_WITHOUT_KERNEL = {
    *("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"),
    *("_unsafe_view", "lift", "lift_fresh", "lift_fresh_copy", *_RESIZING),
}
"""Operators for which the card has nothing to do."""
_MOST_WORK = 1 << 14
"""Sets of shapes that are remembered of one operator."""
COPIES = {"_to_copy", "copy_", "_foreach_copy_"}
_MADE_OF_OTHERS = {
    aten._safe_softmax.default,
    aten.binary_cross_entropy_with_logits.default,
    aten.logsumexp.default,
    aten.dist.default,
    aten._euclidean_dist.default,
    aten.soft_margin_loss.default,
}
"""Operators that CUDA runs as several others, with tensors between them."""
_GROUPED = {getattr(aten, name) for name in ("_grouped_mm",) if hasattr(aten, name)}


@dataclass(frozen=True, slots=True)
class Treatment:
    name: str
    """Name as in C++ stacks: `add_Tensor`."""
    gives_new: bool
    """True if a result may have memory of its own."""
    writes: bool
    """Into an argument."""
    resizes: bool
    uses_cublas: bool
    looks: str | None
    """Its answer, or the size of its answer, is in the data: the operator's name in `looks`."""
    is_view: bool
    launches: bool
    """At least one kernel."""
    instead: Instead | None
    sparse: Callable[..., Any] | None
    """The operator on tensors made of indices and values."""
    shape: Instead | None
    """Shape rule that is faster than torch's own."""
    parts_in: Callable[..., Any] | None
    """The operator spelled out in others, where it reaches us whole."""
    temporaries: Temporaries | None
    formula: Formula | None
    rule: int
    """The number of what stands behind its memory, in `evidence`."""
    moves: bool
    """Between the host and the device, perhaps."""
    may_say: bool
    """True if the result may have known values where the arguments have none."""
    may_choose: bool
    """One of several places."""
    results: ResultCache | None
    """Cached results, where the same shapes make the same result."""
    work: dict[ShapeKey, tuple[int, int]]
    """Floating-point operations and bytes moved, by the shapes that were met."""


def treatment_of(func: Operator, kernels: Mapping[str, Callable[..., Any]], release: tuple[int, int]) -> Treatment:
    schema = func._schema
    packet = func.overloadpacket
    name = packet.__name__
    # A product that is added in place is computed as one that is not: `addmm` for `addmm_`.
    product = name.removesuffix("_") if name.removesuffix("_") in USES_CUBLAS else name
    kernel = kernels.get(func.name().removeprefix("aten::"))
    new = any(returned.alias_info is None for returned in schema.returns)
    return Treatment(
        name=_name(func),
        gives_new=new,
        writes=schema.is_mutable,
        resizes=_resizes(func),
        uses_cublas=product in USES_CUBLAS,
        # What we spell out looks itself, where it has to.
        looks=name if _looks(func) and kernel is None else None,
        is_view=not new and not schema.is_mutable,
        launches=(new or schema.is_mutable) and _has_a_kernel(func),
        instead=add_in_place if func is aten.add.Tensor else None,
        sparse=None,
        shape=_shape_of(func, release),
        parts_in=kernel or _parts_in(func),
        temporaries=temporaries_of(product),
        formula=_formula_of(getattr(aten, product, packet)),
        rule=rule_of(name),
        moves=func in MOVES,
        may_say=may_say_of_unknown(func),
        may_choose=may_return_indices(func),
        results=ResultCache() if (new or schema.is_mutable) and _repeats(func) else None,
        work={},
    )


def _shape_of(func: Operator, release: tuple[int, int]) -> Instead | None:
    if func in WRITES_INTO_ZEROS:
        return write_into_zeros
    return SHAPE_RULES.get(func) or seeds_on_host(func, release)


def _resizes(func: Operator) -> bool:
    return func.overloadpacket.__name__ in _RESIZING or any(argument.is_out for argument in func._schema.arguments)


def _has_a_kernel(func: Operator) -> bool:
    return func.overloadpacket.__name__ not in _WITHOUT_KERNEL and torch.Tag.inplace_view not in func.tags


def _looks(func: Operator) -> bool:
    return torch.Tag.data_dependent_output in func.tags or torch.Tag.dynamic_output_shape in func.tags


def _repeats(func: Operator) -> bool:
    """Return whether the shapes of its arguments, and plain numbers, alone decide the result."""
    changes_shapes = torch.Tag.inplace_view in func.tags or _resizes(func)
    return func.namespace == "aten" and not changes_shapes and (not _looks(func) or func is aten.index.Tensor)


def _formula_of(packet: Any) -> Formula | None:
    """torch's own: matrix products, convolutions and attention have one."""
    from torch.utils.flop_counter import flop_registry

    formula: Formula | None = flop_registry.get(packet, _grouped_flops if packet in _GROUPED else None)
    return formula


def _grouped_flops(left: torch.Tensor, right: torch.Tensor, *_: Any, **__: Any) -> int:
    """Count FLOPs of grouped products, which torch has no formula for. Groups are in rows, columns or the sum."""
    groups = left.size(0) if left.dim() == right.dim() == 3 else 1
    return 2 * groups * left.size(-2) * left.size(-1) * right.size(-1)


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


def _work_of(treatment: Treatment, args: Any, kwargs: Any, out: Any) -> tuple[int, int]:
    formula = treatment.formula
    flops = 0 if formula is None else int(formula(*args, **kwargs, out_val=out))
    if not treatment.launches:
        return flops, 0
    met = tensors_of((*args, *kwargs.values(), out if treatment.gives_new else None))
    return flops, sum(tensor.numel() * tensor.element_size() for tensor in met)


@dataclass
class OperatorTotals:
    """Totals of all operators that ran."""

    flops: int = 0
    """FLOPs of matrix products, convolutions and attention, a multiply and an add each; others are not counted."""
    bytes_moved: int = 0
    """Read and written by operators, each as if it met its tensors in main memory; no views, and no empty memory."""
    from_host_bytes: int = 0
    """Bytes of tensors copied from the host; `Host` counts copies to it."""
    link_bytes: int = 0
    """That collectives send to other devices."""

    def add(self, treatment: Treatment, args: Any, kwargs: Any, out: Any, shapes: ShapeKey | None) -> None:
        """`shapes` are those of the arguments, where all that is counted follows from them."""
        work = None if shapes is None else treatment.work.get(shapes)
        if work is None:
            work = _work_of(treatment, args, kwargs, out)
            if shapes is not None and len(treatment.work) < _MOST_WORK:
                treatment.work[shapes] = work
        self.flops += work[0]
        self.bytes_moved += work[1]

    def copied(self, out: Any, sources: Any) -> None:
        """Count the bytes that one of `COPIES` moved from the host to the device."""
        if all(tensor.is_meta for tensor in tensors_of(out)):
            on_host = (tensor for tensor in tensors_of(sources) if not tensor.is_meta)
            self.from_host_bytes += sum(tensor.numel() * tensor.element_size() for tensor in on_host)
