"""Stacks of single layers: diffusers' feed-forward layers, and the transformer blocks of one tensor-parallel rank.

Published measurements of split feed-forwards and of flat gradients were made on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import gcd
from typing import Any, Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from memviz.errors import UsageError
from memviz.runner.request import knob
from memviz.runner.workloads.workload import (
    FromConfiguration,
    RandomInputs,
    check_share,
    dtype_knob,
    micro_batches_knob,
)
from memviz.units import counted

ACTIVATIONS = ("gelu", "gelu-approximate", "geglu", "geglu-approximate", "swiglu", "linear-silu")


@dataclass(frozen=True)
class FeedForwardStack(FromConfiguration):
    name = "feed_forward"
    title = "Feed-forward stack"
    sentence = "Sequential feed-forward layers of diffusers."
    most = {"batch": 2, "sequence": 64, "layers": 5}
    reduced = {"dropout": 0.0}

    batch: int = knob(2, "sequences per batch", least=1)
    sequence: int = knob(8192, "tokens per sequence", least=1)
    dim: int = knob(4096, "input channels of each layer", least=1)
    mult: int = knob(4, "inner width as a multiple of dim", least=1)
    layers: int = knob(5, "layers in the stack", least=1)
    activation: str = knob("gelu", "activation between the two matrices", choices=ACTIVATIONS)
    dim_out: int | None = knob(None, "output channels of the last layer (default: dim)", least=1)
    bias: bool = knob(True, "biases in the matrices")
    dropout: float = knob(0.0, "dropout probability in training", least=0)
    residual: bool = knob(False, "add each layer's input to its output; off in the published benchmark")
    initial: str = knob(
        "scaled",
        "scaled: initialization that keeps the signal through all layers; torch: torch's default, which loses it",
        choices=("scaled", "torch"),
    )
    dtype: str = dtype_knob("fp32")

    def _check(self) -> None:
        check_share("dropout", self.dropout)
        if self.residual and self.dim_out not in (None, self.dim):
            raise UsageError(f"residual adds {self.dim} channels to {self.dim_out}; drop dim_out or residual.")

    def _model(self) -> nn.Module:
        from diffusers.models.attention import FeedForward

        last = self.layers - 1
        layers = [
            FeedForward(
                dim=self.dim,
                dim_out=self.dim_out if number == last and self.dim_out else self.dim,
                mult=self.mult,
                dropout=self.dropout,
                activation_fn=self.activation,
                bias=self.bias,
            )
            for number in range(self.layers)
        ]
        return _FeedForwards(layers, residual=self.residual)

    def _weights(self, model: nn.Module) -> None:
        if self.initial == "scaled":
            super()._weights(model)
            cast(_FeedForwards, model).keep_size()

    def _inputs(self, draw: RandomInputs) -> dict[str, Any]:
        return {"x": draw.normal(self.batch, self.sequence, self.dim)}

    def loss(self, output: Any) -> Tensor:
        mean: Tensor = output.mean()
        return mean

    def small(self) -> Self:
        """Widths are halved, so that what divided the inner size still does."""
        dim, dim_out = self.dim, self.dim_out
        while dim > 256 and dim % 2 == 0:
            dim, dim_out = dim // 2, dim_out and max(dim_out // 2, 1)
        return replace(super().small(), dim=dim, dim_out=dim_out)

    def _shapes(self) -> str:
        layers = counted(self.layers, "layer")
        return (
            f"{layers} of {self.dim} x {self.dim * self.mult} {self.activation}, {self.batch} x {self.sequence} tokens"
        )


class _FeedForwards(nn.Module):
    def __init__(self, layers: list[nn.Module], *, residual: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(layers)
        self.residual = residual

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x) if self.residual else block(x)
        return x

    @torch.no_grad()
    def keep_size(self) -> None:
        """Scales each layer by what it makes of random tokens.

        A gate multiplies its input with itself, so a layer that gives a little too much soon gives far too much.
        """
        first = next(self.parameters())
        if first.device.type == "meta":
            return
        self.eval()
        tokens = max(2**16 // first.shape[1], 64)
        x = torch.randn(tokens, first.shape[1], dtype=first.dtype, device=first.device)
        for block in self.blocks:
            before = block(x).std(dim=-1).median()
            for weight in block.net[2].parameters():  # type: ignore[index, union-attr]
                weight.div_(before)
            x = x + block(x) if self.residual else block(x)


_HEAD = 128


@dataclass(frozen=True)
class TransformerBlock(FromConfiguration):
    name = "transformer_block"
    title = "Tensor-parallel transformer block"
    sentence = "A quarter of an 8192-wide transformer block with embeddings and head, trained in micro-batches."
    most = {"batch": 2, "sequence": 64}

    batch: int = knob(1, "sequences per micro-batch", least=1)
    sequence: int = knob(1024, "tokens per sequence", least=1)
    micro_batches: int = micro_batches_knob(4)
    layers: int = knob(1, "transformer blocks", least=1)
    width: int = knob(8192, "hidden size", least=1)
    inner: int = knob(28672, "feed-forward width over all parts", least=1)
    vocabulary: int = knob(128_256, "vocabulary size over all parts", least=1)
    parts: int = knob(4, "GPUs of the tensor parallelism; one part is built", least=1)
    key_value_heads: int = knob(8, "key/value heads over all parts", least=1)

    mode: str = field(default="training", init=False, repr=False)
    """It is never run otherwise."""

    def _check(self) -> None:
        if self.width % _HEAD:
            raise UsageError(f"width is {self.width}; it must be a multiple of {_HEAD}, the width of a head.")
        heads = self.width // _HEAD
        if heads % self.key_value_heads:
            raise UsageError(
                f"key_value_heads is {self.key_value_heads}; it must divide the {heads} heads of this width."
            )
        cut = {
            f"{heads} heads": heads,
            f"{self.key_value_heads} key/value heads": self.key_value_heads,
            f"inner {self.inner}": self.inner,
            f"vocabulary {self.vocabulary}": self.vocabulary,
        }
        for what, count in cut.items():
            if count % self.parts:
                raise UsageError(f"{what} cannot be split into {self.parts} equal parts.")

    def _model(self) -> nn.Module:
        heads = self.width // _HEAD // self.parts
        blocks = [
            _Block(self.width, heads, self.key_value_heads // self.parts, self.inner // self.parts)
            for _ in range(self.layers)
        ]
        return _RankModel(self.vocabulary // self.parts, self.width, blocks)

    def _inputs(self, draw: RandomInputs) -> dict[str, Any]:
        tokens_per_rank = self.vocabulary // self.parts
        return {name: draw.integers(tokens_per_rank, self.batch, self.sequence) for name in ("tokens", "targets")}

    def loss(self, output: Any) -> Tensor:
        loss: Tensor = output
        return loss

    def small(self) -> Self:
        """Two blocks at least, since what is done to every block shows no difference with one."""
        return replace(
            super().small(),
            layers=min(max(self.layers, 2), 4),
            width=1024,
            inner=1792,
            vocabulary=2048,
            parts=gcd(self.parts, 4),
            key_value_heads=gcd(self.key_value_heads, 4),
        )

    def _shapes(self) -> str:
        cut = f"1 of {counted(self.parts, 'part')}"
        return f"{counted(self.layers, 'layer')}, {cut}, {self.batch} x {self.sequence} tokens"


class _RankModel(nn.Module):
    def __init__(self, vocabulary: int, width: int, blocks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


class _Block(nn.Module):
    def __init__(self, width: int, heads: int, key_value_heads: int, inner: int) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(width)
        self.attention = _Attention(width, heads, key_value_heads)
        self.feed_forward_norm = nn.RMSNorm(width)
        self.feed_forward = _FeedForward(width, inner)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        normed: Tensor = self.feed_forward(self.feed_forward_norm(x))
        return x + normed


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int, key_value_heads: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, heads * _HEAD, bias=False)
        self.key = nn.Linear(width, key_value_heads * _HEAD, bias=False)
        self.value = nn.Linear(width, key_value_heads * _HEAD, bias=False)
        self.out = nn.Linear(heads * _HEAD, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        layers = (self.query, self.key, self.value)
        query, key, value = (layer(x).unflatten(-1, (-1, _HEAD)).transpose(1, 2) for layer in layers)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        out: Tensor = self.out(attended.transpose(1, 2).flatten(2))
        return out


class _FeedForward(nn.Module):
    """Gated, with Llama's names, so that it is recognized as a gated feed-forward."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)
        self.act_fn = nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))
        return out
