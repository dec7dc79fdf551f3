"""How far the outputs of split feed-forwards lie from whole ones: real numbers on a processor, layer after layer.

The published column was computed over 16,384 tokens on a GPU. The weights here are as large and drawn alike, the
tokens fewer: the largest of fewer differences is a little smaller.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from memviz.runner.workloads.feed_forward import FeedForwardStack
from optimizations.split_feed_forward import SplitFeedForward

TOKENS = 32
_LAYERS = 5
_GATED = ("geglu", "swiglu")
Chains = dict[str, Tensor]
"""What each way of computing has come to after some layers."""


def differences(activations: tuple[str, ...], splits: int) -> dict[str, dict[str, tuple[float, float]]]:
    """By activation and by way, 'split' or 'as first published': absmax and absmean after all layers and after one."""
    found: dict[str, dict[str, tuple[float, float]]] = {each: {} for each in activations}
    chains: dict[str, Chains] = {}
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        x = torch.randn(1, TOKENS, FeedForwardStack().dim)
        for number in range(_LAYERS):
            for activation, layer in _layers(activations):
                ways = chains.setdefault(activation, {"whole": x, "split": x, "as first published": x})
                _through(layer, ways, splits, gated=activation in _GATED)
                if number == 0:
                    found[activation]["one layer"] = _apart(ways["whole"], ways["split"])
    for activation, ways in chains.items():
        found[activation] |= {name: _apart(ways["whole"], each) for name, each in ways.items() if name != "whole"}
    return found


def _layers(activations: tuple[str, ...]) -> Iterator[tuple[str, nn.Module]]:
    """One layer of each, of as few drawn weights as possible: those that are gated share theirs, the others too."""
    for gated in (False, True):
        alike = [each for each in activations if (each in _GATED) == gated]
        state: dict[str, Any] = {}
        for activation in alike:
            workload = FeedForwardStack(activation=activation, layers=1, initial="torch")
            with torch.device("cpu" if not state else "meta"):
                layer = workload._model()
            state = state or layer.state_dict()
            layer.load_state_dict(state, assign=True)
            yield activation, layer


def _through(layer: nn.Module, ways: Chains, splits: int, *, gated: bool) -> None:
    ways["whole"] = layer(ways["whole"])
    ways["as first published"] = _mistaken(layer, ways["as first published"], splits) if gated else ways["split"]
    undo = SplitFeedForward(splits=splits, as_published=True).apply(layer)
    ways["split"] = layer(ways["split"])
    undo()
    if not gated:
        ways["as first published"] = ways["split"]


def _mistaken(layer: nn.Module, x: Tensor, splits: int) -> Tensor:
    """Value and gate lie in one matrix, and it was cut as if it held one thing: values then met values."""
    feed_forward: Any = next(each for each in layer.modules() if type(each).__name__ == "FeedForward")
    first, _, last = feed_forward.net[:3]
    act = first.gelu if hasattr(first, "gelu") else first.activation
    pieces = (first.proj.weight.chunk(splits), first.proj.bias.chunk(splits), last.weight.chunk(splits, dim=1))
    total = torch.zeros_like(x)
    for weight, bias, columns in zip(*pieces, strict=True):
        value, gate = F.linear(x, weight, bias).chunk(2, dim=-1)
        total += F.linear(value * act(gate), columns)
    output: Tensor = total + last.bias
    return output


def _apart(one: Tensor, other: Tensor) -> tuple[float, float]:
    apart = (one.double() - other.double()).abs()
    return float(apart.max()), float(apart.mean())
