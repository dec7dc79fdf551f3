"""Image models: FLUX.1-dev's transformer, SDXL's UNet, Stable Diffusion's autoencoder, vision transformers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from memviz.runner.knobs import knob
from memviz.runner.workloads.workload import (
    DTYPES,
    FromConfiguration,
    Published,
    RandomInputs,
    check_multiple,
    mode_knob,
    plural,
)

_MOST_TILES = 2.5
"""A side of a reduced picture, which is larger than a tile by part of one at least."""


class ImageModel(FromConfiguration):
    """Subclasses say what a side of a picture must be a multiple of, and why."""

    together: ClassVar[dict[str, tuple[str, ...]]] = {"resolution": ("height", "width")}
    side: ClassVar[int]
    """Pixels that a side is a multiple of."""
    why: ClassVar[str]
    batch: int
    height: int
    width: int

    def _check(self) -> None:
        for name, value in (("height", self.height), ("width", self.width)):
            check_multiple(name, value, self.side, why=self.why)

    def loss(self, output: Any) -> Tensor:
        mean: Tensor = output[0].mean()
        return mean

    def _pictures(self) -> str:
        return f"{plural(self.batch, 'picture')} of {self.height} x {self.width}"


def side_in_tiles(side: int, tile: int, *, reduced_tile: int, of: int) -> int:
    """Return the side of a reduced picture: the same number of tiles, up to two and a half, as a multiple of `of`.

    A side that one tile holds stays within the reduced tile, and a larger one goes beyond it.
    """
    share = min(side / tile, _MOST_TILES)
    reduced = round(share * reduced_tile / of) * of
    return min(max(reduced, of), reduced_tile) if side <= tile else max(reduced, reduced_tile + of)


def images_knob() -> Any:
    return knob(1, "pictures at once", least=1)


def side_knob(of: int, *, default: int = 1024, what: str = "picture") -> Any:
    return knob(default, f"of the {what}: a multiple of {of}", unit="pixels", least=1)


_VIT_PATCH = 16
_VIT_HEAD = 64
_VIT_CLASSES = 1000


@dataclass(frozen=True)
class _PublishedVit:
    heads: int
    layers: int


_SIZES = {"base": _PublishedVit(12, 12), "large": _PublishedVit(16, 24)}


@dataclass(frozen=True)
class Vit(FromConfiguration):
    name: ClassVar[str] = "vit"
    title: ClassVar[str] = "Vision transformer"
    sentence: ClassVar[str] = "Tells which of 1,000 classes a picture is of, from patches of 16 x 16 pixels."
    published: ClassVar[tuple[Published, ...]] = (
        Published({"size": "base"}, 86_567_656, "86M", "https://arxiv.org/abs/2010.11929"),
        Published({"size": "large"}, 304_326_632, "307M", "https://arxiv.org/abs/2010.11929"),
    )

    size: str = knob("base", "which published model", choices=tuple(_SIZES))
    batch: int = knob(64, "pictures at once", least=1)
    pixels: int = knob(224, "height and width of the picture: a multiple of 16", least=1)
    layers: int | None = knob(None, "transformer blocks; none means as published", least=1)
    narrow: int = knob(1, "divides the number of heads, and the width with it", choices=(1, 2, 4))
    mode: str = mode_knob("training")

    def _check(self) -> None:
        check_multiple("pixels", self.pixels, _VIT_PATCH, why="a patch is 16 pixels a side")

    @property
    def _published(self) -> _PublishedVit:
        return _SIZES[self.size]

    @property
    def tokens(self) -> int:
        """Patches, and one that stands for the whole picture."""
        return (self.pixels // _VIT_PATCH) ** 2 + 1

    def _model(self) -> nn.Module:
        from transformers import ViTConfig, ViTForImageClassification

        heads = self._published.heads // self.narrow
        model: nn.Module = ViTForImageClassification(
            ViTConfig(
                hidden_size=heads * _VIT_HEAD,
                num_hidden_layers=self.layers or self._published.layers,
                num_attention_heads=heads,
                intermediate_size=4 * heads * _VIT_HEAD,
                image_size=self.pixels,
                num_labels=_VIT_CLASSES,
                attn_implementation="sdpa",
            )
        )
        return model

    def inputs(self, device: torch.device, micro_batch: int = 0) -> dict[str, Any]:
        draw = RandomInputs(device, self.seed, micro_batch)
        pictures = draw.normal(self.batch, 3, self.pixels, self.pixels, dtype=DTYPES[self.dtype])
        classes = draw.whole(_VIT_CLASSES, self.batch)
        return {"pixel_values": pictures, "labels": classes} if self.training else {"pixel_values": pictures}

    def loss(self, output: Any) -> Tensor:
        loss: Tensor = output.loss if self.training else output.logits.mean()
        return loss

    def small(self) -> Self:
        return replace(
            self._at_most(batch=2, pixels=64), layers=min(self.layers or self._published.layers, 4), narrow=4
        )

    def _shapes(self) -> str:
        layers = plural(self.layers or self._published.layers, "layer")
        pictures = f"{plural(self.batch, 'picture')} of {self.pixels} x {self.pixels} ({self.tokens} tokens)"
        return f"{self.size}, {layers}, {pictures}"


_FLUX_CHANNELS = 64
_FLUX_POOLED = 768
_FLUX_PIXELS_PER_TOKEN = 16
_FLUX_GUIDANCE = 3.5


@dataclass(frozen=True)
class Flux(ImageModel):
    name: ClassVar[str] = "flux"
    title: ClassVar[str] = "FLUX.1-dev transformer"
    sentence: ClassVar[str] = (
        "Makes pictures: 19 blocks that treat text and picture apart, then 38 that treat them as one."
    )
    published: ClassVar[tuple[Published, ...]] = (
        Published({}, 11_901_408_320, "12B", "https://huggingface.co/black-forest-labs/FLUX.1-dev"),
    )
    side: ClassVar[int] = _FLUX_PIXELS_PER_TOKEN
    why: ClassVar[str] = "the autoencoder and the patches fold 16 pixels a side into one token"
    depths: ClassVar[tuple[str, ...]] = ("double_layers", "single_layers")

    batch: int = images_knob()
    height: int = side_knob(16)
    width: int = side_knob(16)
    text_tokens: int = knob(512, "tokens of the prompt, padding included", least=1)
    double_layers: int = knob(19, "blocks with text and picture apart; the published model has 19", least=1)
    single_layers: int = knob(38, "blocks with text and picture as one; the published model has 38", least=1)
    heads: int = knob(24, "attention heads of 128 channels; the published model has 24", least=1)
    text_width: int = knob(4096, "channels of the text encoder's output", least=1)
    guidance: bool = knob(True, "whether the guidance scale is an input, as in dev; schnell has none")

    @property
    def tokens(self) -> int:
        """Tokens of the picture alone, without text."""
        return (self.height // _FLUX_PIXELS_PER_TOKEN) * (self.width // _FLUX_PIXELS_PER_TOKEN)

    def _model(self) -> nn.Module:
        from diffusers import FluxTransformer2DModel

        model: nn.Module = FluxTransformer2DModel(
            in_channels=_FLUX_CHANNELS,
            num_layers=self.double_layers,
            num_single_layers=self.single_layers,
            num_attention_heads=self.heads,
            joint_attention_dim=self.text_width,
            pooled_projection_dim=_FLUX_POOLED,
            guidance_embeds=self.guidance,
        )
        return model

    def inputs(self, device: torch.device, micro_batch: int = 0) -> dict[str, Any]:
        draw, dtype = RandomInputs(device, self.seed, micro_batch), DTYPES[self.dtype]
        arguments: dict[str, Any] = {
            "hidden_states": draw.normal(self.batch, self.tokens, _FLUX_CHANNELS, dtype=dtype),
            "encoder_hidden_states": draw.normal(self.batch, self.text_tokens, self.text_width, dtype=dtype),
            "pooled_projections": draw.normal(self.batch, _FLUX_POOLED, dtype=dtype),
            "timestep": draw.uniform(self.batch, dtype=dtype),
            "img_ids": draw.made((self.tokens, 3), dtype, self._places),
            "txt_ids": draw.made((self.text_tokens, 3), dtype, lambda: torch.zeros(self.text_tokens, 3)),
        }
        if self.guidance:
            scale = torch.full((self.batch,), _FLUX_GUIDANCE)
            arguments["guidance"] = draw.made((self.batch,), torch.float32, lambda: scale)
        return arguments

    def _places(self) -> Tensor:
        """Row and column of every token of the picture; the first coordinate is the text's."""
        rows, columns = self.height // _FLUX_PIXELS_PER_TOKEN, self.width // _FLUX_PIXELS_PER_TOKEN
        places = torch.zeros(rows, columns, 3)
        places[..., 1] = torch.arange(rows)[:, None]
        places[..., 2] = torch.arange(columns)[None, :]
        return places.flatten(0, 1)

    def small(self) -> Self:
        return self._at_most(
            batch=2, height=128, width=128, text_tokens=16, double_layers=2, single_layers=4, heads=3, text_width=128
        )

    def _shapes(self) -> str:
        layers = f"{self.double_layers} + {self.single_layers} layers"
        tokens = f"{self.tokens:,} + {self.text_tokens} tokens"
        return f"{layers}, {self._pictures()} ({tokens})"


