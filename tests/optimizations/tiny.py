"""Small models of each kind that optimizations meet, with random weights, and what one training step gives."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

# Set before either library is imported: no test may access a hub.
os.environ["HF_HUB_OFFLINE"] = "1"

Loss = Callable[[nn.Module], Tensor]


class Block(nn.Module):
    """A feed-forward with a residual, which counts its calls and records its input's strides."""

    def __init__(self, width: int = 8, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)
        self.strides: list[tuple[int, ...]] = []

    def forward(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
        self.strides.append(x.stride())
        inner = torch.nn.functional.gelu(self.up(self.norm(x)))
        inner = inner if scale is None else inner * scale
        return x + self.dropout(self.down(inner))

    @property
    def runs(self) -> int:
        return len(self.strides)


class Stack(nn.Module):
    def __init__(self, depth: int = 5, width: int = 8, dropout: float = 0.0) -> None:
        super().__init__()
        self.first = nn.Linear(width, width)
        self.blocks = nn.ModuleList(Block(width, dropout) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return x

    @property
    def runs(self) -> list[int]:
        return [block.runs for block in self.blocks]


@dataclass(frozen=True)
class Case:
    model: nn.Module
    loss: Loss


def stack(dropout: float = 0.3) -> Case:
    torch.manual_seed(0)
    x = torch.randn(3, 6, 8)
    return Case(Stack(dropout=dropout), lambda model: model(x).square().mean())


def ltx() -> Case:
    from diffusers import LTXVideoTransformer3DModel

    torch.manual_seed(0)
    heads: dict[str, Any] = {"num_attention_heads": 2, "attention_head_dim": 16, "cross_attention_dim": 32}
    model = LTXVideoTransformer3DModel(in_channels=8, out_channels=8, num_layers=4, caption_channels=16, **heads)
    inputs = {
        "hidden_states": torch.randn(1, 32, 8),
        "encoder_hidden_states": torch.randn(1, 6, 16),
        "timestep": torch.tensor([5]),
        "encoder_attention_mask": torch.ones(1, 6, dtype=torch.bool),
        "num_frames": 2,
        "height": 4,
        "width": 4,
    }
    return Case(model, lambda model: model(**inputs)[0].mean())


def gpt2(**more: Any) -> Case:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_embd": 32, "n_head": 2, "n_layer": 4, "vocab_size": 64, "n_positions": 32}
    return _language_model(GPT2LMHeadModel, GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, **more))


def llama(**more: Any) -> Case:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4, "vocab_size": 64}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    return _language_model(LlamaForCausalLM, LlamaConfig(**{**sizes, **heads, **more}))


def mixtral() -> Case:
    """Adds a loss of its router, and gives its loss function the vocabulary's size by position."""
    from transformers import MixtralConfig, MixtralForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 64}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 4}
    return _language_model(MixtralForCausalLM, MixtralConfig(**sizes, **heads, output_router_logits=True))


def _language_model(kind: Any, config: Any) -> Case:
    torch.manual_seed(0)
    tokens = torch.arange(20).reshape(2, 10)
    model = kind(config)
    model.train()
    return Case(model, lambda model: model(input_ids=tokens, labels=tokens).loss)


def one_step(model: nn.Module, loss: Loss) -> dict[str, Tensor]:
    """The loss and every gradient, from the same random numbers each time."""
    model.zero_grad()
    torch.manual_seed(7)
    value = loss(model)
    value.backward()
    gradients = {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}
    return {"loss": value.detach(), **gradients}


def different(one: dict[str, Tensor], other: dict[str, Tensor]) -> list[str]:
    """Return the names of tensors that are not bitwise equal."""
    assert one.keys() == other.keys()
    return [name for name in one if not torch.equal(one[name], other[name])]


def bert(**more: Any) -> Case:
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4, "vocab_size": 64}
    model = BertForMaskedLM(BertConfig(**sizes, num_attention_heads=4, **more)).train()
    tokens = torch.arange(20).reshape(2, 10)
    return Case(model, lambda model: model(input_ids=tokens, labels=tokens).loss)


def vit(**more: Any) -> Case:
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4, "image_size": 16, "patch_size": 4}
    model = ViTForImageClassification(ViTConfig(**sizes, num_attention_heads=4, **more)).train()
    pictures = torch.randn(2, 3, 16, 16)
    return Case(model, lambda model: model(pixel_values=pictures).logits.square().mean())


def flux() -> Case:
    from diffusers import FluxTransformer2DModel

    torch.manual_seed(0)
    heads: dict[str, Any] = {"attention_head_dim": 16, "num_attention_heads": 2, "axes_dims_rope": (4, 4, 8)}
    depths: dict[str, Any] = {"num_layers": 1, "num_single_layers": 3}
    model = FluxTransformer2DModel(
        in_channels=4, joint_attention_dim=16, pooled_projection_dim=8, guidance_embeds=False, **heads, **depths
    )
    inputs = {
        "hidden_states": torch.randn(2, 12, 4),
        "encoder_hidden_states": torch.randn(2, 5, 16),
        "pooled_projections": torch.randn(2, 8),
        "timestep": torch.tensor([0.5, 0.7]),
        "img_ids": torch.arange(36.0).reshape(12, 3) % 5,
        "txt_ids": torch.zeros(5, 3),
    }
    return Case(model, lambda model: model(**inputs)[0].square().mean())


def hunyuan_video() -> Case:
    from diffusers import HunyuanVideoTransformer3DModel

    torch.manual_seed(0)
    heads: dict[str, Any] = {"attention_head_dim": 16, "num_attention_heads": 2, "rope_axes_dim": (4, 4, 8)}
    depths: dict[str, Any] = {"num_layers": 1, "num_single_layers": 3, "num_refiner_layers": 1}
    model = HunyuanVideoTransformer3DModel(
        in_channels=4, out_channels=4, text_embed_dim=16, pooled_projection_dim=8, **heads, **depths
    )
    inputs = {
        "hidden_states": torch.randn(1, 4, 2, 4, 6),
        "timestep": torch.tensor([5]),
        "encoder_hidden_states": torch.randn(1, 5, 16),
        "encoder_attention_mask": torch.ones(1, 5, dtype=torch.long),
        "pooled_projections": torch.randn(1, 8),
        "guidance": torch.tensor([6.0]),
    }
    return Case(model, lambda model: model(**inputs)[0].square().mean())


def autoencoder() -> Case:
    """Pictures of 64 pixels a side, in tiles of 32 where it works in tiles."""
    from diffusers import AutoencoderKL

    torch.manual_seed(0)
    sizes: dict[str, Any] = {"block_out_channels": (8, 16), "norm_num_groups": 4, "latent_channels": 4}
    downs, ups = ("DownEncoderBlock2D",) * 2, ("UpDecoderBlock2D",) * 2
    model = AutoencoderKL(down_block_types=downs, up_block_types=ups, sample_size=32, **sizes)
    pictures = torch.randn(2, 3, 64, 64)
    return Case(model, lambda model: model(pictures)[0].square().mean())


def cache_of(output: Any) -> Any:
    """Return the KV cache of an output, named `cache` since transformers 5.24."""
    return next((output[name] for name in ("cache", "past_key_values") if name in set(output)), None)
