"""Low-rank adapters (LoRA): all weights are frozen, and beside chosen layers two narrow matrices are trained instead.

A layer's output gets `up(down(x)) * alpha / rank` added, `down` to `rank` channels and `up` back from them. So there
are gradients and optimizer states for two narrow matrices a layer, and autograd need not keep the inputs that only
gradients of frozen weights would want. `up` begins as zero: at first the model gives what it gave. What to know:

* What is trained is not the model's own weights: it is another training, which learns less.
* An adapted layer stands as `Adapted` in the place of the old one, which is its `base`; undo puts the old ones back and
  lets the adapters go. `merge(model)` adds them to the weights first.
* Adapted are linear layers (and GPT-2's Conv1D) inside of the repeated blocks, `only` those whose name has the pattern.
* Adapters have the dtype of their layer, or fp32 beside weights in fewer than 16 bits.
* `by="peft"` takes the adapters of that library, where it is installed; what they learnt is merged and saved its way.
  As `get_peft_model` does, it keeps them in fp32 beside bf16 and fp16 layers, unless `autocast_adapter_dtype=False`.
* `nn.TransformerEncoder` computes the slow way in eval mode: torch's fast path would skip the adapters.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

_BY = ("torch", "peft")
_HALVES = (torch.bfloat16, torch.float16)
_HAS_FAST_PATH = (nn.TransformerEncoderLayer,)
"""Modules whose fast path in eval mode reads the weights of their layers and never calls the layers."""


@dataclass(frozen=True)
class Lora:
    """`undo = Lora(rank=16).apply(model)`, then make the optimizer of the weights that require a gradient."""

    rank: int = field(default=16, metadata={"help": "rank of the adapters: r in peft", "least": 1, "says": "rank {}"})
    alpha: float = field(default=16.0, metadata={"help": "scale of the adapters: alpha / rank"})
    only: str = field(default="", metadata={"help": "regex of layer names; empty: all"})
    by: str = field(default="torch", metadata={"help": "implementation: this file or peft", "choices": _BY})
    autocast_adapter_dtype: bool = field(
        default=True, metadata={"help": "peft only: fp32 adapters for bf16 and fp16 layers, peft's default"}
    )

    name: ClassVar[str] = "lora"
    title: ClassVar[str] = "LoRA"
    sentence: ClassVar[str] = "Freeze the base weights; train low-rank adapters."
    not_with: ClassVar[Mapping[str, str]] = {
        "split_feed_forward": "it reads the weight matrices of a feed-forward and would ignore the adapters.",
    }
    claim: ClassVar[Literal["lossy"]] = "lossy"
    """The first outputs are the same. What is learnt is not."""
    environment: ClassVar[Mapping[str, str]] = {}
    needs: ClassVar[Literal["any", "training", "inference"]] = "training"
    trains_others: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.by not in _BY:
            raise ValueError(f"by is {self.by!r}; it must be one of {', '.join(_BY)}.")
        if self.rank < 1:
            raise ValueError(f"rank is {self.rank}; the minimum is 1.")
        try:
            re.compile(self.only)
        except re.error as error:
            raise ValueError(f"only={self.only!r} is not a regular expression: {error}.") from None

    def check(self, model: nn.Module, *, training: bool) -> None:
        if not training:
            raise ValueError("LoRA is for training. Use it in training only.")
        if self.by == "peft":
            _peft()
        self._chosen(model)

    def apply(self, model: nn.Module) -> Callable[[], None]:
        chosen = self._chosen(model)
        if self.by == "peft":
            _peft()
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        paths = [(name.rpartition("."), layer) for layer, names in chosen.items() for name in names]
        places = [(model.get_submodule(owner), last, layer) for (owner, _, last), layer in paths]
        for weight in trained:
            weight.requires_grad_(False)
        before = set(vars(model))
        if self.by == "peft":
            self._inject(model, chosen)
        else:
            adapted = {layer: Adapted(layer, self.rank, self.alpha) for layer in chosen}
            for owner, last, layer in places:
                owner._modules[last] = adapted[layer]
        injected = set(vars(model)) - before
        for adapter in {owner._modules[last] for owner, last, _ in places if isinstance(owner, _HAS_FAST_PATH)}:
            if adapter is not None:
                adapter.register_forward_pre_hook(_no_fast_path)

        def undo() -> None:
            for owner, last, layer in places:
                owner._modules[last] = layer
            for name in injected & set(vars(model)):
                delattr(model, name)
            for weight in trained:
                weight.requires_grad_()

        return undo

    def _inject(self, model: nn.Module, chosen: Mapping[nn.Module, list[str]]) -> None:
        peft = _peft()
        names = [name for names in chosen.values() for name in names]
        # As in GPT-2's Conv1D; where it differs between layers, peft detects it.
        turned = not any(isinstance(layer, nn.Linear) for layer in chosen)
        config = peft.LoraConfig(r=self.rank, lora_alpha=self.alpha, target_modules=names, fan_in_fan_out=turned)
        peft.inject_adapter_in_model(config, model)
        if self.autocast_adapter_dtype:
            for module in filter(_is_peft, model.modules()):
                for adapter in (part for name, part in module.named_children() if name.startswith("lora_")):
                    for weight in (one for one in adapter.parameters() if one.dtype in _HALVES):
                        weight.data = weight.data.to(torch.float32)

    def _chosen(self, model: nn.Module) -> dict[nn.Module, list[str]]:
        """Layers to adapt, each with all its names."""
        if any(isinstance(module, Adapted) or _is_peft(module) for module in model.modules()):
            raise ValueError("This model already has adapters. Undo that first.")
        chosen: dict[nn.Module, list[str]] = {}
        for name, module in _linear_layers(model):
            if re.search(self.only, name):
                chosen.setdefault(module, []).append(name)
        if not chosen:
            names = ", ".join(name for name, _ in _linear_layers(model)) or "none"
            raise ValueError(f"No linear layer has {self.only!r} in its name; layers in the blocks: {names[:400]}.")
        return chosen


def _peft() -> Any:
    try:
        return importlib.import_module("peft")
    except ImportError:
        raise ValueError("by=peft needs a library that is not installed: pip install peft, or use by=torch.") from None


def _is_peft(module: nn.Module) -> bool:
    return type(module).__module__.startswith("peft.")


def _no_fast_path(_module: nn.Module, _args: Any) -> None:
    """Do nothing: a module with a hook inside of it is not computed by torch's fast path."""


