"""A fifth language model, built under a default device: weights are drawn there, and positions look up a table."""

from math import sqrt

import torch
from torch import Tensor, nn

from tests.truth.language_model import Sizes, StackedBlocks, split
from tests.truth.turned_halves_model import Block, Gated, Norm, mixed


def _drawn(outputs: int, inputs: int, deviation: float) -> nn.Parameter:
    weight = torch.empty(outputs, inputs)
    return nn.Parameter(nn.init.trunc_normal_(weight, std=deviation, a=-3 * deviation, b=3 * deviation))


class Linear(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = _drawn(outputs, inputs, sqrt(2 / (inputs + outputs)))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("...i,oi->...o", x, self.weight)


class Words(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.weight = _drawn(sizes.vocabulary, sizes.width, 1.0)

    def forward(self, words: Tensor) -> Tensor:
        return self.weight[words, :]


class Rotary(nn.Module):
    tables: Tensor

    def __init__(self, context: int, width: int) -> None:
        super().__init__()
        self.register_buffer("tables", _tables(context, width), persistent=False)

    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        even, odd = x.unflatten(-1, (-1, 2)).movedim(-1, 0)
        cos, sin = self.tables[:, places].unbind(0)
        one = cos * even - sin * odd
        other = sin * even + cos * odd
        return torch.cat((one.unsqueeze(-1), other.unsqueeze(-1)), dim=-1).flatten(-2)


def _tables(context: int, width: int) -> Tensor:
    exponents = torch.arange(0, width, 2) / width
    speeds = 10_000.0**-exponents
    places = torch.arange(context)
    angles = torch.einsum("p,f->pf", places, speeds)
    cos, sin = torch.cos(angles), torch.sin(angles)
    return torch.stack((cos, sin))


class Attention(nn.Module):
    def __init__(self, sizes: Sizes, rotary: Rotary) -> None:
        super().__init__()
        self.heads = sizes.heads
        self.query, self.key, self.value, self.out = (Linear(sizes.width, sizes.width) for _ in range(4))
        self.rotary = rotary

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.query(x), self.key(x), self.value(x)
        query, key, value = (split(part, self.heads) for part in (query, key, value))
        places = torch.arange(x.size(1), device=x.device)
        query = self.rotary(query, places)
        key = self.rotary(key, places)
        line = torch.arange(x.size(1), device=x.device)
        mask = line.view(1, 1, -1, 1) >= line.view(1, 1, 1, -1)
        joined = mixed(query, key, value, mask)
        joined = joined.transpose(1, 2).reshape(x.shape)
        return self.out(joined)


class DefaultDeviceModel(StackedBlocks):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.words = Words(sizes)
        self.rotary = Rotary(sizes.context, sizes.width // sizes.heads)
        self.blocks = nn.ModuleList(
            Block(sizes, Attention(sizes, self.rotary), Gated(sizes, Linear)) for _ in range(sizes.layers)
        )
        self.norm = Norm(sizes.width)
        self.head = Linear(sizes.width, sizes.vocabulary)
