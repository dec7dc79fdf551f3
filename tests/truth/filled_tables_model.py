"""A fourth language model: tables of positions are made in every call, and what is turned fills an empty tensor."""

from math import inf, sqrt
from typing import Any

import torch
from torch import Tensor, nn

from tests.truth.language_model import Sizes, StackedBlocks, WrittenOptimizer, split
from tests.truth.summed_squares_model import Words


def softmax(x: Tensor) -> Tensor:
    highest = torch.max(x, dim=-1, keepdim=True).values
    lowered = x - highest
    exponents = torch.exp(lowered)
    total = torch.sum(exponents, dim=-1, keepdim=True)
    return exponents / total


class Linear(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("oi,...i->...o", self.weight, x)


class Norm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        square = (x**2).mean(-1, keepdim=True)
        size = torch.sqrt(square + 1e-5)
        return x / size * self.weight


class Rotary(nn.Module):
    cos: Tensor
    sin: Tensor

    def __init__(self, width: int, context: int, device: torch.device) -> None:
        super().__init__()
        even = torch.arange(0, width, 2, device=device, dtype=torch.float32)
        exponents = even / width
        speeds = 1.0 / (10_000**exponents)
        places = torch.arange(context, device=device, dtype=torch.float32)
        angles = torch.einsum("p,f->pf", places, speeds)
        cos, sin = torch.cos(angles), torch.sin(angles)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        cos = self.cos[places].unsqueeze(1)
        sin = self.sin[places].unsqueeze(1)
        even, odd = x[..., 0::2], x[..., 1::2]
        one = even * cos - odd * sin
        other = even * sin + odd * cos
        turned = torch.empty_like(x)
        turned[..., 0::2] = one
        turned[..., 1::2] = other
        return turned


class Attention(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.heads = sizes.heads
        self.query, self.key, self.value, self.out = (Linear(sizes.width, sizes.width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.query(x), self.key(x), self.value(x)
        queries, keys, values = (split(part, self.heads) for part in (query, key, value))
        line = torch.arange(x.size(1), device=x.device)
        places = line.expand(x.size(0), -1)
        rotary = Rotary(x.size(-1) // self.heads, x.size(1), x.device)
        turned_queries = rotary(queries, places)
        turned_keys = rotary(keys, places)
        mask = torch.tril(torch.ones((x.size(1), x.size(1)), device=x.device, dtype=torch.bool))
        mixed = _mixed(turned_queries, turned_keys, values, mask)
        joined = mixed.transpose(1, 2).reshape(x.shape)
        return self.out(joined)


def _mixed(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    scores = torch.einsum("...qd,...kd->...qk", query, key)
    masked = torch.where(mask, scores, -inf)
    shares = softmax(masked / sqrt(query.size(-1)))
    return torch.einsum("...qk,...kd->...qd", shares, value)


class Gated(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.gate = Linear(sizes.width, sizes.inner)
        self.down = Linear(sizes.inner, sizes.width)
        self.up = Linear(sizes.width, sizes.inner)

    def forward(self, x: Tensor) -> Tensor:
        gate = self.gate(x)
        up = self.up(x)
        opened = gate * torch.sigmoid(gate)
        both = opened * up
        return self.down(both)


class Block(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.before_attention = Norm(sizes.width)
        self.attention = Attention(sizes)
        self.before_gated = Norm(sizes.width)
        self.gated = Gated(sizes)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.before_attention(x))
        return x + self.gated(self.before_gated(x))


class FilledTablesModel(StackedBlocks):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.words = Words(sizes.vocabulary, sizes.width)
        self.blocks = nn.ModuleList(Block(sizes) for _ in range(sizes.layers))
        self.norm = Norm(sizes.width)
        self.head = Linear(sizes.width, sizes.vocabulary)


class AdamW(WrittenOptimizer):
    """Written out, in place but for one tensor a parameter."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for parameter in self.parameters:
            state = self.state[parameter]
            if not state:
                state["mean"] = torch.zeros_like(parameter)
                state["square"] = torch.zeros_like(parameter)
            gradient = parameter.grad.data
            mean, square = state["mean"], state["square"]
            mean.mul_(0.9).add_(gradient, alpha=0.1)
            square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
            size = square.sqrt().add_(1e-8)
            parameter.data.addcdiv_(mean, size, value=-1e-3)
            parameter.data.add_(parameter.data, alpha=-1e-5)
