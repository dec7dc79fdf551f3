"""One small model with every part that optimizations change: blocks, attention, feed-forwards, a mixed dtype."""

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

WIDTH = 16


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.into(x).unflatten(-1, (3, 2, WIDTH // 2)).permute(2, 0, 3, 1, 4)
        return self.out(scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.ff = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm(x))
        return x + self.ff(x)


class Whole(nn.Module):
    """Weights that float8_e4m3fn holds exactly, so that storing them there changes nothing in any order of steps."""

    def __init__(self, depth: int = 2) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(depth))
        for parameter in self.parameters():
            parameter.data = parameter.data.to(torch.float8_e4m3fn).to(torch.float32)

    @property
    def dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x.to(self.dtype))
        for block in self.blocks:
            x = block(x)
        return x


class Lora(nn.Module):
    """Wraps a layer as adapters do: the layer is called as before, and something small is added."""

    def __init__(self, base: nn.Linear, dtype: torch.dtype) -> None:
        super().__init__()
        self.base = base
        torch.manual_seed(base.out_features)
        self.down = nn.Linear(base.in_features, 2, bias=False, dtype=dtype)
        self.up = nn.Linear(2, base.out_features, bias=False, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


def add_lora(model: nn.Module, where: str) -> nn.Module:
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear) and where in name:
            owner, _, last = name.rpartition(".")
            setattr(model.get_submodule(owner), last, Lora(module, model.dtype))
    return model


def every_second(model: nn.Module, *args: Tensor) -> Tensor:
    """Call the model under checkpointing, as published; tests look the function up by its name in a file."""
    from torch.utils.checkpoint import checkpoint

    return checkpoint(model.__call__, *args, use_reentrant=False)
