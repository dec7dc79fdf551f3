"""A fifth language model: LayerNorm, biases, torch's own attention with a mask, keys and values that are kept."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.truth.language_model import Sizes, split

_LOWEST = torch.finfo(torch.float32).min
_FIRST_PLACE = 2
"""Offset into the position embedding; the positions before it are for padding."""


class Attention(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.heads = sizes.heads
        self.key, self.value, self.query, self.out = (nn.Linear(sizes.width, sizes.width) for _ in range(4))

    def forward(self, x: Tensor, mask: Tensor, kept: list[Tensor]) -> Tensor:
        query = self.query(x) * (x.size(-1) // self.heads) ** -0.5
        query = split(query, self.heads)
        key, value = split(self.key(x), self.heads), split(self.value(x), self.heads)
        nothing = torch.empty(0, device=x.device)
        key, value = torch.cat([nothing, key], dim=-2), torch.cat([nothing, value], dim=-2)
        kept += [key, value]
        mixed = functional.scaled_dot_product_attention(query, key, value, mask, scale=1.0)
        mixed = mixed.transpose(1, 2).contiguous()
        return self.out(mixed.reshape(x.shape))


class Block(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.attention = Attention(sizes)
        self.before_attention = nn.LayerNorm(sizes.width)
        self.widen = nn.Linear(sizes.width, sizes.inner)
        self.narrow = nn.Linear(sizes.inner, sizes.width)
        self.before_widening = nn.LayerNorm(sizes.width)

    def forward(self, x: Tensor, mask: Tensor, kept: list[Tensor]) -> Tensor:
        first = x
        x = self.before_attention(x)
        x = self.attention(x, mask, kept)
        x = first + x
        second = x
        x = self.before_widening(x)
        x = self.widen(x)
        x = functional.relu(x)
        x = self.narrow(x)
        return second + x


class BiasedModel(nn.Module):
    def __init__(self, sizes: Sizes, places: int) -> None:
        super().__init__()
        self.words = nn.Embedding(sizes.vocabulary, sizes.width)
        self.places = nn.Embedding(places + _FIRST_PLACE, sizes.width)
        self.norm = nn.LayerNorm(sizes.width)
        self.blocks = nn.ModuleList(Block(sizes) for _ in range(sizes.layers))
        self.head = nn.Linear(sizes.width, sizes.vocabulary, bias=False)
        self.head.weight = self.words.weight

    def forward(self, words: Tensor, shown: Tensor) -> Tensor:
        """`shown` is 1 for words and 0 for what fills a line."""
        embedded = self.words(words)
        line = torch.arange(words.size(1), device=words.device)
        mask = _mask(shown, line)
        places = torch.cumsum(shown, dim=1)
        places = (places * shown - 1).long()
        placed = self.places(places + _FIRST_PLACE)
        x = embedded + placed
        kept: list[Tensor] = []
        for block in self.blocks:
            x = block(x, mask, kept)
        scores: Tensor = self.head(self.norm(x))
        return scores


def _mask(shown: Tensor, line: Tensor) -> Tensor:
    """Return the attention bias: zero where a token may attend, and the lowest number in all other positions."""
    all_shown = torch.all(shown == 1)
    del all_shown
    length = line.size(0)
    ahead = torch.full((length, length), _LOWEST, device=line.device)
    ahead = torch.triu(ahead, diagonal=1)
    ahead *= torch.arange(length, device=line.device) > line.reshape(-1, 1)
    mask = ahead[None, None].expand(shown.size(0), 1, -1, -1).clone()
    del ahead
    filling = mask + shown[:, None, None, :]
    filling = filling == 0
    mask[:, :, :, :length] = mask.masked_fill(filling, _LOWEST)
    del filling
    return mask.mul(~torch.all(mask == _LOWEST, dim=-1, keepdim=True))