class Adapted(nn.Module):
    """A layer with an adapter."""

    def __init__(self, base: nn.Module, rank: int, alpha: float) -> None:
        super().__init__()
        weight: Any = base.weight
        # GPT-2's Conv1D has its matrix transposed.
        wide, narrow = weight.shape if isinstance(base, nn.Linear) else weight.shape[::-1]
        dtype = weight.dtype if weight.is_floating_point() and weight.element_size() > 1 else torch.float32
        self.base = base
        self.lora_down = nn.Linear(narrow, rank, bias=False, device=weight.device, dtype=dtype)
        self.lora_up = nn.Linear(rank, wide, bias=False, device=weight.device, dtype=dtype)
        self.scale = alpha / rank
        # `lora_down` is drawn as nn.Linear draws, kaiming-uniform with a = sqrt(5), which is peft's start too.
        nn.init.zeros_(self.lora_up.weight)
        self.train(base.training)

    @property
    def weight(self) -> Any:
        """The base weight, for modules that read the dtype or device of their layer."""
        return self.base.weight

    @property
    def bias(self) -> Any:
        return self.base.bias

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.base(x)
        added: Tensor = self.lora_up(self.lora_down(x.to(self.lora_down.weight.dtype)))
        return output + (added * self.scale).to(output.dtype)


@torch.no_grad()
def merge(model: nn.Module) -> None:
    """Adds what the adapters have learnt to the weights, and begins them anew."""
    for module in model.modules():
        if isinstance(module, Adapted):
            product = module.lora_up.weight.float() @ module.lora_down.weight.float() * module.scale
            weight: Any = module.base.weight
            weight += (product if isinstance(module.base, nn.Linear) else product.t()).to(weight.dtype)
            module.lora_up.weight.zero_()


def _linear_layers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield linear layers of the repeated blocks, or of the whole model without such, under each of their names."""
    inside = {module for block in _listed_in(model) for module in block.modules()}
    for name, module in model.named_modules(remove_duplicate=False):
        kind = type(module)
        is_linear = kind is nn.Linear or (kind.__name__ == "Conv1D" and getattr(module.weight, "ndim", 0) == 2)
        if is_linear and (not inside or module in inside):
            yield name, module


def _listed_in(module: nn.Module) -> Iterator[nn.Module]:
    """Entries of lists of two or more modules that have modules inside."""
    if isinstance(module, nn.ModuleList | nn.Sequential):
        large = [child for child in module if any(True for _ in child.children())]
        if len(large) > 1:
            yield from large
            return
    for child in module.children():
        yield from _listed_in(child)
