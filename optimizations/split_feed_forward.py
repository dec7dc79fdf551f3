"""Feed-forwards computed slice by slice of their inner channels, so that the wide inner tensor never exists whole.

A feed-forward is second(activation(first(x))), and each inner channel goes its own way from the rows of the first
matrix to the columns of the second. So the channels can be worked off in slices whose outputs are added: the idea of
tensor parallelism, one slice after the other on one device. The weights stay as they are, the same parameters of the
same modules; a slice is a view of them. What to know before using it:

* The inner tensors are 1/splits as large, weights and inputs are not. It pays where the feed-forward makes the peak.
* In training every slice is kept for the backward pass, so there it saves little without checkpointing. The gradients
  of the slices are joined when a layer's backward pass ends, which for a moment takes a second copy of them.
* Dropout acts on each slice with its own probability, which is the same as on the whole, drawn in another order.
* The two matrices are read and not called: hooks on them do not run, hooks on the feed-forward itself do.
  So it comes before anything that hangs on single layers: casting, offloading, adapters.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Rows = tuple[Tensor, Tensor | None]
"""Of a linear layer: their weight and their bias."""
Slice = tuple[Rows, Rows | None, Tensor]
"""Rows of the first matrix, rows of the factor, columns of the second matrix."""


@dataclass(frozen=True)
class SplitFeedForward:
    name: ClassVar[str] = "split_feed_forward"
    title: ClassVar[str] = "Split feed-forwards"
    sentence: ClassVar[str] = (
        "Computes each feed-forward in slices and adds them up, so that its wide inner tensor never exists whole. "
        "In training all slices are kept for the backward pass, so there it saves little without checkpointing."
    )
    not_with: ClassVar[Mapping[str, str]] = {}
    needs: ClassVar[Literal["any", "training", "inference"]] = "any"

    splits: int = field(
        default=4,
        metadata={"help": "how many slices; must divide the inner size", "least": 1, "says": "split in {} slices"},
    )
    only: str = field(default="", metadata={"help": "split only modules whose name this pattern is found in"})
    as_published: bool = field(
        default=False,
        metadata={"help": "keep the first publication's order, which holds each slice's tensors longer than needed"},
    )

    def __post_init__(self) -> None:
        if self.splits < 1:
            raise ValueError(f"A feed-forward cannot be cut into {self.splits} slices; 2, 4 or 8 are usual.")
        try:
            re.compile(self.only)
        except re.error as error:
            raise ValueError(f"only={self.only!r} is not a regular expression: {error}.") from None

    @property
    def claim(self) -> Literal["bitwise", "rounding", "lossy"]:
        return "rounding"

    @property
    def environment(self) -> Mapping[str, str]:
        return {}

    def check(self, model: nn.Module, *, training: bool) -> None:
        chosen = self._chosen(model)
        for name, module in chosen.items():
            if fault := "its forward is replaced already" if "forward" in vars(module) else _fault(_parts(module)):
                raise ValueError(
                    f"The feed-forward {name} cannot be split: {fault}. Split before weights are quantized, cast, "
                    "offloaded or given adapters, or choose others with `only`."
                )
        inner = {name: _parts(module).second.in_features for name, module in chosen.items()}
        for name, size in inner.items():
            if size % self.splits:
                works = ", ".join(str(n) for n in range(2, 65) if math.gcd(*inner.values()) % n == 0)
                raise ValueError(
                    f"The inner size {size} of {name} cannot be cut into {self.splits} equal slices; "
                    f"numbers of splits up to 64 that would work here: {works or 'none'}."
                )

    def apply(self, model: nn.Module) -> Callable[[], None]:
        self.check(model, training=model.training)
        chosen = list(self._chosen(model).values())
        for module in chosen:
            module.__dict__["forward"] = _InSlices(module, self)

        def undo() -> None:
            for module in chosen:
                del module.__dict__["forward"]

        return undo

    def code(self) -> str:
        return f"from {__name__} import SplitFeedForward\n\nundo = {self!r}.apply(model)"

    def _chosen(self, model: nn.Module) -> dict[str, nn.Module]:
        modules = {name or "(the model)": module for name, module in feed_forwards(model)}
        chosen = {name: module for name, module in modules.items() if re.search(self.only, name)}
        if not modules:
            raise ValueError(
                "No feed-forward was recognised here. Known are: diffusers' FeedForward with the activations that it "
                "comes with; gate_proj, up_proj, down_proj as in Llama; nn.Sequential of linear, activation, linear."
            )
        if not chosen:
            raise ValueError(f"No feed-forward has {self.only!r} in its name; there are {', '.join(modules)}.")
        return chosen


class _InSlices:
    """Stands as a feed-forward's `forward`. An object, so that copies and files of a model take it along."""

    def __init__(self, module: nn.Module, knobs: SplitFeedForward) -> None:
        self.module, self.knobs = module, knobs

    def __call__(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        parts, splits, as_published = _parts(self.module), self.knobs.splits, self.knobs.as_published
        if fault := _fault(parts):
            raise ValueError(f"Since this feed-forward was split it has changed: {fault}. Undo the split first.")
        # Layerwise casting, too, sees by `.weight` in a forward that a module reads what its layers own.
        columns = torch.split(parts.second.weight, parts.second.in_features // splits, dim=1)
        slices = list(zip(*_rows(parts, splits), columns, strict=True))
        return parts.final(_sum(x, parts, slices, as_published))


def _same(x: Tensor) -> Tensor:
    return x


@dataclass(frozen=True)
class Parts:
    """final(second(dropout(activation(first(x)) * factor(x)))), where a factor and dropouts may be missing."""

    first: nn.Linear
    activation: Callable[[Tensor], Tensor]
    factor: nn.Linear | None
    """The same module as `first` where one matrix holds both: its upper half of rows is then the factor's."""
    second: nn.Linear
    dropout: Callable[[Tensor], Tensor] = _same
    final: Callable[[Tensor], Tensor] = _same


def _sum(x: Tensor, parts: Parts, slices: list[Slice], as_published: bool) -> Tensor:
    bias = parts.second.bias
    output = x.new_zeros(*x.shape[:-1], parts.second.out_features) if as_published else None
    piece = None
    for first, factor, columns in slices:
        # As published, a slice's output lives on while the inner tensors of the next slice are made.
        piece = piece if as_published else None
        wide = parts.dropout(_inner(x, parts, first, factor, as_published))
        piece = None
        piece = F.linear(wide, columns, bias if output is None else None)
        del wide
        output = piece if output is None else output.add_(piece)
    assert output is not None
    return output.add_(bias) if as_published and bias is not None else output


def _inner(x: Tensor, parts: Parts, first: Rows, factor: Rows | None, as_published: bool) -> Tensor:
    inner = F.linear(x, *first)
    if factor is None:
        return parts.activation(inner)
    if as_published:  # the gate lives on beside its activation, the factor and their product
        return parts.activation(inner) * F.linear(x, *factor)
    inner = parts.activation(inner)
    by = F.linear(x, *factor)
    return inner * by if inner.requires_grad or by.requires_grad else inner.mul_(by)


def _rows(parts: Parts, splits: int) -> tuple[list[Rows], list[Rows] | list[None]]:
    """Of the first matrix and of the factor's: views of equally many rows, biases alike."""
    size = parts.second.in_features // splits
    first = _split(parts.first, size)
    if parts.factor is parts.first:
        return first[splits:], first[:splits]
    return first, [None] * splits if parts.factor is None else _split(parts.factor, size)


def _split(layer: nn.Linear, size: int) -> list[Rows]:
    weights = torch.split(layer.weight, size)
    biases = [None] * len(weights) if layer.bias is None else torch.split(layer.bias, size)
    return list(zip(weights, biases, strict=True))


def _fault(parts: Parts) -> str:
    """Why these layers cannot be read in slices; empty where they can."""
    for layer in (parts.first, parts.factor or parts.first, parts.second):
        if type(layer).forward is not nn.Linear.forward or "forward" in vars(layer):
            return f"it computes with {type(layer).__name__}, which is no plain nn.Linear"
        if not layer.weight.is_floating_point() or layer.weight.element_size() < 2:
            return f"its weights are stored as {layer.weight.dtype}"
    return ""


def feed_forwards(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Every feed-forward that is recognised, by name, whether or not it can be split."""
    for name, module in model.named_modules():
        if _net(module) or _sequential(module) or (_gated(module) and _computes_like_llama(module)):
            yield name, module


def _parts(module: nn.Module) -> Parts:
    parts = _net(module) or _sequential(module) or _gated(module)
    if parts is None:
        raise ValueError(f"This {type(module).__name__} has been rebuilt since it was split. Undo the split first.")
    return parts


_ACTIVATIONS: Mapping[str, Callable[[Any], Callable[[Tensor], Tensor]]] = {
    "GELU": lambda module: module.gelu,
    "GEGLU": lambda module: module.gelu,
    "SwiGLU": lambda module: module.activation,
    "LinearActivation": lambda module: module.activation,
    "ApproximateGELU": lambda module: lambda x: x * torch.sigmoid(1.702 * x),
}
_ELEMENTWISE = (nn.GELU, nn.ReLU, nn.SiLU, nn.Mish, nn.Tanh, nn.Sigmoid, nn.ELU, nn.LeakyReLU, nn.Hardswish)


def _net(module: nn.Module) -> Parts | None:
    """diffusers' FeedForward: net = [activation with its proj, dropout, linear, perhaps a final dropout]."""
    net = getattr(module, "net", None)
    if type(module).__name__ != "FeedForward" or not isinstance(net, nn.ModuleList) or len(net) not in (3, 4):
        return None
    first, dropout, second, final = [*net, _same][:4]
    kind = type(first).__name__
    if kind not in _ACTIVATIONS:
        return None
    factor = first.proj if kind in ("GEGLU", "SwiGLU") else None
    return Parts(first.proj, _ACTIVATIONS[kind](first), factor, second, dropout, final)


def _sequential(module: nn.Module) -> Parts | None:
    """nn.Sequential of linear, activation, perhaps dropout, linear, perhaps dropout."""
    layers: list[Any] = list(module) if type(module) is nn.Sequential else []
    final = layers.pop() if layers and isinstance(layers[-1], nn.Dropout) else _same
    dropout = layers.pop(2) if len(layers) == 4 and isinstance(layers[2], nn.Dropout) else _same
    match layers:
        case [nn.Linear() as first, activation, nn.Linear() as second] if isinstance(activation, _ELEMENTWISE):
            return Parts(first, activation, None, second, dropout, final)
    return None


def _gated(module: Any) -> Parts | None:
    """By the names that transformers' Llama and its many relatives give."""
    if not all(isinstance(getattr(module, name, None), nn.Module) for name in ("gate_proj", "up_proj", "down_proj")):
        return None
    activation: Any = getattr(module, "act_fn", getattr(module, "activation_fn", None))
    return Parts(module.gate_proj, activation, module.up_proj, module.down_proj, getattr(module, "dropout", _same))


class _Sketch:
    """Stands for a tensor and writes down what becomes of it."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __mul__(self, other: _Sketch) -> _Sketch:
        return _Sketch(" * ".join(sorted((self.text, other.text))))


def _computes_like_llama(module: nn.Module) -> bool:
    """Many share the names but clamp, scale or normalise in between: so the forward is run once, on a sketch."""
    words = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down", "act_fn": "act", "activation_fn": "act"}

    class StandIn:
        def __getattr__(self, name: str) -> Any:
            word = words.get(name, "dropout" if isinstance(getattr(module, name), nn.Dropout) else "")
            return (lambda sketch: _Sketch(f"{word}({sketch.text})")) if word else getattr(module, name)

    try:
        written = type(module).forward(StandIn(), _Sketch("x")).text
    except Exception:  # whatever a foreign forward does to a sketch, it is not the formula looked for
        return False
    inner = "act(gate(x)) * up(x)"
    return bool(written == (f"down(dropout({inner}))" if hasattr(module, "dropout") else f"down({inner})"))
