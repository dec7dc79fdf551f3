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
* Some blocks call the two matrices themselves: Flux's and HunyuanVideo's, where the second has attention's columns,
  too, and BERT's. There the first hands its input on, and computes when the second is there to take its slices.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Rows = tuple[Tensor, Tensor | None]
"""Weight and bias of some rows of a linear layer."""
Slice = tuple[Rows, Rows | None, Tensor]
"""Rows of the first matrix, rows of the factor, columns of the second matrix."""


@dataclass(frozen=True)
class SplitFeedForward:
    name: ClassVar[str] = "split_feed_forward"
    title: ClassVar[str] = "Split feed-forward"
    sentence: ClassVar[str] = "Compute the hidden dimension in slices, like tensor parallelism on one GPU."
    not_with: ClassVar[Mapping[str, str]] = {}
    claim: ClassVar[Literal["rounding"]] = "rounding"
    environment: ClassVar[Mapping[str, str]] = {}
    needs: ClassVar[Literal["any", "training", "inference"]] = "any"

    splits: int = field(
        default=4,
        metadata={"help": "number of slices; must divide the inner size", "least": 1, "says": "split in {} slices"},
    )
    only: str = field(default="", metadata={"help": "regex of module names; empty: all"})
    as_published: bool = field(
        default=False,
        metadata={"help": "order of the first publication, which holds each slice's tensors longer than needed"},
    )

    def __post_init__(self) -> None:
        if self.splits < 1:
            raise ValueError(f"splits is {self.splits}; the minimum is 2, and 2, 4 or 8 are usual.")
        try:
            re.compile(self.only)
        except re.error as error:
            raise ValueError(f"only={self.only!r} is not a regular expression: {error}.") from None

    def check(self, model: nn.Module, *, training: bool) -> None:
        chosen = self._chosen(model)
        for name, module in chosen.items():
            replaced = [part for part in _replacing(module, self) if "forward" in vars(part)]
            if fault := "its forward is already replaced" if replaced else _fault_of_layers(_parts_of(module)):
                raise ValueError(
                    f"The feed-forward {name} cannot be split: {fault}. Split before weights are quantized, cast, "
                    "offloaded or given adapters, or choose others with `only`."
                )
        inner = {name: _parts_of(module).inner for name, module in chosen.items()}
        for name, size in inner.items():
            if size % self.splits:
                works = ", ".join(str(n) for n in range(2, 65) if math.gcd(*inner.values()) % n == 0)
                raise ValueError(
                    f"The inner size {size} of {name} cannot be divided into {self.splits} equal slices; "
                    f"numbers of splits up to 64 that would work here: {works or 'none'}."
                )

    def apply(self, model: nn.Module) -> Callable[[], None]:
        self.check(model, training=model.training)
        replacing: dict[nn.Module, Any] = {}
        for module in self._chosen(model).values():
            replacing |= _replacing(module, self)
        for module, forward in replacing.items():
            module.__dict__["forward"] = forward

        def undo() -> None:
            for module in replacing:
                del module.__dict__["forward"]

        return undo

    def _chosen(self, model: nn.Module) -> dict[str, nn.Module]:
        modules = {name or "(the model)": module for name, module in feed_forwards(model)}
        chosen = {name: module for name, module in modules.items() if re.search(self.only, name)}
        if not modules:
            raise ValueError(
                "No feed-forward was recognised. Supported are diffusers' FeedForward with the activations that it "
                "comes with and its single-stream blocks; those of Llama, GPT-2, ViT, BERT and their relatives in "
                "transformers; nn.Sequential of linear, activation, linear."
            )
        if not chosen:
            raise ValueError(f"No feed-forward has {self.only!r} in its name; there are {', '.join(modules)}.")
        return chosen


