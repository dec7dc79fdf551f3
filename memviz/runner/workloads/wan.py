"""Wan 2.1's text-to-video transformer through diffusers' own class, in two published sizes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import nn

from memviz.runner.knobs import knob
from memviz.runner.workloads.random_inputs import RandomInputs
from memviz.runner.workloads.video_model import VideoModel
from memviz.runner.workloads.workload import DTYPES, Published, plural

_CHANNELS = 16
_HEAD = 128


@dataclass(frozen=True)
class _PublishedWan:
    heads: int
    layers: int
    inner: int


SIZES = {"1.3b": _PublishedWan(12, 30, 8960), "14b": _PublishedWan(40, 40, 13824)}


@dataclass(frozen=True)
class Wan(VideoModel):
    name: ClassVar[str] = "wan"
    title: ClassVar[str] = "Wan 2.1 transformer"
    sentence: ClassVar[str] = "Makes video: long sequences of video that attend to each other and look at the text."
    published: ClassVar[tuple[Published, ...]] = (
        Published({"size": "1.3b"}, 1_418_996_800, "1.3B", "https://github.com/Wan-Video/Wan2.1"),
        Published({"size": "14b"}, 14_288_491_584, "14B", "https://github.com/Wan-Video/Wan2.1"),
    )

    size: str = knob("1.3b", "which published model", choices=tuple(SIZES))
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
        return SIZES[self.size]

    @property
    def depth(self) -> int:
        return self.layers or self._published.layers

    def _model(self) -> nn.Module:
        from diffusers import WanTransformer3DModel

        model: nn.Module = WanTransformer3DModel(
            num_attention_heads=self._published.heads // self.narrow,
            attention_head_dim=_HEAD,
            in_channels=_CHANNELS,
            out_channels=_CHANNELS,
            text_dim=self.text_width,
            ffn_dim=self._published.inner // self.narrow,
            num_layers=self.depth,
        )
        return model

    def inputs(self, device: torch.device, micro_batch: int = 0) -> dict[str, Any]:
        draw, dtype = RandomInputs(device, self.seed, micro_batch), DTYPES[self.dtype]
        return {
            "hidden_states": draw.normal(self.batch, _CHANNELS, *self.latents, dtype=dtype),
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
