"""Layers, gradients and losses of two models, compared one by one.

Each layer of the changed model runs on the input that the reference's layer received, so that a difference is its own;
the chained differences show what accumulates from layer to layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from memviz.errors import UsageError
from memviz.runner.output_check.difference import MARGIN, Difference, coarser, coarsest, difference, expected, work_of
from memviz.runner.output_check.model_runs import (
    cloned,
    fits_in_float64,
    flatten,
    forked,
    in_double,
    random_state,
    set_random_state,
)


@dataclass(frozen=True)
class Rounding:
    """Rounding error to expect at one place, relative to the norm of the result."""

    reductions: int
    """How many weights multiply in a row, at most."""
    expected: float
    """From the type, these reductions and their length."""
    fine: float
    """The same in float32: what may be left where code computes in float32 whatever it is given."""
    floor: float | None
    """Measured: how far the reference lies from itself in float64. None where that was not needed or not possible."""
    exact: float | None
    """Measured: how far both lie apart in float64, where rounding is nothing and a bug is what it was."""


@dataclass(frozen=True)
class Arithmetic:
    """Arithmetic of a change, which its rounding is judged by."""

    computes: frozenset[torch.dtype] = frozenset()
    """Types that it computes in on purpose, besides those of what it is given and gives."""
    in_float64: Callable[[nn.Module], AbstractContextManager[nn.Module]] | None = in_double
    """None where it cannot compute in float64."""


@dataclass(frozen=True)
class LayerDifference:
    path: str
    block: bool
    """A block of the model, or a part of one."""
    name: str
    """Which of the layer's outputs is the worst."""
    alone: Difference
    chained: Difference | None
    """None for parts of blocks."""
    rounding: Rounding
    stored_loss: float | None
    """For a lossy change, by how much storing this layer's weights changes them."""


def blocks_of(model: nn.Module) -> list[str]:
    """Paths of the outermost entries of module lists and sequences; without any, of the direct children."""
    listed = [path for path in _listed(model, "") if path]
    return listed or [name for name, child in model.named_children() if any(True for _ in child.parameters())]


def _listed(module: nn.Module, path: str) -> Iterator[str]:
    for name, child in module.named_children():
        inner = f"{path}.{name}" if path else name
        entry = isinstance(module, (nn.ModuleList, nn.ModuleDict)) or (
            isinstance(module, nn.Sequential) and any(True for _ in child.children())
        )
        if entry:
            yield inner
        else:
            yield from _listed(child, inner)


def parts_of(model: nn.Module, block: str) -> list[str]:
    """The composed children of a block: its attention, its feed-forward, its modulation."""
    inside = model.get_submodule(block)
    if isinstance(inside, nn.ModuleList):
        return []
    composed = [
        name
        for name, child in inside.named_children()
        if any(True for _ in child.children()) and not isinstance(child, nn.ModuleList)
    ]
    return [f"{block}.{name}" for name in composed]


@dataclass(frozen=True)
class LayerCall:
    """The first call of a layer, in host memory."""

    path: str
    block: bool
    arguments: tuple[tuple[Any, ...], dict[str, Any]]
    random: list[Tensor]
    outputs: dict[str, Tensor]


