"""HunyuanVideo's transformer through diffusers' own class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import nn

from memviz.runner.knobs import knob
from memviz.runner.workloads.random_inputs import RandomInputs
from memviz.runner.workloads.video_model import VideoModel
from memviz.runner.workloads.workload import DTYPES, Published

_CHANNELS = 16
_POOLED = 768
_GUIDANCE = 6000.0


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
            in_channels=_CHANNELS,
            out_channels=_CHANNELS,
            num_attention_heads=self.heads,
            num_layers=self.double_layers,
            num_single_layers=self.single_layers,
            text_embed_dim=self.text_width,
            pooled_projection_dim=_POOLED,
        )
        return model

    def inputs(self, device: torch.device, micro_batch: int = 0) -> dict[str, Any]:
        draw, dtype = RandomInputs(device, self.seed, micro_batch), DTYPES[self.dtype]
        here, guidance = (self.batch, self.text_tokens), torch.full((self.batch,), _GUIDANCE, device="cpu")
        return {
            "hidden_states": draw.normal(self.batch, _CHANNELS, *self.latents, dtype=dtype),
            "timestep": draw.whole(1000, self.batch),
            "encoder_hidden_states": draw.normal(*here, self.text_width, dtype=dtype),
            "encoder_attention_mask": draw.made(here, torch.int64, lambda: torch.ones(here, dtype=torch.int64)),
            "pooled_projections": draw.normal(self.batch, _POOLED, dtype=dtype),
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
