"""Linear layers whose weights rest in 8 or 4 bits, with a scale for each group of inputs or for each output.

A weight is its code times its group's scale, which is the group's largest weight over 127 (or 7). A layer unpacks its
matrix when it is called, multiplies in the dtype that it always had, and lets it go: less memory for weights, nothing
faster. Backward unpacks again, so in training with adapters no unpacked matrix is kept. What to know before using it:

* Weights are rounded to the nearest code, without a look at any data. 8 bits are hardly seen in the outputs; 4 are.
* `codes="float8"` keeps 8 bits as float8_e4m3fn with one scale for each output, as most checkpoints in fp8 do: small
  weights of an output keep more of themselves than as whole numbers, and large ones less.
* Only layers inside of the repeated blocks, since heads and embeddings suffer most; `only` and `skip` say which.
* Trained weights are refused: freeze them and train adapters, which come before this.
* `by="torchao"` leaves rounding, and how its matrices multiply, to that library, where it is installed: its 8 bits have
  a scale for each output, its 4 bits want bf16 and kernels for the GPU at hand.
* Applied before `model.to("cuda")`, it rounds in host memory, and the wide weights never lie on the card.
* The weights as they were wait in host memory, so that undo brings them back. With `keep=False` they are gone, and undo
  gives what the codes stand for.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

_BY = ("torch", "torchao")
_CODES = ("whole", "float8")
_FLOAT8 = torch.float8_e4m3fn
_PIECE = 1 << 24
"""Numbers that are packed at once, so that what that takes itself stays small."""


def _knob(default: Any, help: str, **more: Any) -> Any:
    return field(default=default, metadata={"help": help, **more})


@dataclass(frozen=True)
class WeightQuantization:
    """`undo = WeightQuantization(bits=4).apply(model)`, for inference or beside adapters."""

    bits: int = _knob(8, "bits per weight", choices=(8, 4), says="weights in {} bits", always=True)
    group: int = _knob(128, "inputs that share a scale; a whole row if it does not divide", least=2)
    only: str = _knob("", "regex of layer names; empty: all")
    skip: str = _knob("lora_", "regex of layer names to skip")
    keep: bool = _knob(True, "keep the original weights in CPU memory")
    codes: str = _knob("whole", "8-bit format: int8 per group (whole), or float8 per output", choices=_CODES)
    by: str = _knob("torch", "implementation: this file or torchao", choices=_BY)

    name: ClassVar[str] = "weight_quantization"
    title: ClassVar[str] = "Weight-only quantization"
    sentence: ClassVar[str] = "Store linear weights as int8 or int4 with scales."
    not_with: ClassVar[Mapping[str, str]] = {
        "split_feed_forward": "it reads the weight matrices of a feed-forward, which are quantized.",
        "layerwise_casting": "both store the same weights in fewer bits.",
        "weight_offload": "it moves parameters only, and quantized weights are not parameters.",
    }
    claim: ClassVar[Literal["lossy"]] = "lossy"
    environment: ClassVar[Mapping[str, str]] = {}
    needs: ClassVar[Literal["any", "training", "inference"]] = "any"
    shrinks_weights: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.bits not in (8, 4):
            raise ValueError(f"bits is {self.bits}; it must be 8 or 4.")
        if self.group < 2:
            raise ValueError(f"group is {self.group}; the minimum is 2.")
        for name, value, among in (("by", self.by, _BY), ("codes", self.codes, _CODES)):
            if value not in among:
                raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(among)}.")
        if self.codes == "float8" and (self.bits, self.by) != (8, "torch"):
            raise ValueError("float8 has 8 bits and is supported by this file only. Use bits=8 and by=torch.")
        for knob in (self.only, self.skip):
            try:
                re.compile(knob)
            except re.error as error:
                raise ValueError(f"{knob!r} is not a regular expression: {error}.") from None

    def check(self, model: nn.Module, *, training: bool) -> None:
        if self.by == "torchao":
            _torchao()
        trained = [name for name, layer in self._chosen(model).items() if layer.weight.requires_grad]
        if training and trained:
            raise ValueError(
                f"{len(trained)} of the layers are trained, {trained[0]} the first, and whole numbers take no "
                "gradient: freeze them with requires_grad_(False) and train adapters, or run inference."
            )

    def apply(self, model: nn.Module) -> Callable[[], None]:
        chosen = self._chosen(model)
        if self.by == "torchao":
            return self._apply_torchao(model, set(chosen.values()))
        is_float8 = self.codes == "float8"
        quantized = {
            layer: Quantized(layer, self.bits, layer.in_features, _FLOAT8)
            if is_float8
            else Quantized(layer, self.bits, self.group)
            for layer in chosen.values()
        }
        saved = {layer: _on_host(layer.weight.detach()) for layer in quantized} if self.keep else {}
        for name, layer in chosen.items():
            _put(model, name, quantized[layer])
        for layer in quantized:
            layer.weight.data = layer.weight.data.new_empty(0)

        def undo() -> None:
            for layer, packed in quantized.items():
                weight = packed.unpacked()
                layer.weight.data = saved[layer].to(weight.device) if layer in saved else weight
            for name, layer in chosen.items():
                _put(model, name, layer)

        return undo

    def _apply_torchao(self, model: nn.Module, layers: set[nn.Linear]) -> Callable[[], None]:
        quantization = _torchao()
        eight, four = quantization.Int8WeightOnlyConfig, quantization.Int4WeightOnlyConfig
        before = {layer: layer.weight for layer in layers}
        saved = {layer: _on_host(weight.detach()) for layer, weight in before.items()} if self.keep else {}

        def undo() -> None:
            for layer, parameter in before.items():
                wide = saved[layer].to(layer.weight.device) if layer in saved else layer.weight.dequantize()
                # The very parameter that was there, as an optimizer knows it.
                parameter.data = wide
                layer.weight = parameter

        try:
            config = eight() if self.bits == 8 else four(group_size=self.group)
            quantization.quantize_(model, config, filter_fn=lambda module, _: module in layers)
            if not all(map(_is_torchao, layers)):
                raise ValueError("it skipped some with unsupported shapes")
        except Exception as error:  # its 4 bits ask for kernels and shapes, each with an error of its own
            undo()
            raise ValueError(
                f"torchao cannot quantize this to {self.bits} bits here ({error}). Use by=torch."
            ) from error
        for parameter in before.values():
            parameter.data = parameter.data.new_empty(0)
        return undo

    def _chosen(self, model: nn.Module) -> dict[str, nn.Linear]:
        """Return the linear layers to quantize, under each of their names."""
        if any(isinstance(module, Quantized) or _is_torchao(module) for module in model.modules()):
            raise ValueError("Weights of this model are already quantized. Undo that first.")
        inside = {module for block in _listed_in(model) for module in block.modules()}
        linears = {
            name: module
            for name, module in model.named_modules(remove_duplicate=False)
            if type(module) is nn.Linear and (not inside or module in inside)
        }
        selected = {
            name: layer
            for name, layer in linears.items()
            if re.search(self.only, name) and not (self.skip and re.search(self.skip, name))
        }
        # A head tied to an embedding keeps its weight, which the embedding reads too.
        others = set(model.modules()) - set(selected.values())
        read_by_others = {weight for module in others for weight in module.parameters(recurse=False)}
        chosen = {name: layer for name, layer in selected.items() if layer.weight not in read_by_others}
        replaced = next((name for name, layer in chosen.items() if "forward" in vars(layer)), None)
        if replaced is not None:
            raise ValueError(f"The forward of {replaced} is replaced and may read its weight. Undo that first.")
        if not chosen:
            raise ValueError(f"There is no linear layer to quantize; layers in the blocks: {', '.join(linears)[:400]}.")
        return chosen


def _torchao() -> Any:
    try:
        return importlib.import_module("torchao.quantization")
    except ImportError:
        raise ValueError(
            "by=torchao needs a library that is not installed: pip install torchao, or use by=torch."
        ) from None


class Quantized(nn.Module):
    """Replaces a linear layer, with codes for its weights."""

    codes: Tensor
    scales: Tensor

    def __init__(self, layer: nn.Linear, bits: int, group: int, kind: torch.dtype = torch.uint8) -> None:
        super().__init__()
        self.in_features, self.out_features, self.bits = layer.in_features, layer.out_features, bits
        self.group = group if layer.in_features % group == 0 else layer.in_features
        if bits == 4 and self.group % 2:
            raise ValueError(f"4-bit quantization needs an even number of inputs, not {layer.in_features}.")
        weight, self.kind = layer.weight.detach(), kind
        width = layer.in_features * bits // 8
        # Bytes in any encoding: `.to(torch.bfloat16)` would widen a float8 buffer.
        codes = torch.empty(self.out_features, width, dtype=torch.uint8, device=weight.device)
        scales = torch.empty(
            self.out_features, layer.in_features // self.group, dtype=weight.dtype, device=weight.device
        )
        rows = max(1, _PIECE // layer.in_features)
        for start in range(0, self.out_features, rows):
            piece = slice(start, start + rows)
            packed, scales[piece] = _packed(weight[piece], self.group, bits, kind)
            codes[piece] = packed.view(torch.uint8)
        self.register_buffer("codes", codes)
        self.register_buffer("scales", scales)
        self.bias = layer.bias
        self.train(layer.training)

    @property
    def weight(self) -> Tensor:
        """For callers that read its dtype, device or shape. Made anew at each access."""
        return self.unpacked()

    @property
    def replaced(self) -> int:
        """Number of weights that the codes replace."""
        return int(self.in_features * self.out_features)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the unpacked weight, which follows `.to(dtype)` as the scales do."""
        return self.scales.dtype

    def unpacked(self) -> Tensor:
        codes = self.codes.view(self.kind)
        if self.bits == 4:
            codes = torch.stack((codes & 15, codes >> 4), dim=-1).flatten(1)
        weight = codes.to(self.dtype)
        if self.kind is torch.uint8:
            weight.sub_(_zero_code(self.bits))
        return weight.unflatten(1, (-1, self.group)).mul_(self.scales[..., None]).flatten(1)  # type: ignore[no-any-return, no-untyped-call]

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = _Product.apply(x, self)  # type: ignore[no-untyped-call]
        return output if self.bias is None else output + self.bias.to(output.dtype)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bits={self.bits}"


