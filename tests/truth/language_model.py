"""A small language model with the operators of the recorded ones: RMSNorm, rotary positions, SwiGLU, einsum."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Sizes:
    batch: int
    context: int
    width: int = 512
    inner: int = 1344
    layers: int = 4
    heads: int = 16
    vocabulary: int = 10_000


def split(x: Tensor, heads: int) -> Tensor:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def softmax(x: Tensor) -> Tensor:
    highest = x.max(dim=-1, keepdim=True).values
    return torch.exp(x - highest) / torch.exp(x - highest).sum(dim=-1, keepdim=True)


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    scores = torch.einsum("...qd,...kd->...qk", query, key)
    scale = torch.sqrt(torch.tensor(query.size(-1)).to(query.device))
    scaled = scores / scale
    if mask is not None:
        scaled.masked_fill_(~mask.to(torch.bool), float("-inf"))
    return torch.einsum("...qk,...kd->...qd", softmax(scaled), value)


class Linear(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs, device="cuda"))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("...i,oi->...o", x, self.weight)


class Norm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width, device="cuda"))

    def forward(self, x: Tensor) -> Tensor:
        size = torch.sqrt(torch.mean(x**2, dim=-1, keepdim=True) + 1e-5)
        return x / size * self.weight


class Rotary(nn.Module):
    def __init__(self, width: int, longest: int) -> None:
        super().__init__()
        angles = torch.outer(torch.arange(longest), 10_000.0 ** (-torch.arange(0, width, 2) / width))
        self.cos, self.sin = angles.cos(), angles.sin()

    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        cos, sin = self.cos[places].to(x.device), self.sin[places].to(x.device)
        one = x[..., ::2] * cos - x[..., 1::2] * sin
        other = x[..., ::2] * sin + x[..., 1::2] * cos
        return torch.cat([one.unsqueeze(-1), other.unsqueeze(-1)], dim=-1).flatten(-2)


class Attention(nn.Module):
    def __init__(self, sizes: Sizes, rotary: Rotary) -> None:
        super().__init__()
        self.heads = sizes.heads
        self.query, self.key, self.value, self.out = (Linear(sizes.width, sizes.width) for _ in range(4))
        self.rotary = rotary

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.query(x), self.key(x), self.value(x)
        query, key, value = (split(part, self.heads) for part in (query, key, value))
        places = torch.arange(x.size(-2))
        query = self.rotary(query, places)
        key = self.rotary(key, places)
        mask = torch.tril(torch.ones(x.size(-2), x.size(-2))).to(x.device)
        mixed = attend(query, key, value, mask)
        del mask
        mixed = mixed.transpose(-2, -3).reshape(x.shape)
        return self.out(mixed)


class Gated(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.gate = Linear(sizes.width, sizes.inner)
        self.down = Linear(sizes.inner, sizes.width)
        self.up = Linear(sizes.width, sizes.inner)

    def forward(self, x: Tensor) -> Tensor:
        gate = self.gate(x)
        return self.down(gate * torch.sigmoid(gate) * self.up(x))


class Block(nn.Module):
    def __init__(self, sizes: Sizes, rotary: Rotary) -> None:
        super().__init__()
        self.before_attention, self.before_gated = Norm(sizes.width), Norm(sizes.width)
        self.attention, self.gated = Attention(sizes, rotary), Gated(sizes)

    def forward(self, x: Tensor) -> Tensor:
        # Names keep what they name until the block ends, as they did where it was recorded.
        before_attention = self.before_attention(x)
        attended = self.attention(before_attention)
        x = x + attended
        before_gated = self.before_gated(x)
        return x + self.gated(before_gated)


class StackedBlocks(nn.Module):
    """The forward of models whose names let go of a tensor as soon as the next one is there."""

    words: nn.Module
    blocks: nn.ModuleList
    norm: nn.Module
    head: nn.Module

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words)
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        scores: Tensor = self.head(x)
        return scores


class LanguageModel(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.words = nn.Parameter(torch.empty(sizes.vocabulary, sizes.width, device="cuda"))
        rotary = Rotary(sizes.width // sizes.heads, sizes.context)
        self.blocks = nn.ModuleList(Block(sizes, rotary) for _ in range(sizes.layers))
        self.norm = Norm(sizes.width)
        self.head = Linear(sizes.width, sizes.vocabulary)

    def forward(self, words: Tensor) -> Tensor:
        x = self.words[words]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def cross_entropy(scores: Tensor, targets: Tensor) -> Tensor:
    highest = scores.max(dim=-1, keepdim=True).values
    logs = scores - highest - torch.log(torch.exp(scores - highest).sum(dim=-1, keepdim=True))
    places = torch.zeros_like(logs).scatter_(1, targets.unsqueeze(1), 1)
    return -(places * logs).sum() / scores.size(0)


class WrittenOptimizer(torch.optim.Optimizer):
    """Base of optimizers whose step a program writes out."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})
        self.parameters: list[nn.Parameter] = self.param_groups[0]["params"]


class AdamW(WrittenOptimizer):
    """Written out, with new tensors for everything."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters)
        for p in self.parameters:
            self.state[p] = {"mean": torch.zeros_like(p), "square": torch.zeros_like(p)}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for parameter in self.parameters:
            gradient, state = parameter.grad, self.state[parameter]
            mean = state["mean"]
            new_mean = 0.9 * mean + 0.1 * gradient
            square = state["square"]
            new_square = 0.999 * square + 0.001 * gradient**2
            parameter.data = parameter.data - 1e-3 * (new_mean / (torch.sqrt(new_square) + 1e-8))
            parameter.data = parameter.data - 1e-5 * parameter.data
            state["mean"] = new_mean
            state["square"] = new_square
