"""Base class of a workload: common knobs and checks, random weights and random inputs.

Linear layers are scaled so that a signal survives a deep stack: with PyTorch's default initialization each one shrinks
its input to about 0.58 of it, and the outputs of two variants would agree whatever happened before.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, Self

import torch
from torch import Tensor, nn

from memviz.errors import UsageError
from memviz.runner.knobs import check_knobs, knob

_BIAS_STD = 0.1
_EMBEDDING_STD = 0.5


def scale_weights(model: nn.Module) -> None:
    """Draws all matrices with a gain of one, from the current seed. On meta there is nothing to draw."""
    with torch.no_grad():
        for module in model.modules():
            for name, weight in module.named_parameters(recurse=False):
                if weight.device.type != "meta":
                    _draw(module, name, weight)


def _draw(module: nn.Module, name: str, weight: nn.Parameter) -> None:
    if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
        fan_in = module.weight[0].numel()
        weight.normal_(std=_BIAS_STD if name == "bias" else 1 / math.sqrt(fan_in))
    elif isinstance(module, nn.Embedding):
        weight.normal_()
    elif weight.ndim > 1:
        # Tables added to shifts, scales and gates, such as LTX-Video's.
        weight.normal_(std=_EMBEDDING_STD)


class RandomInputs:
    """Draws on the CPU and copies, because each kind of device has a generator of its own."""

    def __init__(self, device: torch.device, seed: int, micro_batch: int = 0) -> None:
        self.device = device
        self._generator = torch.Generator("cpu").manual_seed(1_000_003 * seed + micro_batch)

    def normal(self, *shape: int, dtype: torch.dtype) -> Tensor:
        return self.made(shape, dtype, lambda: self._draw(shape).to(dtype))

    def uniform(self, *shape: int, dtype: torch.dtype) -> Tensor:
        return self.made(
            shape, dtype, lambda: torch.rand(shape, generator=self._generator, dtype=torch.float32, device="cpu")
        )

    def whole(self, below: int, *shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
        return self.made(
            shape, dtype, lambda: torch.randint(below, shape, generator=self._generator, dtype=dtype, device="cpu")
        )

    def made(self, shape: tuple[int, ...], dtype: torch.dtype, make: Callable[[], Tensor]) -> Tensor:
        """Whatever `make` gives on the CPU; on meta only its shape, and nothing is computed."""
        if self.device.type == "meta":
            return torch.empty(shape, dtype=dtype, device=self.device)
        with torch.device("cpu"):
            return make().to(self.device, dtype)

    def _draw(self, shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, generator=self._generator, dtype=torch.float32, device="cpu")


DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


class Workload(Protocol):
    """A model with random weights, its inputs and its loss. A frozen dataclass of knobs."""

    name: ClassVar[str]
    title: ClassVar[str]
    sentence: ClassVar[str]

    @property
    def training(self) -> bool: ...

    @property
    def dtype(self) -> str: ...

    @property
    def micro_batches(self) -> int: ...

    @property
    def seed(self) -> int: ...

    def build(self) -> nn.Module:
        """The model on torch's current default device, meta included, in its dtype."""

    def inputs(self, device: torch.device, micro_batch: int = 0) -> dict[str, Any]:
        """Keyword arguments of the model; other numbers, equal shapes, for every micro-batch."""

    def loss(self, output: Any) -> Tensor:
        """A scalar from whatever the model returned."""

    def small(self) -> Self:
        """A twin that a CPU steps through in a second or two, with as many kinds of blocks and a signal in all."""

    def describe(self) -> str:
        """Model, parameters, shapes and what is run, in a line."""


def dtype_knob(default: str) -> Any:
    return knob(default, "number format of weights and inputs", choices=tuple(DTYPES), last=True)


def mode_knob(default: str) -> Any:
    help = "inference: a forward pass without gradients; training: forward and backward"
    return knob(default, help, choices=("inference", "training"), last=True)


def micro_batches_knob(default: int = 1) -> Any:
    return knob(default, "forward and backward passes in one training step, each of a whole batch", least=1, last=True)


def seed_knob() -> Any:
    return knob(0, "where the random weights and inputs begin", least=0, last=True)


@dataclass(frozen=True)
class Published:
    """One of the models that a workload is, as its makers published it."""

    settings: Mapping[str, str]
    parameters: int
    """That ours has with these settings."""
    said: str
    """How many its page says it has, as it puts it; some names are rounder than others."""
    source: str


@dataclass(frozen=True)
class FromConfiguration(ABC):
    """A workload whose model is made from a configuration. Subclasses are frozen dataclasses and give `_model`."""

    name: ClassVar[str]
    title: ClassVar[str]
    published: ClassVar[tuple[Published, ...]] = ()
    depths: ClassVar[tuple[str, ...]] = ("layers",)
    """The knobs that say how many blocks of one kind there are."""
    holds: ClassVar[tuple[str, ...] | None] = ()
    """Kinds of models in this one, among those to which some optimization is limited; None where
    that is not known before it is built."""

    dtype: str = dtype_knob("bf16")
    mode: str = mode_knob("inference")
    micro_batches: int = micro_batches_knob()
    seed: int = seed_knob()

    def __post_init__(self) -> None:
        check_knobs(self)
        if self.micro_batches > 1 and not self.training:
            raise UsageError(f"micro_batches is {self.micro_batches}, and only a training step has any; mode=training.")
        self._check()

    @property
    def training(self) -> bool:
        return self.mode == "training"

    def build(self) -> nn.Module:
        with default_dtype(DTYPES[self.dtype]):
            model = self._model()
        self._weights(model)
        _parameters[self] = sum(parameter.numel() for parameter in model.parameters())
        return model.train(self.training).requires_grad_(self.training)

    def describe(self) -> str:
        what = "training step" if self.training else "forward pass"
        split = f" of {self.micro_batches} micro-batches" if self.micro_batches > 1 else ""
        return (
            f"{self.title}, {parameters_text(self._parameter_count())}, {self._shapes()}, {self.dtype}, {what}{split}"
        )

    def _at_most(self, **most: int) -> Self:
        """None of these knobs above that, and in fp32: how a small twin begins."""
        smaller = {name: min(getattr(self, name), value) for name, value in most.items()}
        return replace(self, **smaller, dtype="fp32")

    def _parameter_count(self) -> int:
        if self not in _parameters:
            with torch.device("meta"):
                self.build()
        return _parameters[self]

    def _check(self) -> None:  # noqa: B027 - most have no such shapes
        """Shapes that cannot be: UsageError with what would work."""

    @abstractmethod
    def _model(self) -> nn.Module: ...

    def _weights(self, model: nn.Module) -> None:
        scale_weights(model)

    @abstractmethod
    def _shapes(self) -> str: ...


_parameters: dict[FromConfiguration, int] = {}
"""How many each configuration has, once it was built: describing a run must not build a large model again."""


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Weights are made in their format at once, as `from_pretrained` does, and never held twice."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def check_multiple(name: str, value: int, of: int, *, plus: int = 0, why: str) -> None:
    if (value - plus) % of:
        below = (value - plus) // of * of + plus
        near = " or ".join(str(number) for number in (below, below + of) if number > 0)
        rule = f"{plus} more than a multiple of {of}" if plus else f"a multiple of {of}"
        raise UsageError(f"{name} is {value}; it must be {rule}, as {near} is, because {why}.")


def plural(count: int, word: str) -> str:
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"


def parameters_text(parameters: int) -> str:
    for unit, name in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if parameters >= unit:
            return f"{parameters / unit:.2f} {name} parameters"
    return f"{parameters} parameters"
