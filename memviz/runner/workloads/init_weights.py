"""Random weights through which the signal survives.

PyTorch's default makes every linear layer shrink its input to about 0.58 of it, and normalization conditioned on a
time step starts nearly switched off. After five plain layers the output is the last bias and nothing else, and an error
in the first of them is invisible. So weights are drawn to keep the size of what passes through, and biases large enough
to matter.
"""

from __future__ import annotations

import math

import torch
from torch import nn

_BIAS = 0.1
_TABLE = 0.5


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
        weight.normal_(std=_BIAS if name == "bias" else 1 / math.sqrt(fan_in))
    elif isinstance(module, nn.Embedding):
        weight.normal_()
    elif weight.ndim > 1:
        # Tables added to shifts, scales and gates, such as LTX-Video's.
        weight.normal_(std=_TABLE)