class _InSlices:
    """Replaces a feed-forward's `forward`. An object, so that copies and files of a model take it along."""

    def __init__(self, module: nn.Module, knobs: SplitFeedForward) -> None:
        self.module, self.knobs = module, knobs

    def __call__(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        parts, splits, as_published = _parts_of(self.module), self.knobs.splits, self.knobs.as_published
        _check_still(_fault_of_layers(parts))
        # Layerwise casting, too, sees by `.weight` in a forward that a module reads what its layers own.
        columns = torch.split(_matrix(parts.second, parts.second.weight), parts.inner // splits, dim=1)
        slices = list(zip(*_rows(parts, splits), columns, strict=True))
        return parts.final(_sum(x, parts, slices, as_published))


class _Deferred:
    """Replaces the `forward` of the first matrix: passes its input on, or adds up slices once their columns are set."""

    def __init__(self, block: nn.Module) -> None:
        self.block = block
        self.columns: Sequence[Tensor] = ()

    def __call__(self, x: Tensor) -> Tensor:
        if not self.columns:
            return x
        parts = _parts_of(self.block)
        _check_still(_unreadable(parts.first.weight))
        return _sum(
            x, parts, list(zip(*_rows(parts, len(self.columns)), self.columns, strict=True)), as_published=False
        )


class _SecondMatrix:
    """Replaces the `forward` of the second matrix, whose first columns may be those of attention."""

    def __init__(self, block: nn.Module, starts: nn.Module, deferred: _Deferred, splits: int) -> None:
        self.block, self.starts, self.deferred, self.splits = block, starts, deferred, splits
        self.first = _parts_of(block).first

    def __call__(self, attention_and_x: Tensor) -> Tensor:
        parts = _parts_of(self.block)
        same = parts.first is self.first
        _check_still(_unreadable(parts.second.weight) if same else f"it computes with {type(parts.first).__name__}")
        matrix = _matrix(parts.second, parts.second.weight)
        width = matrix.shape[1] - parts.inner
        self.deferred.columns = torch.split(matrix[:, width:], parts.inner // self.splits, dim=1)
        try:
            # Called as a module: its hooks may put its weight in place and take it away again.
            output: Tensor = self.starts(attention_and_x[..., width:])
        finally:
            self.deferred.columns = ()
        return output.add_(F.linear(attention_and_x[..., :width], matrix[:, :width])) if width else output


def _replacing(module: Any, knobs: SplitFeedForward) -> dict[nn.Module, Any]:
    """Return the modules whose forward is replaced, with the replacement."""
    if not (_fused_parts(module) or _bert_parts(module)):
        return {module: _InSlices(module, knobs)}
    deferred = _Deferred(module)
    if _bert_parts(module):
        last = _SecondMatrix(module, module.intermediate, deferred, knobs.splits)
        return {module.intermediate: deferred, module.output.dense: last}
    last = _SecondMatrix(module, module.proj_mlp, deferred, knobs.splits)
    return {module.proj_mlp: deferred, module.act_mlp: _identity, module.proj_out: last}


def _identity(x: Tensor) -> Tensor:
    return x


@dataclass(frozen=True)
class Parts:
    """final(second(dropout(activation(first(x)) * factor(x)))), where a factor and dropouts may be missing."""

    first: nn.Linear
    activation: Callable[[Tensor], Tensor]
    factor: nn.Linear | None
    """The same module as `first` where one matrix holds both: its upper half of rows is then the factor's."""
    second: nn.Linear
    dropout: Callable[[Tensor], Tensor] = _identity
    final: Callable[[Tensor], Tensor] = _identity

    @property
    def inner(self) -> int:
        """Channels between the two; the second matrix may have columns for other things, too."""
        both = _matrix(self.first, self.first.weight).shape[0]
        return both // 2 if self.factor is self.first else both


def _matrix(layer: nn.Module, weight: Tensor) -> Tensor:
    """A row for each output. GPT-2's own layer has it transposed."""
    return weight.t() if type(layer).__name__ == "Conv1D" else weight


def _sum(x: Tensor, parts: Parts, slices: list[Slice], as_published: bool) -> Tensor:
    bias = parts.second.bias
    output = x.new_zeros(*x.shape[:-1], len(slices[0][2])) if as_published else None
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
    """Return equal slices of the first matrix and of the factor, as views, with their biases."""
    size = parts.inner // splits
    first = _split(parts.first, size)
    if parts.factor is parts.first:
        return first[splits:], first[:splits]
    return first, [None] * splits if parts.factor is None else _split(parts.factor, size)


def _split(layer: nn.Linear, size: int) -> list[Rows]:
    weights = torch.split(_matrix(layer, layer.weight), size)
    biases = [None] * len(weights) if layer.bias is None else torch.split(layer.bias, size)
    return list(zip(weights, biases, strict=True))


def _fault_of_layers(parts: Parts) -> str:
    """Why these layers cannot be read in slices; empty where they can."""
    for layer in (parts.first, parts.factor or parts.first, parts.second):
        plain = type(layer).forward is nn.Linear.forward or type(layer).__name__ == "Conv1D"
        if not plain or "forward" in vars(layer):
            return f"it computes with {type(layer).__name__}, which is not a plain nn.Linear"
        if fault := _unreadable(layer.weight):
            return fault
    return ""


def _unreadable(weight: Tensor) -> str:
    wide = weight.is_floating_point() and weight.element_size() >= 2
    return "" if wide else f"its weights are stored as {weight.dtype}"


def _check_still(fault: str) -> None:
    if fault:
        raise ValueError(f"This feed-forward changed after it was split: {fault}. Undo the split first.")


def feed_forwards(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Every feed-forward that is recognised, by name, whether or not it can be split."""
    for name, module in model.named_modules():
        if _net(module) or _sequential(module) or _named_parts(module) or _fused_parts(module) or _bert_parts(module):
            yield name, module


def _parts_of(module: nn.Module) -> Parts:
    parts = _net(module) or _sequential(module) or _named_parts(module) or _fused_parts(module) or _bert_parts(module)
    if parts is None:
        raise ValueError(f"This {type(module).__name__} was rebuilt after it was split. Undo the split first.")
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
    first, dropout, second, final = [*net, _identity][:4]
    kind = type(first).__name__
    if kind not in _ACTIVATIONS:
        return None
    factor = first.proj if kind in ("GEGLU", "SwiGLU") else None
    return Parts(first.proj, _ACTIVATIONS[kind](first), factor, second, dropout, final)


def _sequential(module: nn.Module) -> Parts | None:
    """nn.Sequential of linear, activation, perhaps dropout, linear, perhaps dropout."""
    layers: list[Any] = list(module) if type(module) is nn.Sequential else []
    final = layers.pop() if layers and isinstance(layers[-1], nn.Dropout) else _identity
    dropout = layers.pop(2) if len(layers) == 4 and isinstance(layers[2], nn.Dropout) else _identity
    match layers:
        case [nn.Linear() as first, activation, nn.Linear() as second] if isinstance(activation, _ELEMENTWISE):
            return Parts(first, activation, None, second, dropout, final)
    return None


def _named_parts(module: Any) -> Parts | None:
    """Return the parts found by the names that transformers uses, if the forward computes what they say."""
    names = next((names for names in _NAMES if _has(module, *names)), None)
    if names is None:
        return None
    first, *factor, second = (getattr(module, name) for name in names)
    activation: Any = next((getattr(module, name) for name in _ACTS if hasattr(module, name)), None)
    dropout = getattr(module, "dropout", _identity)
    written = _forward_formula(type(module), module, names)
    if factor and written == "second(dropout(act(first(x)) * factor(x)))":
        return Parts(first, activation, factor[0], second, dropout)
    if written == f"second(act(first(x)){' * factor(x)' if factor else ''})":
        return Parts(first, activation, factor[0] if factor else None, second)
    if written == "dropout(second(act(first(x))))":
        return Parts(first, activation, None, second, final=dropout)
    return None


_NAMES = (("gate_proj", "up_proj", "down_proj"), ("c_fc", "c_proj"), ("fc1", "fc2"))
_ACTS = ("act_fn", "activation_fn", "act")


def _has(module: nn.Module, *names: str) -> bool:
    return all(isinstance(getattr(module, name, None), nn.Module) for name in names)


def _fused_parts(block: Any) -> Parts | None:
    """A block of diffusers that computes proj_out(cat([attention, act_mlp(proj_mlp(x))]))."""
    if "SingleTransformerBlock" not in type(block).__name__ or not _has(block, "proj_mlp", "act_mlp", "proj_out"):
        return None
    first, act, second = block.proj_mlp, block.act_mlp, block.proj_out
    wide = getattr(first, "in_features", 0) + getattr(first, "out_features", 0)
    activation = functools.partial(type(act).forward, act)
    return Parts(first, activation, None, second) if wide and getattr(second, "in_features", 0) == wide else None


def _bert_parts(layer: Any) -> Parts | None:
    """A layer as BERT's, whose two matrices are in modules of their own."""
    chunk, names = getattr(type(layer), "feed_forward_chunk", None), ("intermediate", "output")
    if chunk is None or not _has(layer, *names) or not all(_has(getattr(layer, name), "dense") for name in names):
        return None
    activation = getattr(layer.intermediate, "intermediate_act_fn", None)
    return Parts(layer.intermediate.dense, activation, None, layer.output.dense) if callable(activation) else None


class _Sketch:
    """Takes the place of a tensor and records the formula computed from it."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __mul__(self, other: _Sketch) -> _Sketch:
        return _Sketch(" * ".join(sorted((self.text, other.text))))


def _forward_formula(kind: type, module: nn.Module, names: tuple[str, ...]) -> str:
    """Many share the names but clamp, scale or normalise in between: so the forward is run once, on a sketch."""
    roles = dict(zip(names, ("first", "factor", "second") if len(names) == 3 else ("first", "second"), strict=True))
    roles |= dict.fromkeys(_ACTS, "act")

    class StandIn:
        def __getattr__(self, name: str) -> Any:
            word = roles.get(name, "dropout" if isinstance(getattr(module, name), nn.Dropout) else "")
            return (lambda sketch: _Sketch(f"{word}({sketch.text})")) if word else getattr(module, name)

    try:
        return str(kind.forward(StandIn(), _Sketch("x")).text)  # type: ignore[attr-defined]
    except Exception:  # an unknown forward may raise anything on the sketch; then its formula is another
        return ""
