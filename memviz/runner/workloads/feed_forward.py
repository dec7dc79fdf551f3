"""A stack of diffusers' feed-forward layers, as the seed of the split feed-forward measures it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, cast

import torch
from torch import Tensor, nn

from memviz.errors import UsageError
from memviz.runner.knobs import knob
from memviz.runner.workloads.random_inputs import RandomInputs
from memviz.runner.workloads.workload import DTYPES, FromConfiguration, dtype_knob, plural

ACTIVATIONS = ("gelu", "gelu-approximate", "geglu", "geglu-approximate", "swiglu", "linear-silu")

_SMALL_DIM = 256
_PROBES = 2**16


@dataclass(frozen=True)
class FeedForwardStack(FromConfiguration):
    name: ClassVar[str] = "feed_forward"
    title: ClassVar[str] = "Feed-forward stack"
    sentence: ClassVar[str] = "Feed-forward layers of diffusers one after the other, and nothing else."

    batch: int = knob(2, "sequences at once", least=1)
    sequence: int = knob(8192, "tokens in a sequence", least=1)
    dim: int = knob(4096, "channels going into each layer", least=1)
    mult: int = knob(4, "how many times wider the inner layer is", least=1)
    layers: int = knob(5, "layers in the stack", least=1)
    activation: str = knob("gelu", "what stands between the two matrices", choices=ACTIVATIONS)
    dim_out: int | None = knob(None, "channels that the last layer gives; none means as many as dim", least=1)
    bias: bool = knob(True, "whether the matrices have biases")
    dropout: float = knob(0.0, "share of inner values dropped in training", least=0)
    residual: bool = knob(False, "whether each layer's input is added to its output; the seed's layers stand bare")
    initial: str = knob(
        "scaled",
        "scaled: weights that keep the signal through all layers; torch: the default, as in the seed, which loses it",
        choices=("scaled", "torch"),
    )
    dtype: str = dtype_knob("fp32")

    def _check(self) -> None:
        if not self.dropout < 1:
            raise UsageError(f"dropout is {self.dropout}; it is a share from 0 up to, but not including, 1.")
        if self.residual and self.dim_out not in (None, self.dim):
            raise UsageError(f"residual adds {self.dim} channels to {self.dim_out}; leave dim_out away, or residual.")

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
        return _Stack(layers, residual=self.residual)

    def _weights(self, model: nn.Module) -> None:
        if self.initial == "scaled":
            super()._weights(model)
            cast(_Stack, model).keep_size()

    def inputs(self, device: torch.device, micro_batch: int = 0) -> dict[str, Any]:
        draw = RandomInputs(device, self.seed, micro_batch)
        return {"x": draw.normal(self.batch, self.sequence, self.dim, dtype=DTYPES[self.dtype])}

    def loss(self, output: Any) -> Tensor:
        mean: Tensor = output.mean()
        return mean

    def small(self) -> Self:
        """Widths are halved, so that whatever divided the inner size still does; nothing is dropped by chance."""
        halvings = _halvings(self.dim)
        dim_out = self.dim_out and max(self.dim_out >> halvings, 1)
        return replace(
            self._at_most(batch=2, sequence=64, layers=5), dim=self.dim >> halvings, dim_out=dim_out, dropout=0.0
        )

    def _shapes(self) -> str:
        layers = plural(self.layers, "layer")
        return (
            f"{layers} of {self.dim} x {self.dim * self.mult} {self.activation}, {self.batch} x {self.sequence} tokens"
        )


class _Stack(nn.Module):
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
        tokens = max(_PROBES // first.shape[1], 64)
        x = torch.randn(tokens, first.shape[1], dtype=first.dtype, device=first.device)
        for block in self.blocks:
            before = block(x).std(dim=-1).median()
            for weight in block.net[2].parameters():  # type: ignore[index, union-attr]
                weight.div_(before)
            x = x + block(x) if self.residual else block(x)


def _halvings(dim: int) -> int:
    count = 0
    while dim > _SMALL_DIM and dim % 2 == 0:
        dim //= 2
        count += 1
    return count
