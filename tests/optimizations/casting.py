"""A model with all that casting must tell apart, and the same model rounded by hand."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

FP8 = torch.float8_e4m3fn
SMALL = {
    "float8_e4m3fn": torch.float8_e4m3fn,
    "float8_e5m2": torch.float8_e5m2,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
PIECES = ("leaf", "block", "model")


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Model(nn.Module):
    """An embedding, blocks, a convolution, buffers of three types, and an output matrix, perhaps the embedding's."""

    def __init__(self, width: int = 8, depth: int = 3, tied: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(20, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.mix = nn.Conv1d(width, width, 3, padding=1)
        self.proj_out = nn.Linear(width, 20, bias=False)
        if tied:
            self.proj_out.weight = self.words.weight
        self.register_buffer("scale", torch.full((1,), 1.001))
        self.register_buffer("order", torch.arange(width))
        self.register_buffer("mask", torch.arange(width) % 5 != 0)

    def forward(self, tokens: Tensor) -> Tensor:
        x = (self.words(tokens) * self.scale)[..., self.order] * self.mask
        for block in self.blocks:
            x = block(x)
        return self.proj_out(self.mix(x.transpose(1, 2)).transpose(1, 2))


TOKENS = torch.arange(12).reshape(2, 6)


def model(dtype: torch.dtype = torch.bfloat16, **more: object) -> Model:
    torch.manual_seed(0)
    return Model(**more).to(dtype).eval()


def rounded(of: nn.Module, through: torch.dtype = FP8, *, keep: tuple[str, ...] = ("norm",)) -> nn.Module:
    """A copy with the weights of matrices, and the biases beside them, rounded once by hand."""
    twin = copy.deepcopy(of)
    for name, each in twin.named_parameters():
        if not any(word in name for word in keep):
            each.data = each.data.to(through).to(each.dtype)
    return twin


def dtypes(of: nn.Module) -> dict[str, torch.dtype]:
    return {name: each.dtype for name, each in of.state_dict().items()}


def nbytes(of: nn.Module) -> int:
    return sum(parameter.nbytes for parameter in of.parameters())