_SDXL_CHANNELS = 4
_SDXL_PIXELS_PER_LATENT = 8
_SDXL_LEVELS = 3
_SIZES_AND_CROPS = 6
_TIME_WIDTH = 256
_SDXL_HEAD = 64


@dataclass(frozen=True)
class Sdxl(ImageModel):
    name: ClassVar[str] = "sdxl"
    title: ClassVar[str] = "SDXL UNet"
    sentence: ClassVar[str] = "Makes pictures: convolutions at three sizes, with transformer blocks at the two smaller."
    published: ClassVar[tuple[Published, ...]] = (
        Published({}, 2_567_463_684, "2.6B", "https://arxiv.org/abs/2307.01952"),
    )
    side: ClassVar[int] = _SDXL_PIXELS_PER_LATENT * 2 ** (_SDXL_LEVELS - 1)
    why: ClassVar[str] = "the autoencoder folds 8 pixels a side into one, and the model halves that twice"
    depths: ClassVar[tuple[str, ...]] = ("depth",)

    batch: int = images_knob()
    height: int = side_knob(32)
    width: int = side_knob(32)
    text_tokens: int = knob(77, "tokens of the prompt, padding included", least=1)
    depth: int = knob(10, "transformer blocks at the smallest size; the published model has 10", least=2)
    channels: int = knob(320, "channels at the largest size; the published model has 320", least=64)
    text_width: int = knob(2048, "channels of both text encoders' output", least=1)

    def _check(self) -> None:
        super()._check()
        check_multiple("channels", self.channels, _SDXL_HEAD, why="an attention head has 64")

    def _model(self) -> nn.Module:
        from diffusers import UNet2DConditionModel

        widths = tuple(self.channels * 2**level for level in range(_SDXL_LEVELS))
        model: nn.Module = UNet2DConditionModel(
            sample_size=self.height // _SDXL_PIXELS_PER_LATENT,
            in_channels=_SDXL_CHANNELS,
            out_channels=_SDXL_CHANNELS,
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
            block_out_channels=widths,
            layers_per_block=2,
            transformer_layers_per_block=(1, 2, self.depth),
            attention_head_dim=tuple(width // _SDXL_HEAD for width in widths),
            cross_attention_dim=self.text_width,
            use_linear_projection=True,
            addition_embed_type="text_time",
            addition_time_embed_dim=_TIME_WIDTH,
            projection_class_embeddings_input_dim=self._pooled + _SIZES_AND_CROPS * _TIME_WIDTH,
        )
        return model

    @property
    def _pooled(self) -> int:
        """Channels of the larger text encoder."""
        return self.text_width * 5 // 8

    def inputs(self, device: torch.device, micro_batch: int = 0) -> dict[str, Any]:
        draw, dtype = RandomInputs(device, self.seed, micro_batch), DTYPES[self.dtype]
        sides = self.height // _SDXL_PIXELS_PER_LATENT, self.width // _SDXL_PIXELS_PER_LATENT
        return {
            "sample": draw.normal(self.batch, _SDXL_CHANNELS, *sides, dtype=dtype),
            "timestep": draw.whole(1000, self.batch),
            "encoder_hidden_states": draw.normal(self.batch, self.text_tokens, self.text_width, dtype=dtype),
            "added_cond_kwargs": {
                "text_embeds": draw.normal(self.batch, self._pooled, dtype=dtype),
                "time_ids": draw.made((self.batch, _SIZES_AND_CROPS), dtype, self._sizes_and_crops),
            },
        }

    def _sizes_and_crops(self) -> Tensor:
        sizes = torch.tensor([self.height, self.width, 0, 0, self.height, self.width])
        return sizes.repeat(self.batch, 1)

    def small(self) -> Self:
        smaller = self._at_most(batch=2, height=64, width=64, text_tokens=16, depth=2, text_width=128)
        return replace(smaller, channels=64)

    def _shapes(self) -> str:
        return self._pictures()


_VAE_CHANNELS = 4
_VAE_PIXELS_PER_LATENT = 8
_VAE_LEVELS = 4
_TILES = 4 * _VAE_PIXELS_PER_LATENT
_REDUCED_TILE = 64
_PARTS = ("decoder", "whole")


@dataclass(frozen=True)
class Vae(ImageModel):
    name: ClassVar[str] = "vae"
    title: ClassVar[str] = "Stable Diffusion autoencoder"
    sentence: ClassVar[str] = "Turns latents into pictures: few weights, and convolutions over every pixel."
    published: ClassVar[tuple[Published, ...]] = (
        Published({"part": "whole"}, 83_653_863, "84M", "https://huggingface.co/stabilityai/sd-vae-ft-mse"),
    )
    side: ClassVar[int] = _VAE_PIXELS_PER_LATENT
    why: ClassVar[str] = "the autoencoder folds 8 pixels a side into one"
    depths: ClassVar[tuple[str, ...]] = ()
    holds: ClassVar[tuple[str, ...] | None] = ("an autoencoder",)

    part: str = knob("decoder", "what runs: latents to pictures, or pictures to pictures", choices=_PARTS)
    batch: int = images_knob()
    height: int = side_knob(8)
    width: int = side_knob(8)
    channels: int = knob(128, "channels at full size; the published model has 128", least=32)
    tile: int = knob(
        512, "a side of a tile, if it works in tiles; the published model has 512", unit="pixels", least=32
    )

    def _check(self) -> None:
        super()._check()
        check_multiple("tile", self.tile, _TILES, why="tiles overlap by a quarter, in latents too")
        check_multiple("channels", self.channels, 32, why="its norms have 32 groups")

    def _model(self) -> nn.Module:
        from diffusers import AutoencoderKL

        from memviz.runner.workloads.autoencoders import ImageDecoder

        widths = tuple(self.channels * factor for factor in (1, 2, 4, 4))
        kind = AutoencoderKL if self.part == "whole" else ImageDecoder
        model: nn.Module = kind(
            in_channels=3,
            out_channels=3,
            down_block_types=("DownEncoderBlock2D",) * _VAE_LEVELS,
            up_block_types=("UpDecoderBlock2D",) * _VAE_LEVELS,
            block_out_channels=widths,
            layers_per_block=2,
            latent_channels=_VAE_CHANNELS,
            sample_size=self.tile,
        )
        return model

    def inputs(self, device: torch.device, micro_batch: int = 0) -> dict[str, Any]:
        draw, dtype = RandomInputs(device, self.seed, micro_batch), DTYPES[self.dtype]
        if self.part == "whole":
            return {"sample": draw.normal(self.batch, 3, self.height, self.width, dtype=dtype)}
        sides = self.height // _VAE_PIXELS_PER_LATENT, self.width // _VAE_PIXELS_PER_LATENT
        return {"latents": draw.normal(self.batch, _VAE_CHANNELS, *sides, dtype=dtype)}

    def loss(self, output: Any) -> Tensor:
        picture = output[0] if isinstance(output, dict | tuple) else output
        mean: Tensor = picture.square().mean()
        return mean

    def small(self) -> Self:
        sides: dict[str, Any] = {
            name: side_in_tiles(getattr(self, name), self.tile, reduced_tile=_REDUCED_TILE, of=self.side)
            for name in ("height", "width")
        }
        return replace(self._at_most(batch=2), **sides, tile=_REDUCED_TILE, channels=32)

    def _shapes(self) -> str:
        return f"{self.part}, {self._pictures()}"