class LayerRecorder:
    """Records the inputs and outputs of each layer of the reference, before anything is changed.

    A change may reach beyond its model, as a backend of attention does that is set for the whole process; so the
    changed layers are run later, from these records.
    """

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self._model, self._device = model, device
        self._begun: dict[str, tuple[Any, list[Tensor]]] = {}
        self.calls: dict[str, LayerCall] = {}

    @contextmanager
    def recording(self) -> Iterator[None]:
        handles = []
        try:
            for block in blocks_of(self._model):
                for path in (block, *parts_of(self._model, block)):
                    module = self._model.get_submodule(path)
                    handles.append(module.register_forward_pre_hook(self._before(path), with_kwargs=True, prepend=True))
                    handles.append(module.register_forward_hook(self._after(path, path == block)))
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _before(self, path: str) -> Callable[..., None]:
        def hook(_module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
            if path not in self.calls:
                self._begun[path] = (cloned((args, kwargs), device=torch.device("cpu")), random_state(self._device))

        return hook

    def _after(self, path: str, block: bool) -> Callable[..., None]:
        def hook(_module: nn.Module, _args: Any, output: Any) -> None:
            begun = self._begun.pop(path, None)
            if begun is not None:
                outputs = {name: tensor.detach().cpu() for name, tensor in flatten(output).items()}
                self.calls[path] = LayerCall(path, block, *begun, outputs)

        return hook


def in_order(calls: Mapping[str, LayerCall]) -> list[LayerCall]:
    """Blocks as they were called, each before its parts, which return before it does."""
    blocks = [call for call in calls.values() if call.block]
    parts = [call for call in calls.values() if not call.block]
    return [call for block in blocks for call in (block, *(p for p in parts if p.path.startswith(f"{block.path}.")))]


@dataclass(frozen=True)
class ComparedLayer:
    """One layer of the changed model on what the reference's got."""

    name: str
    """Name of the worst output."""
    difference: Difference
    rounding: Rounding
    ours: Tensor | None
    """That output in float64, where more than float32 explains is to be explained."""


class LayerComparer:
    """Runs single layers: the changed model's while it is changed, and later the reference's in float64."""

    def __init__(self, device: torch.device, *, exactly: bool, arithmetic: Arithmetic) -> None:
        self._device, self._exactly, self._arithmetic = device, exactly, arithmetic
        self.notes: list[str] = []

    def compare(self, reference: nn.Module, changed: nn.Module, call: LayerCall) -> ComparedLayer | None:
        """None, with a note, where the layer cannot be called by itself."""
        try:
            name, worst = worst_of(call.outputs, self._run(changed, call))
        except Exception as error:  # a layer of anybody's may raise anything when it is called by itself
            self.notes.append(f"{call.path} could not be compared alone: {type(error).__name__}: {error}")
            return None
        bounds = bounds_of(
            reference, list(flatten(call.arguments).values()), call.outputs, self._device, self._arithmetic
        )
        beyond = self._exactly and worst.relative_l2 > MARGIN * bounds.fine
        return ComparedLayer(name, worst, bounds, self._in_float64(changed, call, name) if beyond else None)

    def settled(self, reference: nn.Module, call: LayerCall, compared: ComparedLayer) -> ComparedLayer:
        """With what float64 says, once nothing is changed any more."""
        exact = None if compared.ours is None else self._in_float64(reference, call, compared.name)
        if exact is None:
            return compared
        rounding = in_float64(compared.rounding, call.outputs[compared.name], exact, compared.ours)
        return replace(compared, rounding=rounding)

    def _in_float64(self, module: nn.Module, call: LayerCall, name: str) -> Tensor | None:
        if self._arithmetic.in_float64 is None or not fits_in_float64(module):
            return None
        try:
            with self._arithmetic.in_float64(module) as exact:
                return self._run(exact, call, torch.float64)[name]
        except Exception as error:  # not every module can compute in float64, and each fails in its own way
            self.notes.append(f"{call.path} could not be run in float64: {type(error).__name__}: {error}")
            return None

    def _run(self, module: nn.Module, call: LayerCall, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
        args, kwargs = cloned(call.arguments, dtype, self._device)
        with forked(self._device), torch.no_grad():
            set_random_state(call.random, self._device)
            return {name: tensor.cpu() for name, tensor in flatten(module(*args, **kwargs)).items()}


def worst_of(reference: Mapping[str, Tensor], ours: Mapping[str, Tensor]) -> tuple[str, Difference]:
    """The output that differs most, of those that both have."""
    names = [name for name in reference if name in ours]
    if not names:
        raise UsageError("the layer returns no tensor of the same name")
    apart = {name: difference(reference[name], ours[name]) for name in names}
    worst = max(names, key=lambda name: (apart[name].nonfinite_differ, apart[name].relative_l2, apart[name].unequal))
    return worst, apart[worst]


def bounds_of(
    module: nn.Module, inputs: list[Tensor], outputs: Mapping[str, Tensor], device: torch.device, arithmetic: Arithmetic
) -> Rounding:
    work = work_of(module, inputs)
    dtype = coarsest({*arithmetic.computes, *(tensor.dtype for tensor in (*inputs, *outputs.values()))})
    return Rounding(
        work[0], expected(dtype, work, on_cuda=device.type == "cuda"), expected(torch.float32, work), None, None
    )


def in_float64(bounds: Rounding, reference: Tensor, exact: Tensor, ours: Tensor | None) -> Rounding:
    """With the distances measured: the reference from itself, and both from each other where ours is there.

    Relative to the reference as it is, too: a result that is zero but for rounding, like the gradient of a key's
    bias, would otherwise differ from itself by 100 %.
    """
    if coarser(exact.dtype, torch.float32):
        return bounds  # the code casts to a type of its own, so nothing was gained
    own = difference(exact, reference)
    size = max(own.reference_l2, float(reference.to(torch.float64).norm()))
    floor = own.l2 / size if size else 0.0
    if ours is None:
        return replace(bounds, floor=floor)
    return replace(bounds, floor=floor, exact=difference(exact, ours).l2 / size if size else 0.0)


def chained(changed: nn.Module, calls: Mapping[str, LayerCall], run: Callable[[], Any]) -> dict[str, Difference]:
    """The blocks' outputs while the changed model runs through, against the reference's."""
    apart: dict[str, Difference] = {}

    def watch(call: LayerCall) -> Callable[..., None]:
        def hook(_module: nn.Module, _args: Any, output: Any) -> None:
            ours = {name: tensor.detach().cpu() for name, tensor in flatten(output).items()}
            same = {name: tensor for name, tensor in ours.items() if _same_shape(call.outputs.get(name), tensor)}
            if call.path not in apart and same:
                apart[call.path] = worst_of(call.outputs, same)[1]

        return hook

    modules = dict(changed.named_modules())
    handles = []
    try:
        for call in calls.values():
            if call.block and call.path in modules:
                handles.append(modules[call.path].register_forward_hook(watch(call)))
        run()
    finally:
        for handle in handles:
            handle.remove()
    return apart


def _same_shape(one: Tensor | None, other: Tensor) -> bool:
    return one is not None and one.shape == other.shape


Named = Mapping[str, Tensor]


@dataclass(frozen=True)
class GradientDifference:
    name: str
    difference: Difference
    noise: float
    """Relative L2 between two runs of the reference."""
    rounding: Rounding


@dataclass(frozen=True)
class Gradients:
    parameters: tuple[GradientDifference, ...]
    """Gradients by names that both models have."""
    only_reference: tuple[str, ...]
    """Parameters that have a gradient in the reference only: none in the changed model, or under another name."""
    only_ours: tuple[str, ...]
    relative_l2: float
    """Relative L2 difference of all gradients as one vector."""

    @property
    def size(self) -> float:
        """The norm of the reference's, as one vector."""
        return math.hypot(*(parameter.difference.reference_l2 for parameter in self.parameters))


def compare_gradients(
    reference: Named, ours: Named, again: Named, *, bounds: Rounding, exact: tuple[Named, Named] | None = None
) -> Gradients:
    """`ours` may come from anywhere, a flat buffer for instance, in any shape of as many elements.

    `bounds` is what rounding may do to the gradients of this model; `exact` both models' gradients in float64.
    """
    rows = tuple(
        _compare_gradient(name, (gradient, _gradient_shapes(name, ours[name], gradient), again[name]), bounds, exact)
        for name, gradient in reference.items()
        if name in ours
    )
    apart = math.sqrt(math.fsum(row.difference.l2**2 for row in rows))
    whole = math.sqrt(math.fsum(row.difference.reference_l2**2 for row in rows))
    return Gradients(
        parameters=rows,
        only_reference=tuple(name for name in reference if name not in ours),
        only_ours=tuple(name for name in ours if name not in reference),
        relative_l2=apart / whole if whole else math.inf if apart else 0.0,
    )


def _gradient_shapes(name: str, gradient: Tensor, like: Tensor) -> Tensor:
    if gradient.numel() != like.numel():
        raise UsageError(
            f"The gradient of {name} has {gradient.numel()} elements, the reference's {like.numel()}; "
            "only gradients of the same parameter can be compared."
        )
    return gradient.reshape(like.shape)


def _compare_gradient(
    name: str, pair: tuple[Tensor, Tensor, Tensor], bounds: Rounding, exact: tuple[Named, Named] | None
) -> GradientDifference:
    reference, ours, again = pair
    apart = difference(reference, ours)
    noise = 0.0 if torch.equal(reference, again) else difference(reference, again).relative_l2
    if exact is not None and name in exact[0] and name in exact[1]:
        bounds = in_float64(bounds, reference, exact[0][name], exact[1][name])
    return GradientDifference(name, apart, noise, bounds)


@dataclass(frozen=True)
class LossCurve:
    """The loss before each step, as float64 holds it."""

    reference: tuple[float, ...]
    again: tuple[float, ...]
    """The reference once more: the noise."""
    ours: tuple[float, ...]
    updates: float | None = None
    """Relative L2 between what both move the weights by in all steps; None where nothing moves."""
    trains: str = ""
    """Other weights than the model's own that both train, as in 'adapters'."""

    @property
    def bitwise(self) -> bool:
        """Every loss, and what the steps made of the weights."""
        same = all(_same(one, other) for one, other in zip(self.reference, self.ours, strict=True))
        return same and not self.updates

    @property
    def finite(self) -> bool:
        """Ours is finite wherever the reference is."""
        return all(math.isfinite(our) or not math.isfinite(one) for one, our in self._pairs(self.ours))

    @property
    def worst(self) -> float:
        """Largest relative difference."""
        return max(map(_apart, self.reference, self.ours), default=0.0)

    @property
    def noise(self) -> float:
        return max(map(_apart, self.reference, self.again), default=0.0)

    def _pairs(self, other: tuple[float, ...]) -> zip[tuple[float, float]]:
        return zip(self.reference, other, strict=True)


def update_difference(reference: Named, ours: Named) -> float | None:
    """Between weights' changes of the same names."""
    names = [name for name in reference if name in ours and ours[name].shape == reference[name].shape]
    apart = math.hypot(*(float((ours[name] - reference[name]).double().norm()) for name in names))
    whole = math.hypot(*(float(reference[name].double().norm()) for name in names))
    return apart / whole if whole else None


def _same(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))


def _apart(one: float, other: float) -> float:
    if _same(one, other):
        return 0.0
    return abs(other - one) / abs(one) if one and math.isfinite(one) and math.isfinite(other) else math.inf
