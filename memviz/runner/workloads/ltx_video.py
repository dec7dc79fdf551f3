"""LTX-Video's transformer through diffusers' own class, as the seed of gradient checkpointing trains it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import nn

from memviz.runner.knobs import knob
from memviz.runner.workloads.random_inputs import RandomInputs
from memviz.runner.workloads.video_model import VideoModel
from memviz.runner.workloads.workload import DTYPES, Published, mode_knob, plural

_CHANNELS = 128
_HEAD = 64


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
            in_channels=_CHANNELS,
            out_channels=_CHANNELS,
            num_attention_heads=self.heads,
            attention_head_dim=_HEAD,
            cross_attention_dim=self.heads * _HEAD,
            num_layers=self.layers,
            caption_channels=self.text_width,
        )
        return model

    def inputs(self, device: torch.device, micro_batch: int = 0) -> dict[str, Any]:
        draw, dtype = RandomInputs(device, self.seed, micro_batch), DTYPES[self.dtype]
        frames, height, width = self.latents
        return {
            "hidden_states": draw.normal(self.batch, self.tokens, _CHANNELS, dtype=dtype),
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
