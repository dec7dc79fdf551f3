"""Repeatable runs of a model: the same random numbers, dropout, buffers and weights, in its own type or in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from copy import deepcopy
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

from optimizations.lora import Adapted, Lora


def flatten(output: Any) -> dict[str, Tensor]:
    """{'sample': ...}, {'0': ..., 'hidden_states.3': ...}, of a single tensor {'output': ...}.

    Numbers, None and objects such as caches are left out.
    """
    return {name or "output": tensor for name, tensor in _walk(output, "")}


def _walk(value: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value
        return
    for key, inner in _parts(value):
        yield from _walk(inner, f"{name}.{key}" if name else str(key))


def _parts(value: Any) -> list[tuple[Any, Any]]:
    # The outputs of transformers and diffusers are mappings and dataclasses at once; as mappings they leave out None.
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(zip(value._fields, value, strict=True))
    if isinstance(value, (tuple, list)):
        return list(enumerate(value))
    if is_dataclass(value) and not isinstance(value, type):
        return [(attribute.name, getattr(value, attribute.name)) for attribute in fields(value)]
    return []


def cloned(value: Any, dtype: torch.dtype | None = None, device: torch.device | None = None) -> Any:
    """The same arguments once more, with tensors of their own; floating point ones as `dtype` if it is given.

    Objects are copied too: a cache that a layer appends to must not be appended to twice.
    """
    if isinstance(value, Tensor):
        wanted = dtype if value.is_floating_point() else None
        return value.detach().to(device=device, dtype=wanted, copy=True)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(cloned(item, dtype, device) for item in value))
    if isinstance(value, (tuple, list)):
        return type(value)(cloned(item, dtype, device) for item in value)
    if type(value) is dict:
        return {key: cloned(item, dtype, device) for key, item in value.items()}
    try:
        return deepcopy(value)
    except (TypeError, RuntimeError, NotImplementedError):
        return value


_ATTENTION = "scaled_dot_product_attention"
_PLACES = {
    F: ("dropout", "alpha_dropout", "dropout1d", "dropout2d", "dropout3d", "feature_alpha_dropout", _ATTENTION),
    torch: ("dropout", "dropout_", "alpha_dropout", "alpha_dropout_", "feature_dropout", "feature_dropout_"),
}
_Drop = Callable[..., Tensor]


@dataclass(frozen=True)
class Dropped:
    """One call that drops something."""

    within_attention: bool
    """There each kernel draws in an order of its own."""
    shape: tuple[int, ...]
    p: float


@contextmanager
def watched_dropout() -> Iterator[list[Dropped]]:
    """Yield the list of dropouts inside, in order."""
    drops: list[Dropped] = []

    def watch(plain: _Drop, is_attention: bool) -> _Drop:
        def call(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            p = _attention_p(args, kwargs) if is_attention else _dropout_probability(args, kwargs)
            if p:
                drops.append(Dropped(is_attention, tuple(x.shape), p))
            return plain(x, *args, **kwargs)

        return call

    with _dropout_replaced(watch):
        yield drops


@contextmanager
def dropout_as_factor() -> Iterator[None]:
    def factor(plain: _Drop, is_attention: bool) -> _Drop:
        def attention(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            p = _attention_p(args, kwargs)
            positional = [*args[:3], 0.0, *args[4:]] if len(args) > 3 else args
            output = plain(x, *positional, **(kwargs | {"dropout_p": 0.0} if "dropout_p" in kwargs else kwargs))
            return output * (1 - p) if p else output

        def drop(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            p = _dropout_probability(args, kwargs)
            in_place = kwargs.get("inplace", len(args) > 2 and args[2]) or getattr(plain, "__name__", "")[-1:] == "_"
            return x.mul_(1 - p) if in_place else x * (1 - p) if p else x

        return attention if is_attention else drop

    with _dropout_replaced(factor):
        yield


@contextmanager
def _dropout_replaced(make: Callable[[_Drop, bool], _Drop]) -> Iterator[None]:
    with ExitStack() as undo:
        for place, names in _PLACES.items():
            for name in names:
                plain = getattr(place, name)
                undo.callback(setattr, place, name, plain)
                setattr(place, name, _in_order(make(plain, name == _ATTENTION)))
        yield


def _in_order(function: _Drop) -> _Drop:
    """Libraries may give the first argument by its name, too."""

    def call(*args: Any, **kwargs: Any) -> Tensor:
        first = next((name for name in ("query", "input") if name in kwargs), None)
        return function(*args, **kwargs) if args or first is None else function(kwargs.pop(first), **kwargs)

    return call


def _dropout_probability(args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    """Return the dropout probability from (p, training); 0 outside training."""
    p = args[0] if args else kwargs.get("p", 0.5)
    trains = args[1] if len(args) > 1 else kwargs.get("training", kwargs.get("train", True))
    return float(p) if trains else 0.0


def _attention_p(args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    """Return the dropout probability from (key, value, mask, p)."""
    return float(args[3] if len(args) > 3 else kwargs.get("dropout_p", 0.0))


FLOAT64_LIMIT_BYTES = 2 << 30
"""A module whose weights would take more than this as float64 is judged without it."""


def fits_in_float64(module: nn.Module) -> bool:
    return sum(tensor.numel() * 8 for tensor in _floating(module)) <= FLOAT64_LIMIT_BYTES


@contextmanager
def in_double(module: nn.Module) -> Iterator[nn.Module]:
    """Convert weights and buffers to float64; restore the original tensors on exit.

    The parameters stay the same objects, so references to them elsewhere stay valid. Gradients are dropped.
    """
    saved = [(tensor, tensor.data) for tensor in _floating(module)]
    try:
        for tensor, data in saved:
            tensor.grad = None
            tensor.data = data.to(torch.float64)
        yield module
    finally:
        for tensor, data in saved:
            tensor.grad = None
            tensor.data = data


@contextmanager
def double_copy(module: nn.Module) -> Iterator[nn.Module]:
    """For a module that keeps account of its weights' types, as one whose weights are cast: what it is given back
    would be another to it than what was taken."""
    yield deepcopy(module).to(torch.float64)


def _floating(module: nn.Module) -> list[Tensor]:
    every = (*module.parameters(), *module.buffers())
    return [tensor for tensor in every if tensor.is_floating_point() and tensor.dtype != torch.float64]


PERTURBED_SHARE = 0.1
"""Average change of each weight, relative to its size: far beyond rounding, yet still the same model."""


def perturbed_weights(model: nn.Module, rests: Mapping[str, torch.dtype]) -> dict[str, Tensor]:
    """Through the types that the other model keeps them in, where it has its own, so that both can hold them."""
    draw = torch.Generator().manual_seed(0)
    moved = {}
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point():
            size = float(parameter.detach().to(torch.float64).norm()) / math.sqrt(max(parameter.numel(), 1))
            by = torch.randn(parameter.shape, generator=draw) * (PERTURBED_SHARE * size)
            weight = parameter.detach() + by.to(device=parameter.device, dtype=parameter.dtype)
            moved[name] = weight.to(rests[name]).to(weight.dtype) if name in rests else weight
    return moved


def can_perturb(model: nn.Module, weights: Mapping[str, Tensor], rests: Mapping[str, torch.dtype]) -> bool:
    """Return True if the model has these very weights, neither under other names nor in an unknown dtype.

    A composite tensor, as torchao's of codes and scales, reports the dtype that it represents.
    """
    parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.is_floating_point()}
    return parameters.keys() == weights.keys() and all(
        parameters[name].dtype is rests.get(name, weight.dtype)
        and parameters[name].shape == weight.shape
        and not is_traceable_wrapper_subclass(parameters[name])
        for name, weight in weights.items()
    )


@contextmanager
def with_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> Iterator[None]:
    """In place, where an optimizer writes, too; afterwards as before."""
    parameters = {name: parameter for name, parameter in model.named_parameters() if name in weights}
    saved = {name: weight.detach().clone() for name, weight in parameters.items()}
    try:
        _write_weights(parameters, weights)
        yield
    finally:
        _write_weights(parameters, saved)


@torch.no_grad()
def _write_weights(into: Mapping[str, nn.Parameter], weights: Mapping[str, Tensor]) -> None:
    for name, parameter in into.items():
        parameter.copy_(weights[name])


Inputs = Sequence[Mapping[str, Any]]
"""Keyword arguments of model(...), one mapping per micro-batch."""
Loss = Callable[[Any], Tensor]
Split = Callable[[Mapping[str, Any]], Iterable[tuple[Mapping[str, Any], float]]]
"""A batch in pieces, and the share of each."""
MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


@dataclass(frozen=True)
class StepResult:
    outputs: dict[str, Tensor]
    """Outputs of the last micro-batch."""
    gradients: dict[str, Tensor]
    """Empty without training."""
    draws: bool
    """Random numbers were drawn."""
    dropped: tuple[Dropped, ...] = ()
    """Dropouts that drew some of these."""
    end: tuple[Tensor, ...] = ()
    """The random state after all of them."""

    def draws_like(self, other: StepResult) -> bool:
        """The same random numbers for the same tensors, as far as can be seen."""
        same = self.dropped == other.dropped and same_state(list(self.end), list(other.end))
        return same and not any(dropout.within_attention for dropout in self.dropped)


@dataclass(frozen=True)
class ComparedStep:
    """How a model is run: everything but the model."""

    inputs: Inputs
    training: bool
    loss: Loss
    seed: int = 0
    split: Split | None = None
    """How training takes each micro-batch in pieces."""

    def run(self, model: nn.Module, dtype: torch.dtype | None = None) -> StepResult:
        """One forward pass, or in training one step without the optimizer. Gradients afterwards: none."""
        gradients: dict[str, Tensor] = {}
        with self._repeatable(model), watched_dropout() as dropped:
            before = random_state(self.device)
            if self.training:
                outputs, gradients = self._step(model, dtype)
            else:
                with torch.no_grad():
                    outputs = _detached(flatten(model(**cloned(self.inputs[-1], dtype))))
            end = random_state(self.device)
            return StepResult(outputs, gradients, not same_state(before, end), tuple(dropped), tuple(end))

    def _step(self, model: nn.Module, dtype: torch.dtype | None) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        model.zero_grad(set_to_none=True)
        outputs: dict[str, Tensor] = {}
        leaves: dict[str, Tensor] = {}
        for batch in self.inputs:
            arguments = cloned(batch, dtype)
            for name, value in arguments.items():
                if isinstance(value, Tensor) and value.is_floating_point():
                    leaves[name] = value.requires_grad_()
                    # A copy: models may work in place, which a leaf that requires a gradient refuses.
                    arguments[name] = value.clone()
            outputs, _ = self._backward(model, arguments)
        parameters = {adapter_name(name): parameter for name, parameter in model.named_parameters()}
        # Gradients of inputs see every layer, also one whose parameters have other names in the changed model.
        inputs = {f"input {name}": leaf for name, leaf in leaves.items()}
        every = {name: one.grad for name, one in (*parameters.items(), *inputs.items()) if one.grad is not None}
        copies = {name: gradient.detach().clone() for name, gradient in every.items()}
        model.zero_grad(set_to_none=True)
        return outputs, copies

    def losses(self, model: nn.Module, steps: int, make: MakeOptimizer) -> list[float]:
        """The loss before each of `steps` steps, in float64. Changes the model's weights."""
        optimizer = make([parameter for parameter in model.parameters() if parameter.requires_grad])
        losses = []
        with self._repeatable(model):
            for _ in range(steps):
                model.zero_grad(set_to_none=True)
                total = 0.0
                for batch in self.inputs:
                    total += self._backward(model, cloned(batch))[1]
                losses.append(total)
                optimizer.step()
        model.zero_grad(set_to_none=True)
        return losses

    @property
    def device(self) -> torch.device:
        places = [tensor.device for batch in self.inputs for tensor in flatten(batch).values()]
        return next((place for place in places if place.type != "cpu"), torch.device("cpu"))

    def _backward(self, model: nn.Module, arguments: dict[str, Any]) -> tuple[dict[str, Tensor], float]:
        """Through one micro-batch: what it gives, and its part of the loss."""
        outputs, shares, total = [], [], 0.0
        for piece, share in [(arguments, 1.0)] if self.split is None else self.split(arguments):
            output = model(**piece)
            loss = self.loss(output) / len(self.inputs)
            loss = loss if share == 1 else loss * share
            loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach().to(torch.float64))
            outputs.append(_detached(flatten(output)))
            shares.append(share)
        return _join_outputs(outputs, shares), total

    @contextmanager
    def _repeatable(self, model: nn.Module) -> Iterator[None]:
        buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
        with seeded(self.seed, self.device):
            try:
                yield
            finally:
                with torch.no_grad():
                    for buffer, saved in buffers:
                        buffer.copy_(saved)


