"""A third language model: norms are products of a tensor with itself, and positions are looked up in every layer."""

import torch
from torch import Tensor, nn

from tests.truth.language_model import Sizes, split
from tests.truth.turned_halves_model import Linear, silu


def softmax(x: Tensor) -> Tensor:
    highest = x.max(dim=-1, keepdim=True).values
    exponents = torch.exp(x - highest)
    total = torch.sum(exponents, dim=-1, keepdim=True)
    return exponents / total


class Words(nn.Module):
    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocabulary, width))

    def forward(self, words: Tensor) -> Tensor:
        return self.weight[words]


class Norm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(1, width))

    def forward(self, x: Tensor) -> Tensor:
        before = x.dtype
        x = x.to(torch.float32)
        square = torch.einsum("...i,...i->...", x, x)
        square = square / x.size(-1) + 1e-5
        size = torch.sqrt(square).unsqueeze(-1)
        scaled = x / size * self.weight
        return scaled.to(before)


class Rotary(nn.Module):
    cos: Tensor
    sin: Tensor

    def __init__(self, context: int, width: int) -> None:
        super().__init__()
        angles = torch.outer(torch.arange(context), 10_000.0 ** (-torch.arange(0, width, 2) / width))
        twice = torch.repeat_interleave(angles, 2, dim=-1)
        self.register_buffer("cos", twice.cos(), persistent=False)
        self.register_buffer("sin", twice.sin(), persistent=False)

    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        cos = self.cos[places]
        sin = self.sin[places]
        return x * cos + _turned(x) * sin


def _turned(x: Tensor) -> Tensor:
    even, odd = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((-odd, even), dim=-1).view(x.shape)


class Attention(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.heads = sizes.heads
        self.key, self.query, self.value, self.out = (Linear(sizes.width, sizes.width) for _ in range(4))
        self.rotary = Rotary(sizes.context, sizes.width // sizes.heads)

    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        key, query, value = (split(layer(x), self.heads) for layer in (self.key, self.query, self.value))
        key = self.rotary(key, places)
        query = self.rotary(query, places)
        mask = torch.tril(torch.ones(x.size(1), x.size(1), device=x.device)).bool()
        mixed = mixed_values(query, key, value, mask)
        joined = mixed.transpose(1, 2).reshape(x.shape)
        return self.out(joined)


def mixed_values(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    scores = torch.einsum("...qd,...kd->...qk", query, key)
    scores = scores / query.size(-1) ** 0.5
    scores = scores.masked_fill(mask == False, -1e9)  # noqa: E712 - as it was recorded: another kernel than ~mask
    shares = softmax(scores)
    return torch.einsum("...qk,...kd->...qd", shares, value)


class Gated(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.empty(sizes.inner, sizes.width))
        self.down = nn.Parameter(torch.empty(sizes.width, sizes.inner))
        self.up = nn.Parameter(torch.empty(sizes.inner, sizes.width))

    def forward(self, x: Tensor) -> Tensor:
        before = x.dtype
        x = x.to(torch.float32)
        gate = torch.einsum("fi,...i->f...", self.gate, x)
        up = torch.einsum("fi,...i->f...", self.up, x)
        out = torch.einsum("if,f...->...i", self.down, silu(gate) * up)
        return out.to(before)


class Block(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.before_attention, self.before_gated = Norm(sizes.width), Norm(sizes.width)
        self.attention, self.gated = Attention(sizes), Gated(sizes)

    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        # Names keep what they name until the block ends, as they did where it was recorded.
        before_attention = self.before_attention(x)
        attended = self.attention(before_attention, places)
        middle = x + attended
        before_gated = self.before_gated(middle)
        gated = self.gated(before_gated)
        return middle + gated


class SummedSquaresModel(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.words = Words(sizes.vocabulary, sizes.width)
        self.blocks = nn.ModuleList(Block(sizes) for _ in range(sizes.layers))
        self.norm = Norm(sizes.width)
        self.head = Linear(sizes.width, sizes.vocabulary)

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words)
        places = torch.arange(words.size(1), device=words.device)
        for block in self.blocks:
            x = block(x, places)
        scores: Tensor = self.head(self.norm(x))
        return scores
