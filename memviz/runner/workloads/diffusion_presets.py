"""Denoisers and autoencoders of diffusers in their published sizes: FLUX.1, SDXL, CogVideoX, HunyuanVideo, LTX, Wan."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from memviz.runner.request import knob
from memviz.runner.workloads.workload import (
    DTYPES,
    FromConfiguration,
    Published,
    RandomInputs,
    Shape,
    check_multiple,
    mode_knob,
    size_knob,
)
from memviz.units import counted


def images_knob() -> Any:
    return knob(1, "images per batch", least=1)


def videos_knob() -> Any:
    return knob(1, "videos per batch", least=1)


def side_knob(default: int, multiple: int, *, what: str = "video") -> Any:
    return knob(default, f"size of the {what}: a multiple of {multiple}", unit="pixels", least=1)


def frames_knob(default: int, multiple: int) -> Any:
    return knob(default, f"frames of the video: 1 more than a multiple of {multiple}", least=1)


def text_tokens_knob(default: int) -> Any:
    return knob(default, "prompt tokens, including padding", least=1)


def text_width_knob(default: int = 4096, *, whose: str = "the text encoder's") -> Any:
    return knob(default, f"channels of {whose} output", least=1)


def published_knob(default: int, what: str, *, least: int = 1) -> Any:
    return knob(default, f"{what}; the published model has {default}", least=least)


class DiffusionModel(FromConfiguration):
    """A model of diffusers that computes pictures. Its sides must be multiples of `side`, for the reason `why`."""

    together: ClassVar[dict[str, tuple[str, ...]]] = {"resolution": ("height", "width")}
    library = "diffusers"
    side: ClassVar[int] = 16
    """Pixels that a side is a multiple of."""
    why: ClassVar[str] = "autoencoder and patches map 16 x 16 pixels to one token"
    pixels_per_latent: ClassVar[int] = 8
    patch: ClassVar[int] = 2
    """Latents a side that make one token."""
    batch: int
    height: int
    width: int

    def _check(self) -> None:
        for name, value in (("height", self.height), ("width", self.width)):
            check_multiple(name, value, self.side, why=self.why)

    @property
    def latents(self) -> tuple[int, ...]:
        """Sides after the autoencoder."""
        return self.height // self.pixels_per_latent, self.width // self.pixels_per_latent

    @property
    def tokens(self) -> int:
        """Tokens of the picture or video, without text."""
        height, width = self.latents[-2:]
        return (height // self.patch) * (width // self.patch)

    def loss(self, output: Any) -> Tensor:
        mean: Tensor = output[0].mean()
        return mean

    def contents_text(self) -> str:
        return f"{counted(self.batch, 'image')} of {self.height} x {self.width}"

    def tokens_text(self) -> str:
        return f"{self.tokens:,} + {getattr(self, 'text_tokens', 0)} tokens"

    def _shapes(self) -> str:
        layers = " + ".join(str(self.setting(name)) for name in self.depths)
        layers += " layer" if layers == "1" else " layers"
        parts = [getattr(self, "size", ""), layers, f"{self.contents_text()} ({self.tokens_text()})"]
        return ", ".join(filter(None, parts))


class VideoModel(DiffusionModel):
    together = {"resolution": ("height", "width"), "video": ("frames", "height", "width")}
    frames_per_latent: ClassVar[int] = 4
    """After the first frame, which is folded alone."""
    most = {"batch": 2, "frames": 5, "height": 64, "width": 96, "text_tokens": 16, "text_width": 128}
    frames: int

    def _check(self) -> None:
        why = f"the autoencoder maps {self.frames_per_latent} frames after the first to one latent"
        check_multiple("frames", self.frames, self.frames_per_latent, plus=1, why=why)
        super()._check()

    @property
    def latents(self) -> tuple[int, ...]:
        """Frames and sides after the autoencoder."""
        return (self.frames - 1) // self.frames_per_latent + 1, *super().latents

    @property
    def tokens(self) -> int:
        return self.latents[0] * super().tokens

    def contents_text(self) -> str:
        return f"{counted(self.batch, 'video')} of {self.frames} x {self.height} x {self.width}"


_FLUX_CHANNELS, _FLUX_POOLED, _FLUX_GUIDANCE = 64, 768, 3.5


@dataclass(frozen=True)
class Flux(DiffusionModel):
    name = "flux"
    title = "FLUX.1-dev transformer"
    sentence = "Image generation: 19 double-stream and 38 single-stream blocks."
    published = (Published({}, 11_901_408_320, "12B", "https://huggingface.co/black-forest-labs/FLUX.1-dev"),)
    kind = "FluxTransformer2DModel"
    depths = ("double_layers", "single_layers")
    most = {
        "batch": 2,
        "height": 128,
        "width": 128,
        "text_tokens": 16,
        "double_layers": 2,
        "single_layers": 4,
        "heads": 3,
        "text_width": 128,
    }

    batch: int = images_knob()
    height: int = side_knob(1024, 16, what="image")
    width: int = side_knob(1024, 16, what="image")
    text_tokens: int = text_tokens_knob(512)
    double_layers: int = published_knob(19, "double-stream blocks (text and image separate)")
    single_layers: int = published_knob(38, "single-stream blocks (text and image joined)")
    heads: int = published_knob(24, "attention heads of 128 channels")
    text_width: int = text_width_knob()
    guidance: bool = knob(True, "guidance scale as input, as in dev; schnell has none")

    def _configuration(self) -> dict[str, Any]:
        return {
            "in_channels": _FLUX_CHANNELS,
            "num_layers": self.double_layers,
            "num_single_layers": self.single_layers,
            "num_attention_heads": self.heads,
            "joint_attention_dim": self.text_width,
            "pooled_projection_dim": _FLUX_POOLED,
            "guidance_embeds": self.guidance,
        }

    def _inputs(self, draw: RandomInputs) -> dict[str, Any]:
        arguments = {
            "hidden_states": draw.normal(self.batch, self.tokens, _FLUX_CHANNELS),
            "encoder_hidden_states": draw.normal(self.batch, self.text_tokens, self.text_width),
            "pooled_projections": draw.normal(self.batch, _FLUX_POOLED),
            "timestep": draw.uniform(self.batch),
            "img_ids": draw.place((self.tokens, 3), draw.dtype, self._positions),
            "txt_ids": draw.place((self.text_tokens, 3), draw.dtype, lambda: torch.zeros(self.text_tokens, 3)),
        }
        if self.guidance:
            scale = (self.batch,)
            arguments["guidance"] = draw.place(scale, torch.float32, lambda: torch.full(scale, _FLUX_GUIDANCE))
        return arguments

    def _positions(self) -> Tensor:
        """Row and column of every token of the picture; the first coordinate is the text's."""
        rows, columns = self.height // self.side, self.width // self.side
        positions = torch.zeros(rows, columns, 3)
        positions[..., 1] = torch.arange(rows)[:, None]
        positions[..., 2] = torch.arange(columns)[None, :]
        return positions.flatten(0, 1)


