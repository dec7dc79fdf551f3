"""Small models, and the two wrong splits of gated feed-forwards as they were once published.

The classes are built and named like those of diffusers, so that the right split knows them.
"""

from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Undo = Callable[[], None]
Apply = Callable[[nn.Module], Undo]
Forward = Callable[[Any, Tensor], Tensor]


class GEGLU(nn.Module):
    def __init__(self, dim: int, inner: int) -> None:
        super().__init__()
        self.proj = nn.Linear(dim, 2 * inner)

    @staticmethod
    def gelu(gate: Tensor) -> Tensor:
        return F.gelu(gate)

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.proj(x).chunk(2, dim=-1)
        return value * self.gelu(gate)


class SwiGLU(nn.Module):
    def __init__(self, dim: int, inner: int) -> None:
        super().__init__()
        self.proj = nn.Linear(dim, 2 * inner)
        self.activation = nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.proj(x).chunk(2, dim=-1)
        return value * self.activation(gate)


class FeedForward(nn.Module):
    def __init__(self, kind: type[GEGLU | SwiGLU], dim: int, inner: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.net = nn.ModuleList([kind(dim, inner), nn.Dropout(dropout), nn.Linear(inner, dim)])

    def forward(self, x: Tensor) -> Tensor:
        for module in self.net:
            x = module(x)
        return x


class Residual(nn.Module):
    """A block called with keyword arguments that returns a tuple, like those of transformers."""

    def __init__(self, ff: nn.Module) -> None:
        super().__init__()
        self.ff = ff

    def forward(self, x: Tensor, *, scale: float = 1.0) -> tuple[Tensor, None]:
        return x + scale * self.ff(x), None


class Stack(nn.Module):
    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, hidden_states: Tensor) -> dict[str, Tensor]:
        for layer in self.layers:
            given = layer(hidden_states, scale=1.0) if isinstance(layer, Residual) else layer(hidden_states)
            hidden_states = given[0] if isinstance(given, tuple) else given
        return {"sample": hidden_states}


def stack(
    kind: type[GEGLU | SwiGLU] = GEGLU,
    *,
    count: int = 5,
    sizes: tuple[int, int] = (32, 64),
    residual: bool = False,
    dropout: float = 0.0,
    dtype: torch.dtype = torch.float32,
) -> Callable[[], Stack]:
    """Plain layers with PyTorch's own initialization, as in the published table, or with residuals."""

    def build() -> Stack:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            layers: list[nn.Module] = [FeedForward(kind, *sizes, dropout) for _ in range(count)]
            return Stack([Residual(layer) for layer in layers] if residual else layers).to(dtype)

    return build


def tokens(count: int = 16, dim: int = 32, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {"hidden_states": torch.randn(2, count, dim, generator=generator).to(dtype)}


def giving(kind: type[nn.Module], forward: Forward, where: str = "") -> Apply:
    """Every module of that class gets this forward."""

    def apply(model: nn.Module) -> Undo:
        chosen = [each for name, each in model.named_modules() if type(each) is kind and where in name]
        assert chosen
        for each in chosen:
            each.forward = MethodType(forward, each)

        def undo() -> None:
            for each in chosen:
                del each.forward

        return undo

    return apply


def split_wrongly(*, only_bias: bool, splits: int = 4) -> Callable[[nn.Module], Callable[[], None]]:
    """The feed-forward split as first published: it slices the fused value and gate matrix as one, so that values
    multiply values and gates multiply gates. The later version did so with the bias alone."""

    def slices(proj: nn.Linear) -> list[tuple[Tensor, Tensor]]:
        weights = list(proj.weight.chunk(splits))
        if only_bias:
            value, gate = proj.weight.chunk(2)
            weights = [torch.cat(pair) for pair in zip(value.chunk(splits), gate.chunk(splits), strict=True)]
        return list(zip(weights, proj.bias.chunk(splits), strict=True))

    def forward(module: Any, x: Tensor) -> Tensor:
        gated, _, last = module.net
        act = gated.gelu if isinstance(gated, GEGLU) else gated.activation
        whole = last.bias
        columns = last.weight.chunk(splits, dim=1)
        for (weight, bias), column in zip(slices(gated.proj), columns, strict=True):
            value, gate = F.linear(x, weight, bias).chunk(2, dim=-1)
            whole = whole + F.linear(value * act(gate), column)
        return whole

    return giving(FeedForward, forward)


def nothing(_model: nn.Module) -> Callable[[], None]:
    return lambda: None


def with_forward(forward: Callable[[FeedForward, Tensor], Tensor]) -> Apply:
    """An optimization that gives every feed-forward this one."""
    return giving(FeedForward, forward)
