"""A second language model: norms in fp32, tables of positions in the model, and what is turned laid end to end."""

from collections.abc import Callable
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn

from tests.truth.language_model import Sizes, WrittenOptimizer, split


def softmax(x: Tensor) -> Tensor:
    lowered = x - torch.max(x, dim=-1, keepdim=True)[0]
    exponents = torch.exp(lowered)
    return exponents / torch.sum(exponents, dim=-1, keepdim=True)


class Linear(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("...i,oi->...o", x, self.weight)


class Words(nn.Module):
    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocabulary, width))

    def forward(self, words: Tensor) -> Tensor:
        return self.weight[words, :]


class Norm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        before = x.dtype
        x = x.to(torch.float32)
        factor = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)
        x = x * factor
        return (self.weight * x).to(before)


class Rotary(nn.Module):
    tables: Tensor

    def __init__(self, context: int, width: int, *, gathers: bool) -> None:
        super().__init__()
        self.gathers = gathers
        angles = torch.outer(torch.arange(context), torch.tensor(10_000.0) ** -(torch.arange(0, width, 2) / width))
        self.register_buffer("tables", torch.stack((angles.cos(), angles.sin())), persistent=False)

    def forward(self, x: Tensor, places: Tensor | None) -> Tensor:
        even, odd = x.unflatten(-1, (-1, 2)).movedim(-1, 0).unbind(0)
        cos, sin = (self.tables[:, : x.size(-2), :] if places is None else self.tables[:, places]).unbind(0)
        one = cos * even - sin * odd
        other = sin * even + cos * odd
        return torch.concat((one, other), dim=-1)


class Attention(nn.Module):
    def __init__(self, sizes: Sizes, rotary: Rotary) -> None:
        super().__init__()
        self.heads = sizes.heads
        self.query, self.key, self.value, self.out = (Linear(sizes.width, sizes.width) for _ in range(4))
        self.rotary = rotary

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.query(x), self.key(x), self.value(x)
        query, key, value = (split(part, self.heads) for part in (query, key, value))
        shown = torch.arange(x.size(1), device=x.device) if self.rotary.gathers else None
        query = self.rotary(query, shown)
        key = self.rotary(key, shown)
        places = torch.arange(x.size(1), device=x.device)
        mask = places.view(-1, 1) >= places.view(1, -1)
        joined = mixed(query, key, value, mask[None, ...])
        joined = joined.transpose(1, 2).reshape(x.shape)
        return self.out(joined)


def mixed(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    scores = torch.einsum("...qd,...kd->...qk", query, key) / sqrt(key.size(-1))
    scores = torch.where(mask, scores, float("-inf"))
    shares = softmax(scores)
    return torch.einsum("...qk,...kd->...qd", shares, value)


class Gated(nn.Module):
    def __init__(self, sizes: Sizes, linear: Callable[[int, int], nn.Module] = Linear) -> None:
        super().__init__()
        self.gate = linear(sizes.width, sizes.inner)
        self.down = linear(sizes.inner, sizes.width)
        self.up = linear(sizes.width, sizes.inner)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(silu(self.gate(x)) * self.up(x))
        return out


def silu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


class Block(nn.Module):
    def __init__(self, sizes: Sizes, attention: nn.Module, gated: nn.Module) -> None:
        super().__init__()
        self.attention, self.gated = attention, gated
        self.before_attention, self.before_gated = Norm(sizes.width), Norm(sizes.width)

    def forward(self, x: Tensor) -> Tensor:
        # Names keep what they name until the block ends, as they did where it was recorded.
        attended = self.attention(self.before_attention(x))
        middle = x + attended
        gated = self.gated(self.before_gated(middle))
        return middle + gated


class TurnedHalvesModel(nn.Module):
    def __init__(self, sizes: Sizes, *, gathers: bool = False) -> None:
        """`gathers` copies the rows of the rotary tables that are used."""
        super().__init__()
        self.words = Words(sizes.vocabulary, sizes.width)
        self.rotary = Rotary(sizes.context, sizes.width // sizes.heads, gathers=gathers)
        self.blocks = nn.ModuleList(
            Block(sizes, Attention(sizes, self.rotary), Gated(sizes)) for _ in range(sizes.layers)
        )
        self.norm = Norm(sizes.width)
        self.head = Linear(sizes.width, sizes.vocabulary)

    def forward(self, words: Tensor) -> Tensor:
        first = self.words(words)
        x = first
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        scores: Tensor = self.head(x)
        return scores


def cross_entropy(scores: Tensor, targets: Tensor) -> Tensor:
    losses = -_log_softmax(scores)
    return torch.mean(torch.gather(losses, -1, targets.unsqueeze(-1)))


def _log_softmax(x: Tensor) -> Tensor:
    highest = torch.max(x, dim=-1, keepdim=True)[0]
    x = x - highest
    return x - torch.log(torch.sum(torch.exp(x), dim=-1, keepdim=True))


class AdamW(WrittenOptimizer):
    """Written out: weights change in place, moments are made anew."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for parameter in self.parameters:
            gradient = parameter.grad.data
            state = self.state[parameter]
            parameter.data -= 1e-5 * parameter.data
            mean = state.get("mean", torch.zeros_like(gradient))
            square = state.get("square", torch.zeros_like(gradient))
            new_mean = 0.9 * mean + 0.1 * gradient
            new_square = 0.999 * square + 0.001 * torch.square(gradient)
            parameter.data -= 1e-3 * new_mean / (torch.sqrt(new_square) + 1e-8)
            state["mean"] = new_mean
            state["square"] = new_square
