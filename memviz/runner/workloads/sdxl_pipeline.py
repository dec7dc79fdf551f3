"""All of SDXL one part after the other: two text encoders, the UNet some times, and the autoencoder.

Each step looks at the prompt and at none, in one batch of twice the size, as diffusers' own pipeline does by default.
Of the autoencoder there is what makes pictures.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from memviz.runner.knobs import knob
from memviz.runner.workloads.picture_model import pictures_knob, side_knob
from memviz.runner.workloads.pipeline_parts import (
    CLIP_WORDS,
    PROMPT,
    Parts,
    PipelineModel,
    clip_encoder,
    picture_decoder,
    tile_knob,
    words_of,
)
from memviz.runner.workloads.random_inputs import RandomInputs
from memviz.runner.workloads.sdxl import Sdxl

_SMALLER, _LARGER = 768, 1280
"""Channels of the text encoders."""
_HEAD = 64
_SCALE = 0.13025
"""Of the latents that the autoencoder is given."""
_GUIDANCE = 5.0


@dataclass(frozen=True)
class SdxlPipeline(PipelineModel):
    name: ClassVar[str] = "sdxl_pipeline"
    title: ClassVar[str] = "SDXL pipeline"
    sentence: ClassVar[str] = (
        "Makes pictures from words: two text encoders, the UNet once a step, and the autoencoder in the end."
    )
    together: ClassVar[dict[str, tuple[str, ...]]] = {"resolution": ("height", "width")}
    depths: ClassVar[tuple[str, ...]] = ("depth", "text_layers", "short_text_layers")

    batch: int = pictures_knob()
    height: int = side_knob(32)
    width: int = side_knob(32)
    guided: bool = knob(True, "whether each step looks at the prompt and at none, which doubles its batch")
    denoising: int = knob(2, "steps of the UNet; a real picture takes 50 or so, with the same peak", least=1)
    depth: int = knob(10, "transformer blocks at the smallest size; the published model has 10", least=2)
    text_layers: int = knob(32, "blocks of the larger text encoder; the published model has 32", least=2)
    short_text_layers: int = knob(12, "blocks of the smaller text encoder; the published model has 12", least=2)
    narrow: int = knob(1, "divides widths, heads and vocabularies", choices=(1, 4))
    tile: int = tile_knob()

    def _denoiser(self) -> Sdxl:
        text = (_SMALLER + _LARGER) // self.narrow
        channels, batch = 320 // self.narrow // 64 * 64, self.batch * (1 + self.guided)
        return self._alone(Sdxl, batch=batch, text_tokens=PROMPT, channels=channels, text_width=text)

    def _model(self) -> nn.Module:
        channels = 128 if self.narrow == 1 else 32
        return Pipeline(
            steps=self.denoising,
            guided=self.guided,
            text_encoder=self._text_encoder(_SMALLER, self.short_text_layers),
            text_encoder_2=self._text_encoder(_LARGER, self.text_layers),
            unet=self._denoiser()._model(),
            vae=picture_decoder(channels=channels, latent_channels=4, tile=self.tile, product=True),
        )

    def _text_encoder(self, width: int, layers: int) -> nn.Module:
        words, heads = words_of(CLIP_WORDS, self.narrow), width // self.narrow // _HEAD
        return clip_encoder(
            words=words, width=width // self.narrow, layers=layers, heads=heads, projected=width == _LARGER
        )

    def inputs(self, device: torch.device, micro_batch: int = 0) -> dict[str, Any]:
        draw, words = RandomInputs(device, self.seed, micro_batch), words_of(CLIP_WORDS, self.narrow)
        inner = self._denoiser().inputs(device, micro_batch)
        return {
            "prompts": draw.whole(words, self.batch * (1 + self.guided), PROMPT),
            "latents": inner["sample"][: self.batch].clone(),
            "time_ids": inner["added_cond_kwargs"]["time_ids"],
        }

    def small(self) -> Self:
        smaller = self._at_most(batch=2, denoising=2, depth=2, text_layers=2, short_text_layers=2)
        return replace(smaller, **self._sides_in_tiles(64, of=32), narrow=4)

    def _shapes(self) -> str:
        alone = replace(self._denoiser(), batch=self.batch)
        return f"{alone._pictures()}, {self._steps()}"


class Pipeline(Parts):
    """As diffusers' pipeline goes through its parts."""

    text_encoder_2: nn.Module
    unet: nn.Module

    def __init__(self, *, steps: int, guided: bool, **parts: nn.Module) -> None:
        super().__init__(steps=steps, **parts)
        self.guided = guided

    def forward(self, prompts: Tensor, latents: Tensor, time_ids: Tensor) -> Tensor:
        """`prompts` are what to draw, after as many of what not to draw where each step looks at both."""
        smaller = self.text_encoder(input_ids=prompts, output_hidden_states=True)
        larger = self.text_encoder_2(input_ids=prompts, output_hidden_states=True)
        text = torch.cat([smaller.hidden_states[-2], larger.hidden_states[-2]], dim=-1)
        conditions = {"text_embeds": larger.text_embeds, "time_ids": time_ids}
        del smaller, larger
        for number in range(self.steps):
            noise = self.unet(
                torch.cat([latents] * 2) if self.guided else latents,
                torch.tensor(1000 - 1000 * number // self.steps - 1, device=latents.device),
                encoder_hidden_states=text,
                added_cond_kwargs=conditions,
                return_dict=False,
            )[0]
            if self.guided:
                without, prompted = noise.chunk(2)
                noise = without + _GUIDANCE * (prompted - without)
            latents = latents - noise / self.steps
        picture: Tensor = self.vae(latents / _SCALE)
        return picture