_SDXL_CHANNELS, SDXL_HEAD = 4, 64
_SIZES_AND_CROPS, _TIME_WIDTH = 6, 256


@dataclass(frozen=True)
class Sdxl(DiffusionModel):
    name = "sdxl"
    title = "SDXL UNet"
    sentence = "Image generation: convolutions at three sizes, with transformer blocks at the two smaller."
    published = (Published({}, 2_567_463_684, "2.6B", "https://arxiv.org/abs/2307.01952"),)
    kind = "UNet2DConditionModel"
    side = 32
    why = "the autoencoder maps 8 x 8 pixels to one latent, and the model halves the size twice"
    depths = ("depth",)
    most = {"batch": 2, "height": 64, "width": 64, "text_tokens": 16, "depth": 2, "text_width": 128}
    reduced = {"channels": 64}

    batch: int = images_knob()
    height: int = side_knob(1024, 32, what="image")
    width: int = side_knob(1024, 32, what="image")
    text_tokens: int = text_tokens_knob(77)
    depth: int = published_knob(10, "transformer blocks at the smallest size", least=2)
    channels: int = published_knob(320, "channels at the largest size", least=64)
    text_width: int = text_width_knob(2048, whose="both text encoders'")

    def _check(self) -> None:
        super()._check()
        check_multiple("channels", self.channels, SDXL_HEAD, why="an attention head has 64")

    def _configuration(self) -> dict[str, Any]:
        widths = tuple(self.channels * factor for factor in (1, 2, 4))
        return {
            "sample_size": self.height // self.pixels_per_latent,
            "in_channels": _SDXL_CHANNELS,
            "out_channels": _SDXL_CHANNELS,
            "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
            "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
            "block_out_channels": widths,
            "layers_per_block": 2,
            "transformer_layers_per_block": (1, 2, self.depth),
            "attention_head_dim": tuple(width // SDXL_HEAD for width in widths),
            "cross_attention_dim": self.text_width,
            "use_linear_projection": True,
            "addition_embed_type": "text_time",
            "addition_time_embed_dim": _TIME_WIDTH,
            "projection_class_embeddings_input_dim": self._pooled + _SIZES_AND_CROPS * _TIME_WIDTH,
        }

    @property
    def _pooled(self) -> int:
        """Channels of the larger text encoder."""
        return self.text_width * 5 // 8

    def _inputs(self, draw: RandomInputs) -> dict[str, Any]:
        sizes_and_crops = [self.height, self.width, 0, 0, self.height, self.width]
        return {
            "sample": draw.normal(self.batch, _SDXL_CHANNELS, *self.latents),
            "timestep": draw.integers(1000, self.batch),
            "encoder_hidden_states": draw.normal(self.batch, self.text_tokens, self.text_width),
            "added_cond_kwargs": {
                "text_embeds": draw.normal(self.batch, self._pooled),
                "time_ids": draw.place(
                    (self.batch, _SIZES_AND_CROPS),
                    draw.dtype,
                    lambda: torch.tensor(sizes_and_crops).repeat(self.batch, 1),
                ),
            },
        }

    def _shapes(self) -> str:
        return self.contents_text()


_VAE_CHANNELS = 4


def autoencoder_configuration(*, channels: int, latent_channels: int, tile: int) -> dict[str, Any]:
    """Arguments of Stable Diffusion's `AutoencoderKL` and of those made like it."""
    return {
        "down_block_types": ("DownEncoderBlock2D",) * 4,
        "up_block_types": ("UpDecoderBlock2D",) * 4,
        "block_out_channels": tuple(channels * factor for factor in (1, 2, 4, 4)),
        "layers_per_block": 2,
        "latent_channels": latent_channels,
        "sample_size": tile,
    }


def sides_in_tiles(model: Any, reduced_tile: int, multiple: int) -> dict[str, int]:
    """Return sides and tile of a reduced picture with as many tiles, up to two and a half a side.

    A side that one tile holds stays within the reduced tile, and a larger one exceeds it.
    """
    sides = {"tile": reduced_tile}
    for name in ("height", "width"):
        side = getattr(model, name)
        reduced = round(min(side / model.tile, 2.5) * reduced_tile / multiple) * multiple
        least, most = (multiple, reduced_tile) if side <= model.tile else (reduced_tile + multiple, reduced)
        sides[name] = max(min(reduced, most), least)
    return sides


@dataclass(frozen=True)
class Vae(DiffusionModel):
    name = "vae"
    title = "Stable Diffusion autoencoder"
    sentence = "Decodes latents to images: few weights, convolutions over all pixels."
    published = (Published({"part": "whole"}, 83_653_863, "84M", "https://huggingface.co/stabilityai/sd-vae-ft-mse"),)
    side = 8
    why = "the autoencoder maps 8 x 8 pixels to one latent"
    depths = ()
    holds = ("an autoencoder",)
    most = {"batch": 2}
    reduced = {"channels": 32}

    part: str = knob("decoder", "decode: latents to images, or encode and decode", choices=("decoder", "whole"))
    batch: int = images_knob()
    height: int = side_knob(1024, 8, what="image")
    width: int = side_knob(1024, 8, what="image")
    channels: int = published_knob(128, "channels at full size", least=32)
    tile: int = knob(512, "tile size for VAE tiling; the published model has 512", unit="pixels", least=32)

    def _check(self) -> None:
        super()._check()
        check_multiple("tile", self.tile, 32, why="tiles overlap by a quarter, also in latents")
        check_multiple("channels", self.channels, 32, why="its norms have 32 groups")

    def _model(self) -> Any:
        from diffusers import AutoencoderKL

        from memviz.runner.workloads.autoencoders import ImageDecoder

        kind = AutoencoderKL if self.part == "whole" else ImageDecoder
        sizes = autoencoder_configuration(channels=self.channels, latent_channels=_VAE_CHANNELS, tile=self.tile)
        return kind(in_channels=3, out_channels=3, **sizes)

    def _inputs(self, draw: RandomInputs) -> dict[str, Any]:
        if self.part == "whole":
            return {"sample": draw.normal(self.batch, 3, self.height, self.width)}
        return {"latents": draw.normal(self.batch, _VAE_CHANNELS, *self.latents)}

    def loss(self, output: Any) -> Tensor:
        picture = output[0] if isinstance(output, dict | tuple) else output
        mean: Tensor = picture.square().mean()
        return mean

    def small(self) -> Self:
        sides: dict[str, Any] = sides_in_tiles(self, 64, self.side)
        return replace(super().small(), **sides)

    def _shapes(self) -> str:
        return f"{self.part}, {self.contents_text()}"


@dataclass(frozen=True)
class CogVideoX(VideoModel):
    name = "cogvideox"
    title = "CogVideoX transformer"
    sentence = "Video generation: full attention over one sequence of text and video."
    published = (
        Published({"size": "2b"}, 1_693_783_872, "2B", "https://huggingface.co/zai-org/CogVideoX-2b"),
        Published({"size": "5b"}, 5_570_283_072, "5B", "https://huggingface.co/zai-org/CogVideoX-5b"),
    )
    kind = "CogVideoXTransformer3DModel"
    sizes = {"2b": Shape(heads=30, layers=30), "5b": Shape(heads=48, layers=42, rotary=True)}
    most = {**VideoModel.most, "frames": 9, "layers": 4}
    reduced = {"head_width": 16}

    size: str = size_knob(sizes)
    batch: int = videos_knob()
    frames: int = frames_knob(49, 4)
    height: int = side_knob(480, 16)
    width: int = side_knob(720, 16)
    text_tokens: int = text_tokens_knob(226)
    layers: int | None = knob(None, "transformer blocks (default: 30 and 42, as published)", least=1)
    heads: int | None = knob(None, "attention heads (default: 30 and 48, as published)", least=1)
    head_width: int = knob(64, "channels of an attention head: a multiple of 16", least=16)
    text_width: int = text_width_knob()

    def _check(self) -> None:
        super()._check()
        check_multiple("head_width", self.head_width, 16, why="frame, row and column each rotate an even part of it")

    def _configuration(self) -> dict[str, Any]:
        _, height, width = self.latents
        return {
            "num_attention_heads": self.setting("heads"),
            "attention_head_dim": self.head_width,
            "num_layers": self.setting("layers"),
            "text_embed_dim": self.text_width,
            "max_text_seq_length": self.text_tokens,
            "sample_height": height,
            "sample_width": width,
            "sample_frames": self.frames,
            "use_rotary_positional_embeddings": self.shape.rotary,
        }

    def _model(self) -> Any:
        model = super()._model()
        # The table of positions is computed in float64; `from_pretrained` converts it with the weights.
        for module in model.modules():
            for name, table in module.named_buffers(recurse=False):
                setattr(module, name, table.to(DTYPES[self.dtype]))
        return model

    def _inputs(self, draw: RandomInputs) -> dict[str, Any]:
        frames, height, width = self.latents
        arguments: dict[str, Any] = {
            "hidden_states": draw.normal(self.batch, frames, 16, height, width),
            "encoder_hidden_states": draw.normal(self.batch, self.text_tokens, self.text_width),
            "timestep": draw.integers(1000, self.batch),
        }
        if self.shape.rotary:
            arguments["image_rotary_emb"] = tuple(
                draw.place((self.tokens, self.head_width), torch.float32, lambda part=part: self._rotary()[part])  # type: ignore[misc]
                for part in (0, 1)
            )
        return arguments

    def _rotary(self) -> tuple[Tensor, Tensor]:
        """Cosine and sine of every token's position in the video, which the pipeline gives to the model."""
        from diffusers.models.embeddings import get_3d_rotary_pos_embed

        frames, height, width = self.latents
        grid = height // self.patch, width // self.patch
        rotary: tuple[Tensor, Tensor] = get_3d_rotary_pos_embed(self.head_width, ((0, 0), grid), grid, frames)
        return rotary

    def small(self) -> Self:
        """Heads are halved, so that what divided the inner size still does."""
        heads = self.setting("heads")
        while heads > 16 and heads % 2 == 0:
            heads //= 2
        return replace(super().small(), heads=heads)


_HUNYUAN_CHANNELS, _HUNYUAN_POOLED, _HUNYUAN_GUIDANCE = 16, 768, 6000.0


@dataclass(frozen=True)
class HunyuanVideo(VideoModel):
    name = "hunyuan_video"
    title = "HunyuanVideo transformer"
    sentence = "Video generation: 20 double-stream and 40 single-stream blocks."
    published = (Published({}, 12_821_012_544, "13B", "https://github.com/Tencent-Hunyuan/HunyuanVideo"),)
    kind = "HunyuanVideoTransformer3DModel"
    depths = ("double_layers", "single_layers")
    most = {**VideoModel.most, "double_layers": 2, "single_layers": 4, "heads": 3}

    batch: int = videos_knob()
    frames: int = frames_knob(33, 4)
    height: int = side_knob(320, 16)
    width: int = side_knob(512, 16)
    text_tokens: int = text_tokens_knob(256)
    double_layers: int = published_knob(20, "double-stream blocks (text and video separate)")
    single_layers: int = published_knob(40, "single-stream blocks (text and video joined)")
    heads: int = published_knob(24, "attention heads of 128 channels")
    text_width: int = text_width_knob()

    def _configuration(self) -> dict[str, Any]:
        return {
            "in_channels": _HUNYUAN_CHANNELS,
            "out_channels": _HUNYUAN_CHANNELS,
            "num_attention_heads": self.heads,
            "num_layers": self.double_layers,
            "num_single_layers": self.single_layers,
            "text_embed_dim": self.text_width,
            "pooled_projection_dim": _HUNYUAN_POOLED,
        }

    def _inputs(self, draw: RandomInputs) -> dict[str, Any]:
        mask, scale = (self.batch, self.text_tokens), (self.batch,)
        return {
            "hidden_states": draw.normal(self.batch, _HUNYUAN_CHANNELS, *self.latents),
            "timestep": draw.integers(1000, self.batch),
            "encoder_hidden_states": draw.normal(*mask, self.text_width),
            "encoder_attention_mask": draw.place(mask, torch.int64, lambda: torch.ones(mask, dtype=torch.int64)),
            "pooled_projections": draw.normal(self.batch, _HUNYUAN_POOLED),
            "guidance": draw.place(scale, draw.dtype, lambda: torch.full(scale, _HUNYUAN_GUIDANCE)),
        }


_LTX_CHANNELS, _LTX_HEAD = 128, 64


@dataclass(frozen=True)
class LtxVideo(VideoModel):
    name = "ltx_video"
    title = "LTX-Video transformer"
    sentence = "Video generation: one token per latent of 8 frames x 32 x 32 pixels."
    published = (Published({}, 1_923_385_472, "1.9B", "https://arxiv.org/abs/2501.00103"),)
    kind = "LTXVideoTransformer3DModel"
    frames_per_latent = 8
    pixels_per_latent = 32
    patch = 1
    side = 32
    why = "the autoencoder maps 32 x 32 pixels to one latent"
    most = {**VideoModel.most, "frames": 17, "height": 128, "width": 192, "layers": 4, "heads": 4}

    batch: int = videos_knob()
    frames: int = frames_knob(81, 8)
    height: int = side_knob(512, 32)
    width: int = side_knob(768, 32)
    text_tokens: int = text_tokens_knob(128)
    layers: int = published_knob(28, "transformer blocks")
    heads: int = published_knob(32, "attention heads of 64 channels")
    text_width: int = text_width_knob()
    mode: str = mode_knob("training")

    def _configuration(self) -> dict[str, Any]:
        return {
            "in_channels": _LTX_CHANNELS,
            "out_channels": _LTX_CHANNELS,
            "num_attention_heads": self.heads,
            "attention_head_dim": _LTX_HEAD,
            "cross_attention_dim": self.heads * _LTX_HEAD,
            "num_layers": self.layers,
            "caption_channels": self.text_width,
        }

    def _inputs(self, draw: RandomInputs) -> dict[str, Any]:
        frames, height, width = self.latents
        return {
            "hidden_states": draw.normal(self.batch, self.tokens, _LTX_CHANNELS),
            "encoder_hidden_states": draw.normal(self.batch, self.text_tokens, self.text_width),
            "timestep": draw.integers(1000, self.batch),
            "encoder_attention_mask": draw.integers(2, self.batch, self.text_tokens, dtype=torch.bool),
            "num_frames": frames,
            "height": height,
            "width": width,
        }

    def tokens_text(self) -> str:
        return f"{self.tokens:,} tokens"


_WAN_CHANNELS, _WAN_HEAD = 16, 128
WAN_SIZES = {"1.3b": Shape(heads=12, layers=30, inner=8960), "14b": Shape(heads=40, layers=40, inner=13824)}


@dataclass(frozen=True)
class Wan(VideoModel):
    name = "wan"
    title = "Wan 2.1 transformer"
    sentence = "Video generation: self-attention over long video sequences, cross-attention to text."
    published = (
        Published({"size": "1.3b"}, 1_418_996_800, "1.3B", "https://github.com/Wan-Video/Wan2.1"),
        Published({"size": "14b"}, 14_288_491_584, "14B", "https://github.com/Wan-Video/Wan2.1"),
    )
    kind = "WanTransformer3DModel"
    sizes = WAN_SIZES
    most = {**VideoModel.most, "layers": 4}
    reduced = {"narrow": 4}

    size: str = size_knob(sizes)
    batch: int = videos_knob()
    frames: int = frames_knob(81, 4)
    height: int = side_knob(480, 16)
    width: int = side_knob(832, 16)
    text_tokens: int = text_tokens_knob(512)
    layers: int | None = knob(None, "transformer blocks (default: 30 and 40, as published)", least=1)
    narrow: int = knob(1, "divisor of heads and inner channels", choices=(1, 2, 4))
    text_width: int = text_width_knob()

    def _configuration(self) -> dict[str, Any]:
        return {
            "num_attention_heads": self.shape.heads // self.narrow,
            "attention_head_dim": _WAN_HEAD,
            "in_channels": _WAN_CHANNELS,
            "out_channels": _WAN_CHANNELS,
            "text_dim": self.text_width,
            "ffn_dim": self.shape.inner // self.narrow,
            "num_layers": self.setting("layers"),
        }

    def _inputs(self, draw: RandomInputs) -> dict[str, Any]:
        return {
            "hidden_states": draw.normal(self.batch, _WAN_CHANNELS, *self.latents),
            "timestep": draw.integers(1000, self.batch),
            "encoder_hidden_states": draw.normal(self.batch, self.text_tokens, self.text_width),
        }
