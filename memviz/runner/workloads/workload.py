"""Base class of a workload: common knobs and checks, random weights and random inputs.

Linear layers are scaled so that a signal survives a deep stack: with PyTorch's default initialization each one shrinks
its input to about 0.58 of it, and the outputs of two variants would agree whatever happened before.
"""

from __future__ import annotations

import importlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from memviz.errors import UsageError
from memviz.runner.request import check_knobs, knob


@torch.no_grad()
def draw_weights(model: nn.Module) -> None:
    """Draws all matrices with a gain of one, from the current seed. On meta there is nothing to draw."""
    for module in model.modules():
        for name, weight in module.named_parameters(recurse=False):
            if weight.device.type == "meta":
                continue
            if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
                fan_in = module.weight[0].numel()
                weight.normal_(std=0.1 if name == "bias" else 1 / math.sqrt(fan_in))
            elif isinstance(module, nn.Embedding):
                weight.normal_()
            elif weight.ndim > 1:
                # Tables added to shifts, scales and gates, such as LTX-Video's.
                weight.normal_(std=0.5)


DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


class RandomInputs:
    """Random tensors, drawn on the CPU and copied, because each kind of device has a generator of its own."""

    def __init__(self, device: torch.device, seed: int, micro_batch: int, dtype: str) -> None:
        self.device = device
        self.dtype = DTYPES[dtype]
        self._generator = torch.Generator("cpu").manual_seed(1_000_003 * seed + micro_batch)

    def normal(self, *shape: int) -> Tensor:
        def make() -> Tensor:
            return torch.randn(shape, generator=self._generator, dtype=torch.float32).to(self.dtype)

        return self.place(shape, self.dtype, make)

    def uniform(self, *shape: int) -> Tensor:
        return self.place(shape, self.dtype, lambda: torch.rand(shape, generator=self._generator, dtype=torch.float32))

    def integers(self, high: int, *shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
        return self.place(shape, dtype, lambda: torch.randint(high, shape, generator=self._generator, dtype=dtype))

    def place(self, shape: tuple[int, ...], dtype: torch.dtype, make: Callable[[], Tensor]) -> Tensor:
        """Make a tensor on the CPU and move it; on meta only the shape counts, and `make` is not called."""
        if self.device.type == "meta":
            return torch.empty(shape, dtype=dtype, device=self.device)
        with torch.device("cpu"):
            return make().to(self.device, dtype)


def dtype_knob(default: str) -> Any:
    return knob(default, "number format of weights and inputs", choices=tuple(DTYPES), last=True)


def mode_knob(default: str) -> Any:
    help = "inference: a forward pass without gradients; training: forward and backward"
    return knob(default, help, choices=("inference", "training"), last=True)


def micro_batches_knob(default: int = 1) -> Any:
    return knob(default, "micro-batches per training step, each of a whole batch", least=1, last=True)


def seed_knob() -> Any:
    return knob(0, "random seed of weights and inputs", least=0, last=True)


def size_knob(sizes: Mapping[str, Shape], help: str = "published model") -> Any:
    return knob(next(iter(sizes)), help, choices=tuple(sizes))


@dataclass(frozen=True)
class Published:
    """A published model: its settings here and its number of parameters."""

    settings: Mapping[str, str]
    parameters: int
    """Count of the model that is built with these settings."""
    said: str
    """Rounded count on the page of the model."""
    source: str


@dataclass(frozen=True)
class Shape:
    """Sizes of a published model that follow from its knob `size`."""

    heads: int
    layers: int
    inner: int = 0
    """Width of the feed-forward."""
    width: int = 0
    head: int = 64
    key_value_heads: int = 8
    tied: bool = False
    """The head's matrix is that of the embedding."""
    rotary: bool = False
    """Positions turn queries and keys, instead of being added once at the start."""


@dataclass(frozen=True, eq=False)
class Workload(ABC):
    """A model with random weights, its inputs and its loss. Subclasses are frozen dataclasses of its knobs."""

    name: ClassVar[str]
    title: ClassVar[str]
    sentence: ClassVar[str]

    dtype: str = dtype_knob("bf16")
    mode: str = mode_knob("inference")
    micro_batches: int = micro_batches_knob()
    seed: int = seed_knob()

    def __post_init__(self) -> None:
        check_knobs(self)
        if self.micro_batches > 1 and not self.training:
            raise UsageError(
                f"micro_batches is {self.micro_batches}, but only training has micro-batches. Set mode=training."
            )
        self._check()

    def _check(self) -> None:  # noqa: B027 - most have no such shapes
        """Raise UsageError for impossible shapes, with what would work."""

    @property
    def training(self) -> bool:
        return self.mode == "training"

    @abstractmethod
    def build(self) -> nn.Module:
        """The model on torch's current default device, meta included, in its dtype."""

    @abstractmethod
    def inputs(self, device: torch.device, micro_batch: int = 0) -> dict[str, Any]:
        """Keyword arguments of the model; other numbers, equal shapes, for every micro-batch."""

    @abstractmethod
    def loss(self, output: Any) -> Tensor:
        """Return a scalar computed from the output of the model."""

    @abstractmethod
    def small(self) -> Self:
        """A twin that a CPU steps through in a second or two, with as many kinds of blocks and a signal in all."""

    @abstractmethod
    def describe(self) -> str:
        """Model, parameters, shapes and what is run, in a line."""


@dataclass(frozen=True)
class FromConfiguration(Workload):
    """A model of a library, made from a configuration."""

    published: ClassVar[tuple[Published, ...]] = ()
    library: ClassVar[str] = ""
    kind: ClassVar[str] = ""
    """Name of the model's class in its library."""
    sizes: ClassVar[Mapping[str, Shape]] = {}
    depths: ClassVar[tuple[str, ...]] = ("layers",)
    """Knobs that set the number of blocks of one kind."""
    holds: ClassVar[tuple[str, ...] | None] = ()
    """Kinds of models in this one, among those to which some optimization is limited; None if unknown before it is
    built."""
    most: ClassVar[Mapping[str, int]] = {}
    """Upper limits of knobs in the reduced model."""
    reduced: ClassVar[Mapping[str, Any]] = {}
    """Other knobs of the reduced model."""

    def build(self) -> nn.Module:
        with default_dtype(DTYPES[self.dtype]):
            model: nn.Module = self._model()
        self._weights(model)
        _parameters[self] = sum(parameter.numel() for parameter in model.parameters())
        return model.train(self.training).requires_grad_(self.training)

    def inputs(self, device: torch.device, micro_batch: int = 0) -> dict[str, Any]:
        return self._inputs(RandomInputs(device, self.seed, micro_batch, self.dtype))

    def small(self) -> Self:
        limited: dict[str, Any] = {name: min(self.setting(name), most) for name, most in self.most.items()}
        return replace(self, **limited, **self.reduced, dtype="fp32")

    def describe(self) -> str:
        what = "training step" if self.training else "forward pass"
        split = f" of {self.micro_batches} micro-batches" if self.micro_batches > 1 else ""
        return (
            f"{self.title}, {parameters_text(self._parameter_count())}, {self._shapes()}, {self.dtype}, {what}{split}"
        )

    @property
    def shape(self) -> Shape:
        return self.sizes[getattr(self, "size", "")]

    def setting(self, name: str) -> int:
        """Return the value of a knob, where it is none that of the published model."""
        value = getattr(self, name)
        return int(getattr(self.shape, name) if value is None else value)

    def _parameter_count(self) -> int:
        if self not in _parameters:
            with torch.device("meta"):
                self.build()
        return _parameters[self]

    def _model(self) -> Any:
        kind = getattr(importlib.import_module(self.library), self.kind)
        return kind(**self._configuration())

    def _configuration(self) -> dict[str, Any]:
        """Arguments of the model's class."""
        raise NotImplementedError

    def _weights(self, model: nn.Module) -> None:
        draw_weights(model)

    @abstractmethod
    def _inputs(self, draw: RandomInputs) -> dict[str, Any]: ...

    @abstractmethod
    def _shapes(self) -> str: ...


_parameters: dict[FromConfiguration, int] = {}
"""Counts of configurations that were built: describing a run must not build a large model again."""


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
        lower = (value - plus) // of * of + plus
        near = " or ".join(str(number) for number in (lower, lower + of) if number > 0)
        rule = f"{plus} more than a multiple of {of}" if plus else f"a multiple of {of}"
        raise UsageError(f"{name} is {value}; it must be {rule}, such as {near}, because {why}.")


def check_share(name: str, value: float) -> None:
    if not value < 1:
        raise UsageError(f"{name} is {value}; it must be at least 0 and less than 1.")


def parameters_text(parameters: int) -> str:
    for unit, name in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if parameters >= unit:
            return f"{parameters / unit:.2f} {name} parameters"
    return f"{parameters} parameters"
