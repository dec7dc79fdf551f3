"""LoRA: the weights stay as they are, and beside each linear layer two thin ones are trained.

The layers stay in their places and of their class, so that everything that looks for them still finds them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from memviz.errors import UsageError

_SCALE = 2.0
"""As many do: alpha is twice the rank."""


def add_lora(model: nn.Module, rank: int) -> nn.Module:
    """Beside all linear layers but the head that makes the outputs, as `target_modules="all-linear"` of PEFT does."""
    model.requires_grad_(False)
    head = _head(model)
    adapted = [layer for layer in model.modules() if _sides(layer) is not None and layer is not head]
    if not adapted:
        raise UsageError(f"{type(model).__name__} has no linear layer that LoRA could stand beside; mode=training.")
    for layer in adapted:
        _adapt(layer, rank)
    return model


def _head(model: nn.Module) -> nn.Module | None:
    give: Any = getattr(model, "get_output_embeddings", None)
    head: nn.Module | None = give() if callable(give) else None
    return head


def _sides(layer: nn.Module) -> tuple[int, int] | None:
    """How wide what goes in is, and what comes out; None for what is no linear layer of a model's own forward."""
    if isinstance(layer, nn.modules.linear.NonDynamicallyQuantizableLinear):
        return None
    if isinstance(layer, nn.Linear):
        return layer.in_features, layer.out_features
    if type(layer).__name__ == "Conv1D" and isinstance(getattr(layer, "nf", None), int):
        # GPT-2's, which lies the other way round.
        weight: Any = layer.weight
        return int(weight.shape[0]), int(weight.shape[1])
    return None


def _adapt(layer: nn.Module, rank: int) -> None:
    sides = _sides(layer)
    assert sides is not None
    place = {"device": layer.weight.device, "dtype": layer.weight.dtype, "bias": False}
    down, up = nn.Linear(sides[0], rank, **place), nn.Linear(rank, sides[1], **place)  # type: ignore[arg-type]
    with torch.no_grad():
        # As training starts it is nothing; a twin that is compared needs something to differ by.
        up.weight.normal_(std=0.02)
    layer.lora_down, layer.lora_up = down, up
    layer.register_forward_hook(_beside)


def _beside(layer: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
    down: Any = layer.lora_down
    up: Any = layer.lora_up
    beside: Tensor = up(down(inputs[0]))
    return output + beside * _SCALE
