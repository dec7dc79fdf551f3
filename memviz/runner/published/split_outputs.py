"""How far the outputs of split feed-forwards lie from whole ones: real numbers on a processor, layer after layer.

The published column was computed over 16,384 tokens on a GPU. The weights here are as large and drawn alike, the
tokens fewer: the largest of fewer differences is a little smaller. Where the difference is rounding alone, it depends
on the order of the sums: a GPU's kernels add one product after the other, a processor's in blocks that round less. So
for the single layer, whose rounding was published, sums are made one after the other here, too.
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
    """By activation and by way, 'split' or 'as first published': absmax and absmean after all layers."""
    found: dict[str, dict[str, tuple[float, float]]] = {each: {} for each in activations}
    chains: dict[str, Chains] = {}
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        x = torch.randn(1, TOKENS, FeedForwardStack().dim)
        for _ in range(_LAYERS):
            for activation, layer in _layers(activations):
                ways = chains.setdefault(activation, {"whole": x, "split": x, "as first published": x})
                _through(layer, ways, splits, gated=activation in _GATED)
    for activation, ways in chains.items():
        found[activation] |= {name: _apart(ways["whole"], each) for name, each in ways.items() if name != "whole"}
    return found


def of_one_layer(splits: int) -> tuple[float, float]:
    """absmax and absmean of one gelu layer, split and whole, both summed one product after the other."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        ((_, layer),) = _layers(("gelu",))
        feed_forward: Any = next(each for each in layer.modules() if type(each).__name__ == "FeedForward")
        first, last = feed_forward.net[0].proj, feed_forward.net[2]
        x = torch.randn(TOKENS, first.in_features)
        inner = F.gelu(_in_turn(x, first.weight) + first.bias)
        pieces = zip(inner.chunk(splits, dim=1), last.weight.chunk(splits, dim=1), strict=True)
        split = sum((_in_turn(*each) for each in pieces), torch.zeros(TOKENS, last.out_features))
        return _apart(_in_turn(inner, last.weight) + last.bias, split + last.bias)


def _in_turn(x: Tensor, weight: Tensor) -> Tensor:
    total = x.new_zeros(x.shape[0], weight.shape[0])
    for column, row in zip(x.t().contiguous(), weight.t().contiguous(), strict=True):
        total.addcmul_(column[:, None], row)
    return total


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
