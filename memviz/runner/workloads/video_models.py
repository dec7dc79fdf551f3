"""Video transformers through diffusers' own classes: CogVideoX, HunyuanVideo, LTX-Video and Wan 2.1."""

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

VIDEO_SIDES = {"resolution": ("height", "width"), "video": ("frames", "height", "width")}


class VideoModel(FromConfiguration):
    """Subclasses say how their autoencoder folds, where it is not as most do."""

    together: ClassVar[dict[str, tuple[str, ...]]] = VIDEO_SIDES
    frames_per_latent: ClassVar[int] = 4
    """After the first, which is folded alone."""
    pixels_per_latent: ClassVar[int] = 8
    patch: ClassVar[int] = 2
    """Latents a side that make one token."""
    batch: int
    frames: int
    height: int
    width: int

    def _check(self) -> None:
        why = f"the autoencoder folds {self.frames_per_latent} frames after the first into one latent"
        check_multiple("frames", self.frames, self.frames_per_latent, plus=1, why=why)
        side = self.pixels_per_latent * self.patch
        why = f"the autoencoder folds {side} pixels a side into one latent"
        if self.patch > 1:
            why = f"the autoencoder and the patches fold {side} pixels a side into one token"
        for name, value in (("height", self.height), ("width", self.width)):
            check_multiple(name, value, side, why=why)

    @property
    def latents(self) -> tuple[int, int, int]:
        """Frames, height and width after the autoencoder."""
        frames = (self.frames - 1) // self.frames_per_latent + 1
        return frames, self.height // self.pixels_per_latent, self.width // self.pixels_per_latent

    @property
    def tokens(self) -> int:
        """Tokens of the video alone, without text."""
        frames, height, width = self.latents
        return frames * (height // self.patch) * (width // self.patch)

    def loss(self, output: Any) -> Tensor:
        mean: Tensor = output[0].mean()
        return mean

    def _videos(self) -> str:
        return f"{plural(self.batch, 'video')} of {self.frames} x {self.height} x {self.width}"


_COGVIDEOX_CHANNELS = 16
_SMALL_HEADS = 16


@dataclass(frozen=True)
class _PublishedCogVideoX:
    heads: int
    layers: int
    rotary: bool
    """Positions turn queries and keys (5b), or are added once at the start (2b)."""


_COGVIDEOX_SIZES = {"2b": _PublishedCogVideoX(30, 30, rotary=False), "5b": _PublishedCogVideoX(48, 42, rotary=True)}


@dataclass(frozen=True)
class CogVideoX(VideoModel):
    name: ClassVar[str] = "cogvideox"
    title: ClassVar[str] = "CogVideoX transformer"
    sentence: ClassVar[str] = "Makes video: text and video in one long sequence, all of it attending to all of it."
    published: ClassVar[tuple[Published, ...]] = (
        Published({"size": "2b"}, 1_693_783_872, "2B", "https://huggingface.co/zai-org/CogVideoX-2b"),
        Published({"size": "5b"}, 5_570_283_072, "5B", "https://huggingface.co/zai-org/CogVideoX-5b"),
    )

    size: str = knob("2b", "which published model", choices=tuple(_COGVIDEOX_SIZES))
    batch: int = knob(1, "videos at once", least=1)
    frames: int = knob(49, "frames of the video: 1 more than a multiple of 4", least=1)
    height: int = knob(480, "of the video: a multiple of 16", unit="pixels", least=1)
    width: int = knob(720, "of the video: a multiple of 16", unit="pixels", least=1)
    text_tokens: int = knob(226, "tokens of the prompt, padding included", least=1)
    layers: int | None = knob(None, "transformer blocks; none means as published: 30 and 42", least=1)
    heads: int | None = knob(None, "attention heads; none means as published: 30 and 48", least=1)
    head_width: int = knob(64, "channels of an attention head: a multiple of 16", least=16)
    text_width: int = knob(4096, "channels of the text encoder's output", least=1)

    def _check(self) -> None:
        super()._check()
        check_multiple("head_width", self.head_width, 16, why="frame, row and column each turn an even part of it")

    @property
    def _published(self) -> _PublishedCogVideoX:
        return _COGVIDEOX_SIZES[self.size]

    def _model(self) -> nn.Module:
        from diffusers import CogVideoXTransformer3DModel

        _, height, width = self.latents
        model: nn.Module = CogVideoXTransformer3DModel(
            num_attention_heads=self.heads or self._published.heads,
            attention_head_dim=self.head_width,
            num_layers=self.layers or self._published.layers,
            text_embed_dim=self.text_width,
            max_text_seq_length=self.text_tokens,
            sample_height=height,
            sample_width=width,
            sample_frames=self.frames,
            use_rotary_positional_embeddings=self._published.rotary,
        )
        # The table of positions is computed in float64; `from_pretrained` converts it with the weights.
        for module in model.modules():
            for name, table in module.named_buffers(recurse=False):
                setattr(module, name, table.to(DTYPES[self.dtype]))
        return model

    def inputs(self, device: torch.device, micro_batch: int = 0) -> dict[str, Any]:
        draw, dtype = RandomInputs(device, self.seed, micro_batch), DTYPES[self.dtype]
        frames, height, width = self.latents
        arguments: dict[str, Any] = {
            "hidden_states": draw.normal(self.batch, frames, _COGVIDEOX_CHANNELS, height, width, dtype=dtype),
            "encoder_hidden_states": draw.normal(self.batch, self.text_tokens, self.text_width, dtype=dtype),
            "timestep": draw.whole(1000, self.batch),
        }
        if self._published.rotary:
            shape = self.tokens, self.head_width
            cosines = draw.made(shape, torch.float32, lambda: self._turns()[0])
            sines = draw.made(shape, torch.float32, lambda: self._turns()[1])
            arguments["image_rotary_emb"] = cosines, sines
        return arguments

    def _turns(self) -> tuple[Tensor, Tensor]:
        """Cosine and sine of every token's place in the video, which the pipeline hands to the model."""
        from diffusers.models.embeddings import get_3d_rotary_pos_embed

        frames, height, width = self.latents
        grid = height // self.patch, width // self.patch
        turns: tuple[Tensor, Tensor] = get_3d_rotary_pos_embed(self.head_width, ((0, 0), grid), grid, frames)
        return turns

    def small(self) -> Self:
        """Heads are halved, so that whatever divided the inner size still does."""
        heads = self.heads or self._published.heads
        while heads > _SMALL_HEADS and heads % 2 == 0:
            heads //= 2
        smaller = self._at_most(batch=2, frames=9, height=64, width=96, text_tokens=16, text_width=128)
        return replace(smaller, layers=min(self.layers or self._published.layers, 4), heads=heads, head_width=16)

    def _shapes(self) -> str:
        layers = plural(self.layers or self._published.layers, "layer")
        tokens = f"{self.tokens:,} + {self.text_tokens} tokens"
        return f"{self.size}, {layers}, {self._videos()} ({tokens})"


_HUNYUAN_CHANNELS = 16
_HUNYUAN_POOLED = 768
_HUNYUAN_GUIDANCE = 6000.0


@dataclass(frozen=True)
class HunyuanVideo(VideoModel):
    name: ClassVar[str] = "hunyuan_video"
    title: ClassVar[str] = "HunyuanVideo transformer"
    sentence: ClassVar[str] = "Makes video: 20 blocks that treat text and video apart, then 40 that treat them as one."
    published: ClassVar[tuple[Published, ...]] = (
        Published({}, 12_821_012_544, "13B", "https://github.com/Tencent-Hunyuan/HunyuanVideo"),
    )
    depths: ClassVar[tuple[str, ...]] = ("double_layers", "single_layers")

    batch: int = knob(1, "videos at once", least=1)
    frames: int = knob(33, "frames of the video: 1 more than a multiple of 4", least=1)
    height: int = knob(320, "of the video: a multiple of 16", unit="pixels", least=1)
    width: int = knob(512, "of the video: a multiple of 16", unit="pixels", least=1)
    text_tokens: int = knob(256, "tokens of the prompt, padding included", least=1)
    double_layers: int = knob(20, "blocks with text and video apart; the published model has 20", least=1)
    single_layers: int = knob(40, "blocks with text and video as one; the published model has 40", least=1)
    heads: int = knob(24, "attention heads of 128 channels; the published model has 24", least=1)
    text_width: int = knob(4096, "channels of the text encoder's output", least=1)

    def _model(self) -> nn.Module:
        from diffusers import HunyuanVideoTransformer3DModel

        model: nn.Module = HunyuanVideoTransformer3DModel(
            in_channels=_HUNYUAN_CHANNELS,
            out_channels=_HUNYUAN_CHANNELS,
            num_attention_heads=self.heads,
            num_layers=self.double_layers,
            num_single_layers=self.single_layers,
            text_embed_dim=self.text_width,
            pooled_projection_dim=_HUNYUAN_POOLED,
        )
        return model

    def inputs(self, device: torch.device, micro_batch: int = 0) -> dict[str, Any]:
        draw, dtype = RandomInputs(device, self.seed, micro_batch), DTYPES[self.dtype]
        here, guidance = (self.batch, self.text_tokens), torch.full((self.batch,), _HUNYUAN_GUIDANCE, device="cpu")
        return {
            "hidden_states": draw.normal(self.batch, _HUNYUAN_CHANNELS, *self.latents, dtype=dtype),
            "timestep": draw.whole(1000, self.batch),
            "encoder_hidden_states": draw.normal(*here, self.text_width, dtype=dtype),
            "encoder_attention_mask": draw.made(here, torch.int64, lambda: torch.ones(here, dtype=torch.int64)),
            "pooled_projections": draw.normal(self.batch, _HUNYUAN_POOLED, dtype=dtype),
            "guidance": draw.made((self.batch,), dtype, lambda: guidance),
        }

    def small(self) -> Self:
        return self._at_most(
            batch=2,
            frames=5,
            height=64,
            width=96,
            text_tokens=16,
            double_layers=2,
            single_layers=4,
            heads=3,
            text_width=128,
        )

    def _shapes(self) -> str:
        layers = f"{self.double_layers} + {self.single_layers} layers"
        tokens = f"{self.tokens:,} + {self.text_tokens} tokens"
        return f"{layers}, {self._videos()} ({tokens})"


_LTX_CHANNELS = 128
_LTX_HEAD = 64


@dataclass(frozen=True)
class LtxVideo(VideoModel):
    name: ClassVar[str] = "ltx_video"
    title: ClassVar[str] = "LTX-Video transformer"
    sentence: ClassVar[str] = "Makes video: every latent of 8 frames by 32 by 32 pixels is a token."
    published: ClassVar[tuple[Published, ...]] = (
        Published({}, 1_923_385_472, "1.9B", "https://arxiv.org/abs/2501.00103"),
    )
    frames_per_latent: ClassVar[int] = 8
    pixels_per_latent: ClassVar[int] = 32
    patch: ClassVar[int] = 1

    batch: int = knob(1, "videos at once", least=1)
    frames: int = knob(81, "frames of the video: 1 more than a multiple of 8", least=1)
    height: int = knob(512, "of the video: a multiple of 32", unit="pixels", least=1)
    width: int = knob(768, "of the video: a multiple of 32", unit="pixels", least=1)
    text_tokens: int = knob(128, "tokens of the prompt, padding included", least=1)
    layers: int = knob(28, "transformer blocks; the published model has 28", least=1)
    heads: int = knob(32, "attention heads of 64 channels; the published model has 32", least=1)
    text_width: int = knob(4096, "channels of the text encoder's output", least=1)
    mode: str = mode_knob("training")

    def _model(self) -> nn.Module:
        from diffusers import LTXVideoTransformer3DModel

        model: nn.Module = LTXVideoTransformer3DModel(
            in_channels=_LTX_CHANNELS,
            out_channels=_LTX_CHANNELS,
            num_attention_heads=self.heads,
            attention_head_dim=_LTX_HEAD,
            cross_attention_dim=self.heads * _LTX_HEAD,
            num_layers=self.layers,
            caption_channels=self.text_width,
        )
        return model

    def inputs(self, device: torch.device, micro_batch: int = 0) -> dict[str, Any]:
        draw, dtype = RandomInputs(device, self.seed, micro_batch), DTYPES[self.dtype]
        frames, height, width = self.latents
        return {
            "hidden_states": draw.normal(self.batch, self.tokens, _LTX_CHANNELS, dtype=dtype),
            "encoder_hidden_states": draw.normal(self.batch, self.text_tokens, self.text_width, dtype=dtype),
            "timestep": draw.whole(1000, self.batch),
            "encoder_attention_mask": draw.whole(2, self.batch, self.text_tokens, dtype=torch.bool),
            "num_frames": frames,
            "height": height,
            "width": width,
        }

    def small(self) -> Self:
        return self._at_most(
            batch=2, frames=17, height=128, width=192, text_tokens=16, layers=4, heads=4, text_width=128
        )

    def _shapes(self) -> str:
        return f"{plural(self.layers, 'layer')}, {self._videos()} ({self.tokens:,} tokens)"


_WAN_CHANNELS = 16
_WAN_HEAD = 128


@dataclass(frozen=True)
class _PublishedWan:
    heads: int
    layers: int
    inner: int


WAN_SIZES = {"1.3b": _PublishedWan(12, 30, 8960), "14b": _PublishedWan(40, 40, 13824)}


@dataclass(frozen=True)
class Wan(VideoModel):
    name: ClassVar[str] = "wan"
    title: ClassVar[str] = "Wan 2.1 transformer"
    sentence: ClassVar[str] = "Makes video: long sequences of video that attend to each other and look at the text."
    published: ClassVar[tuple[Published, ...]] = (
        Published({"size": "1.3b"}, 1_418_996_800, "1.3B", "https://github.com/Wan-Video/Wan2.1"),
        Published({"size": "14b"}, 14_288_491_584, "14B", "https://github.com/Wan-Video/Wan2.1"),
    )

    size: str = knob("1.3b", "which published model", choices=tuple(WAN_SIZES))
    batch: int = knob(1, "videos at once", least=1)
    frames: int = knob(81, "frames of the video: 1 more than a multiple of 4", least=1)
    height: int = knob(480, "of the video: a multiple of 16", unit="pixels", least=1)
    width: int = knob(832, "of the video: a multiple of 16", unit="pixels", least=1)
    text_tokens: int = knob(512, "tokens of the prompt, padding included", least=1)
    layers: int | None = knob(None, "transformer blocks; none means as published: 30 and 40", least=1)
    narrow: int = knob(1, "divides heads and inner channels", choices=(1, 2, 4))
    text_width: int = knob(4096, "channels of the text encoder's output", least=1)

    @property
    def _published(self) -> _PublishedWan:
        return WAN_SIZES[self.size]

    @property
    def depth(self) -> int:
        return self.layers or self._published.layers

    def _model(self) -> nn.Module:
        from diffusers import WanTransformer3DModel

        model: nn.Module = WanTransformer3DModel(
            num_attention_heads=self._published.heads // self.narrow,
            attention_head_dim=_WAN_HEAD,
            in_channels=_WAN_CHANNELS,
            out_channels=_WAN_CHANNELS,
            text_dim=self.text_width,
            ffn_dim=self._published.inner // self.narrow,
            num_layers=self.depth,
        )
        return model

    def inputs(self, device: torch.device, micro_batch: int = 0) -> dict[str, Any]:
        draw, dtype = RandomInputs(device, self.seed, micro_batch), DTYPES[self.dtype]
        return {
            "hidden_states": draw.normal(self.batch, _WAN_CHANNELS, *self.latents, dtype=dtype),
            "timestep": draw.whole(1000, self.batch),
            "encoder_hidden_states": draw.normal(self.batch, self.text_tokens, self.text_width, dtype=dtype),
        }

    def small(self) -> Self:
        smaller = self._at_most(batch=2, frames=5, height=64, width=96, text_tokens=16, text_width=128)
        return replace(smaller, layers=min(self.depth, 4), narrow=4)

    def _shapes(self) -> str:
        layers = plural(self.depth, "layer")
        tokens = f"{self.tokens:,} + {self.text_tokens} tokens"
        return f"{self.size}, {layers}, {self._videos()} ({tokens})"