class _Product(torch.autograd.Function):
    """Keeps the layer and neither its input nor its matrix for backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: Quantized) -> Tensor:
        ctx.layer, ctx.dtype = layer, x.dtype
        return F.linear(x, layer.unpacked())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_output: Tensor) -> tuple[Tensor, None]:
        # Under autocast the output is narrower than the weight and the input.
        return (of_output @ ctx.layer.unpacked().to(of_output.dtype)).to(ctx.dtype), None


def _zero_code(bits: int) -> int:
    """The code of zero."""
    return 1 << (bits - 1)


def _packed(weight: Tensor, group: int, bits: int, kind: torch.dtype) -> tuple[Tensor, Tensor]:
    most = torch.finfo(kind).max if kind.is_floating_point else _zero_code(bits) - 1
    groups = weight.to(torch.float32).unflatten(1, (-1, group))  # type: ignore[no-untyped-call]
    # Rounded first, as it will be when the weights are unpacked.
    scales = (groups.abs().amax(-1) / most).to(weight.dtype)
    steps = scales.to(torch.float32).clamp(min=torch.finfo(torch.float32).tiny)[..., None]
    if kind.is_floating_point:
        return (groups / steps).clamp_(-most, most).to(kind).flatten(1), scales
    codes = (groups / steps).round_().clamp_(-most, most).add_(_zero_code(bits)).to(torch.uint8).flatten(1)
    if bits == 4:
        codes = codes[:, ::2] | codes[:, 1::2] << 4
    return codes, scales


def _on_host(tensor: Tensor) -> Tensor:
    """Copy to host memory, unless the tensor is on meta and has no values."""
    return tensor if tensor.device.type == "meta" else tensor.cpu()


def _is_torchao(module: nn.Module) -> bool:
    return type(module._parameters.get("weight")).__module__.startswith("torchao.")


def _put(model: nn.Module, name: str, module: nn.Module) -> None:
    owner, _, last = name.rpartition(".")
    model.get_submodule(owner)._modules[last] = module


def _listed_in(module: nn.Module) -> Iterator[nn.Module]:
    """Entries of lists of two or more modules that have modules inside."""
    if isinstance(module, nn.ModuleList | nn.Sequential):
        large = [child for child in module if any(True for _ in child.children())]
        if len(large) > 1:
            yield from large
            return
    for child in module.children():
        yield from _listed_in(child)
