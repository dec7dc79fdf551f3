"""A sixth language model: rotated pairs are written into zeros, and weights are drawn on the host."""

from typing import Any

import torch
from torch import Tensor, nn

from tests.truth.filled_tables_model import Gated, Linear
from tests.truth.language_model import Sizes, StackedBlocks, WrittenOptimizer, split
from tests.truth.summed_squares_model import Words, mixed_values


class Norm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width, device="cuda"))

    def forward(self, x: Tensor) -> Tensor:
        before = x.dtype
        x = x.to(torch.float32)
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        size = torch.sqrt(norm**2 / x.size(-1) + 1e-5)
        scaled = x / size
        result = torch.einsum("d,bsd->bsd", self.weight, scaled)
        return result.to(before)


class Rotary(nn.Module):
    table: Tensor

    def __init__(self, width: int, context: int) -> None:
        super().__init__()
        places, even = torch.arange(context, device="cuda"), torch.arange(0, width, 2, device="cuda")
        angles = torch.outer(places, 1.0 / (10_000 ** (even.float() / width)))
        table = torch.zeros(context, width // 2, 2, device="cuda")
        table[:, :, 0] = torch.cos(angles)
        table[:, :, 1] = torch.sin(angles)
        self.register_buffer("table", table, persistent=False)

    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        pairs = x.unflatten(-1, (-1, 2))
        cos = self.table[places, :, 0]
        sin = self.table[places, :, 1]
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
        rotated = torch.zeros_like(pairs)
        rotated[..., 0] = cos * pairs[..., 0] - sin * pairs[..., 1]
        rotated[..., 1] = sin * pairs[..., 0] + cos * pairs[..., 1]
        return rotated.reshape(x.shape)


class Attention(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.heads = sizes.heads
        self.query, self.key, self.value, self.out = (Linear(sizes.width, sizes.width) for _ in range(4))
        self.rotary = Rotary(sizes.width // sizes.heads, sizes.context)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.query(x), self.key(x), self.value(x)
        query, key, value = (split(part, self.heads) for part in parts)
        places = torch.arange(x.size(1), device=x.device).unsqueeze(0).expand(x.size(0), -1)
        query = self.rotary(query, places)
        key = self.rotary(key, places)
        mask = torch.triu(torch.ones(x.size(1), x.size(1), device=x.device), diagonal=1).to(torch.bool)
        mask = ~mask
        mask = mask[None, None].expand(x.size(0), self.heads, -1, -1)
        result = mixed_values(query, key, value, mask)
        result = result.transpose(1, 2).reshape(x.shape)
        result = self.out(result)
        return result


class Block(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.before_attention, self.attention = Norm(sizes.width), Attention(sizes)
        self.before_gated, self.gated = Norm(sizes.width), Gated(sizes)

    def forward(self, x: Tensor) -> Tensor:
        part = self.before_attention(x)
        part = self.attention(part)
        x = x + part
        part = self.before_gated(x)
        part = self.gated(part)
        return x + part


class WrittenPairsModel(StackedBlocks):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.words = Words(sizes.vocabulary, sizes.width).to("cuda")
        self.blocks = nn.ModuleList(Block(sizes) for _ in range(sizes.layers))
        self.norm = Norm(sizes.width)
        self.head = Linear(sizes.width, sizes.vocabulary)


def cross_entropy(scores: Tensor, targets: Tensor) -> Tensor:
    scores, targets = scores.flatten(0, 1), targets.flatten()
    highest = torch.max(scores, dim=-1, keepdim=True).values
    scores = scores - highest
    exponents = torch.exp(scores)
    total = exponents.sum(dim=-1)
    # The rows are counted on the host.
    chosen = scores[torch.arange(scores.size(0), device="cpu"), targets]
    losses = torch.log(total) - chosen
    return losses.mean()


class AdamW(WrittenOptimizer):
    def step(self, closure: Any = None) -> None:
        for parameter in self.parameters:
            gradient = parameter.grad.data
            state = self.state[parameter]
            if not state:
                state["mean"], state["square"] = torch.zeros_like(parameter.data), torch.zeros_like(parameter.data)
            state["mean"].mul_(0.9).add_(gradient, alpha=0.1)
            state["square"].mul_(0.95).addcmul_(gradient, gradient, value=0.05)
            size = (state["square"].sqrt() / 0.2).add_(1e-8)
            parameter.data.addcdiv_(state["mean"], size, value=-1e-4)
            parameter.data.add_(parameter.data, alpha=-1e-6)
