"""Two small models of usual parts, built the same way on any device."""

import torch
from torch import Tensor, nn
from torch.nn import functional


class Block(nn.Module):
    """Attention by single operators, so that every device runs the same ones."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.second_norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.first_norm(x)).chunk(3, -1)
        query, key, value = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts)
        later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        weights = (query @ key.transpose(-1, -2) / 8).masked_fill(later, float("-inf")).softmax(-1)
        x = x + self.out((weights @ value).transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.second_norm(x))))


class Language(nn.Module):
    def __init__(self, words: int = 503, width: int = 64, heads: int = 4, blocks: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, words: Tensor) -> Tensor:
        x = self.embedding(words)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Picture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.batch_norm = nn.BatchNorm2d(16)
        self.second = nn.Conv2d(16, 32, 3, stride=2)
        self.group_norm = nn.GroupNorm(4, 32)
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.relu(self.batch_norm(self.first(x))), 2)
        return self.head(functional.silu(self.group_norm(self.second(x))).mean((2, 3)))


def train(model: nn.Module, inputs: Tensor, targets: Tensor, optimizer: torch.optim.Optimizer) -> None:
    functional.cross_entropy(model(inputs).flatten(0, -2), targets.flatten()).backward()
    optimizer.step()
    optimizer.zero_grad()