def adapter_name(name: str) -> str:
    """The name that `optimizations.lora` gives to a parameter that peft has wrapped or made."""
    for wrapped, common in (
        (".base_layer.", ".base."),
        (".lora_A.default.", ".lora_down."),
        (".lora_B.default.", ".lora_up."),
    ):
        name = name.replace(wrapped, common)
    return name


def _join_outputs(outputs: Sequence[dict[str, Tensor]], shares: Sequence[float]) -> dict[str, Tensor]:
    """Join the outputs of pieces as the whole batch would give them: rows concatenated, scalars averaged."""
    if len(outputs) == 1:
        return outputs[0]
    joined = {}
    for name, first in outputs[0].items():
        parts = [output[name] for output in outputs]
        if first.dim():
            joined[name] = torch.cat(parts)
        else:
            joined[name] = torch.stack([part * share for part, share in zip(parts, shares, strict=True)]).sum()
    return joined


def _detached(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach() for name, tensor in tensors.items()}


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Random numbers from this seed inside; outside, as if nothing had been drawn."""
    with forked(device):
        torch.manual_seed(seed)
        yield


def forked(device: torch.device) -> AbstractContextManager[None]:
    """Restore the random state on exit, on CPU and `device`."""
    if _generators(device) is None:
        return torch.random.fork_rng(devices=[])
    return torch.random.fork_rng(devices=[device], device_type=device.type)


def _generators(device: torch.device) -> Any:
    """`torch.cuda`, `torch.xpu`: whose tensors draw from a generator of their own."""
    return None if device.type in ("cpu", "meta") else getattr(torch, device.type)


def random_state(device: torch.device) -> list[Tensor]:
    own = _generators(device)
    return [torch.get_rng_state(), *([] if own is None else [own.get_rng_state(device)])]


def set_random_state(states: list[Tensor], device: torch.device) -> None:
    torch.set_rng_state(states[0])
    own = _generators(device)
    if own is not None:
        own.set_rng_state(states[1], device)


def same_state(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@contextmanager
def dropout_off(model: nn.Module) -> Iterator[None]:
    """Every module stays in the mode it is in, checkpointing and batch norm too, but nothing is dropped."""
    saved: list[tuple[nn.Module, str, float]] = []
    for module in model.modules():
        names = ["p"] if "dropout" in type(module).__name__.lower() else []
        names += [name for name in vars(module) if "dropout" in name.lower()]
        saved += [(module, name, vars(module)[name]) for name in names if isinstance(vars(module).get(name), float)]
    try:
        for module, name, _ in saved:
            setattr(module, name, 0.0)
        yield
    finally:
        for module, name, value in saved:
            setattr(module, name, value)


# A change that computed nothing proves nothing by equal results. Views are left out, since they compute nothing.

Apply = Callable[[nn.Module], Callable[[], None]]
SAME_OPERATORS = "results are the same with and without it"


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
        gives_the_same = all(
            torch.equal(value, before.results.get(name, value)) for name, value in after.results.items()
        )
        if (change.lossy or after.operators == before.operators) and gives_the_same:
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
                losses = step.losses(model, 1, make)
                results = {"loss": torch.tensor(losses, dtype=torch.float64)}
            else:
                results = step.run(model).outputs
        return cls(operators.seen, results)


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
