"""One run of a model that can be had again: same random numbers, same buffers, nothing left behind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from memviz.runner.output_check.dropout import Dropped, watched
from memviz.runner.output_check.flatten import cloned, flatten

Inputs = Sequence[Mapping[str, Any]]
"""Keyword arguments of model(...), one mapping per micro-batch."""
Loss = Callable[[Any], Tensor]
Split = Callable[[Mapping[str, Any]], Iterable[tuple[Mapping[str, Any], float]]]
"""A batch in pieces, and the share of each."""
MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
GradientsOf = Callable[[nn.Module], Mapping[str, Tensor]]
"""Where the gradients are after backward, by the parameters' names."""

INPUT = "input "
"""What the names of gradients of inputs begin with."""


@dataclass(frozen=True)
class StepResult:
    outputs: dict[str, Tensor]
    """Of the last micro-batch."""
    gradients: dict[str, Tensor]
    """Empty without training."""
    draws: bool
    """Random numbers were drawn."""
    dropped: tuple[Dropped, ...] = ()
    """What for, as far as that is dropout."""
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

    def run(
        self, model: nn.Module, gradients: GradientsOf | None = None, dtype: torch.dtype | None = None
    ) -> StepResult:
        """One forward pass, or in training one step without the optimizer. Gradients afterwards: none."""
        with self._repeatable(model), watched() as dropped:
            before = random_state(self.device)
            outputs, kept = self._forward(model, dtype) if not self.training else self._step(model, gradients, dtype)
            end = random_state(self.device)
            return StepResult(outputs, kept, not same_state(before, end), tuple(dropped), tuple(end))

    def _forward(self, model: nn.Module, dtype: torch.dtype | None) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        with torch.no_grad():
            return _detached(flatten(model(**cloned(self.inputs[-1], dtype)))), {}

    def _step(
        self, model: nn.Module, gradients: GradientsOf | None, dtype: torch.dtype | None
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        model.zero_grad(set_to_none=True)
        outputs, leaves = self._accumulate(model, dtype)
        all_gradients = {**dict((gradients or named_gradients)(model)), **_input_gradients(leaves)}
        kept = {name: gradient.detach().clone() for name, gradient in all_gradients.items()}
        model.zero_grad(set_to_none=True)
        return outputs, kept

    def losses(self, model: nn.Module, steps: int, make: MakeOptimizer, gradients: GradientsOf | None) -> list[float]:
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
                if gradients is not None:
                    _hand_over(model, gradients(model))
                optimizer.step()
        model.zero_grad(set_to_none=True)
        return losses

    @property
    def device(self) -> torch.device:
        places = [tensor.device for batch in self.inputs for tensor in flatten(batch).values()]
        return next((place for place in places if place.type != "cpu"), torch.device("cpu"))

    def _accumulate(self, model: nn.Module, dtype: torch.dtype | None) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
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
        return outputs, leaves

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
        return _joined(outputs, shares), total

    @contextmanager
    def _repeatable(self, model: nn.Module) -> Iterator[None]:
        buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
        with seeded(self.seed, self.device):
            try:
                yield
            finally:
                with torch.no_grad():
                    for buffer, kept in buffers:
                        buffer.copy_(kept)


def named_gradients(model: nn.Module) -> dict[str, Tensor]:
    named = model.named_parameters()
    return {adapter_name(name): parameter.grad for name, parameter in named if parameter.grad is not None}


def adapter_name(name: str) -> str:
    """The name that `optimizations.lora` gives to a parameter that peft has wrapped or made."""
    for theirs, ours in (
        (".base_layer.", ".base."),
        (".lora_A.default.", ".lora_down."),
        (".lora_B.default.", ".lora_up."),
    ):
        name = name.replace(theirs, ours)
    return name


def _input_gradients(leaves: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """They see every layer, also one whose parameters have other names in the changed model."""
    return {f"{INPUT}{name}": leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}


def _hand_over(model: nn.Module, gradients: Mapping[str, Tensor]) -> None:
    for name, parameter in model.named_parameters():
        if name in gradients:
            parameter.grad = gradients[name].to(parameter.dtype).reshape(parameter.shape)


def _joined(outputs: Sequence[dict[str, Tensor]], shares: Sequence[float]) -> dict[str, Tensor]:
    """What pieces gave, as the whole batch would: rows one after the other, and of a number the mean."""
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
    """Whatever is drawn inside, outside it goes on as if nothing had been."""
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
def dropout_off(*models: nn.Module) -> Iterator[None]:
    """Every module stays in the mode it is in, checkpointing and batch norm too, but nothing is dropped."""
    kept: list[tuple[nn.Module, str, float]] = []
    for module in (child for model in models for child in model.modules()):
        names = ["p"] if "dropout" in type(module).__name__.lower() else []
        names += [name for name in vars(module) if "dropout" in name.lower()]
        kept += [(module, name, vars(module)[name]) for name in names if isinstance(vars(module).get(name), float)]
    try:
        for module, name, _ in kept:
            setattr(module, name, 0.0)
        yield
    finally:
        for module, name, value in kept:
            setattr(module, name, value)
