"""All of Wan 2.1 one part after the other: the text encoder, the transformer some times, and the autoencoder.

Each step looks at the prompt and then at none, one after the other, as diffusers' own pipeline does by default.
Of the autoencoder there is what makes video, one latent frame after the other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from memviz.runner.knobs import knob
from memviz.runner.workloads.pipeline_parts import (
    UMT5_WORDS,
    Parts,
    PipelineModel,
    encoded,
    tile_knob,
    umt5_encoder,
    words_of,
)
from memviz.runner.workloads.random_inputs import RandomInputs
from memviz.runner.workloads.video_model import VIDEO_SIDES
from memviz.runner.workloads.wan import SIZES, Wan

_GUIDANCE = 5.0


@dataclass(frozen=True)
class WanPipeline(PipelineModel):
    name: ClassVar[str] = "wan_pipeline"
    title: ClassVar[str] = "Wan 2.1 pipeline"
    sentence: ClassVar[str] = (
        "Makes video from words: a text encoder, the transformer twice a step, and the autoencoder in the end."
    )
    together: ClassVar[dict[str, tuple[str, ...]]] = VIDEO_SIDES
    depths: ClassVar[tuple[str, ...]] = ("layers", "text_layers")

    size: str = knob("1.3b", "which published model", choices=tuple(SIZES))
    batch: int = knob(1, "videos at once", least=1)
    frames: int = knob(81, "frames of the video: 1 more than a multiple of 4", least=1)
    height: int = knob(480, "of the video: a multiple of 16", unit="pixels", least=1)
    width: int = knob(832, "of the video: a multiple of 16", unit="pixels", least=1)
    text_tokens: int = knob(512, "tokens of the prompt, padding included", least=1)
    guided: bool = knob(True, "whether each step looks at the prompt and then at none")
    denoising: int = knob(2, "steps of the transformer; a real video takes 50 or so, with the same peak", least=1)
    layers: int | None = knob(None, "transformer blocks; none means as published: 30 and 40", least=1)
    text_layers: int = knob(24, "blocks of the text encoder; the published model has 24", least=1)
    narrow: int = knob(1, "divides heads and widths, and those of the text encoder twice", choices=(1, 2, 4))
    tile: int = tile_knob(256)

    def _denoiser(self) -> Wan:
        return self._alone(Wan, text_width=4096 // self.narrow**2)

    def _model(self) -> nn.Module:
        return Pipeline(
            steps=self.denoising,
            guided=self.guided,
            text_encoder=self._text_encoder(),
            transformer=self._denoiser()._model(),
            vae=self._autoencoder(),
        )

    def _text_encoder(self) -> nn.Module:
        return umt5_encoder(narrow=self.narrow**2, layers=self.text_layers)

    def _autoencoder(self) -> nn.Module:
        from memviz.runner.workloads.video_decoders import WanDecoder, in_tiles_of

        return in_tiles_of(WanDecoder(base_dim=96 // self.narrow), self.tile, self.tile // 4)

    def inputs(self, device: torch.device, micro_batch: int = 0) -> dict[str, Any]:
        draw, prompts = RandomInputs(device, self.seed, micro_batch), self.batch * (1 + self.guided)
        inner = self._denoiser().inputs(device, micro_batch)
        return {
            "prompts": draw.whole(words_of(UMT5_WORDS, self.narrow**2), prompts, self.text_tokens),
            # As the pipeline has them, whatever the transformer computes in.
            "latents": inner["hidden_states"].to(torch.float32, copy=True),
        }

    def small(self) -> Self:
        smaller = self._at_most(batch=2, frames=5, text_tokens=16, denoising=2, text_layers=2)
        layers = min(self._denoiser().depth, 2)
        return replace(smaller, **self._sides_in_tiles(32, of=16), layers=layers, narrow=4)

    def _shapes(self) -> str:
        alone = self._denoiser()
        tokens = f"{alone.tokens:,} + {self.text_tokens} tokens"
        return f"{self.size}, {alone._videos()} ({tokens}), {self._steps()}"


class Pipeline(Parts):
    """As diffusers' pipeline goes through its parts."""

    transformer: nn.Module

    def __init__(self, *, steps: int, guided: bool, **parts: nn.Module) -> None:
        super().__init__(steps=steps, **parts)
        self.guided = guided

    def forward(self, prompts: Tensor, latents: Tensor) -> Tensor:
        """`prompts` are what to show, then as many of what not to show, where each step looks at both."""
        texts = encoded(self.text_encoder, prompts, 1 + self.guided)
        for number in range(self.steps):
            given = latents.to(texts[0].dtype)
            time = torch.full((len(given),), 1000 - 1000 * number / self.steps, device=given.device)
            velocity = self.transformer(given, time, texts[0], return_dict=False)[0]
            if self.guided:
                without = self.transformer(given, time, texts[1], return_dict=False)[0]
                velocity = without + _GUIDANCE * (velocity - without)
            latents = latents - velocity / self.steps
        video: Tensor = self.vae(latents.to(texts[0].dtype))
        return video
