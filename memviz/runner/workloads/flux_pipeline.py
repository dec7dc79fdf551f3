"""All of FLUX.1-dev one part after the other: two text encoders, the transformer some times, and the autoencoder.

Of the autoencoder there is what makes pictures. With the other half, 34 million weights, the parts weigh the 31.4 GiB
that diffusers' own comparison of quantized pipelines measured: https://huggingface.co/blog/diffusers-quantization
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from memviz.runner.knobs import knob
from memviz.runner.workloads.flux import Flux
from memviz.runner.workloads.picture_model import pictures_knob, side_knob
from memviz.runner.workloads.pipeline_parts import (
    CLIP_WORDS,
    PROMPT,
    T5_WORDS,
    Parts,
    PipelineModel,
    clip_encoder,
    picture_decoder,
    t5_encoder,
    tile_knob,
    words_of,
)
from memviz.runner.workloads.random_inputs import RandomInputs

_CHANNELS = 16
_PIXELS_PER_TOKEN = 16
_POOLED = 768
_SCALE, _SHIFT = 0.3611, 0.1159
"""Of the latents that the autoencoder is given."""


@dataclass(frozen=True)
class FluxPipeline(PipelineModel):
    name: ClassVar[str] = "flux_pipeline"
    title: ClassVar[str] = "FLUX.1-dev pipeline"
    sentence: ClassVar[str] = (
        "Makes pictures from words: two text encoders, the transformer once a step, and the autoencoder in the end."
    )
    together: ClassVar[dict[str, tuple[str, ...]]] = {"resolution": ("height", "width")}
    depths: ClassVar[tuple[str, ...]] = ("double_layers", "single_layers", "text_layers", "short_text_layers")

    batch: int = pictures_knob()
    height: int = side_knob(16)
    width: int = side_knob(16)
    text_tokens: int = knob(512, "tokens of the prompt, padding included", least=1)
    denoising: int = knob(2, "steps of the transformer; a real picture takes 28 or so, with the same peak", least=1)
    double_layers: int = knob(19, "blocks with text and picture apart; the published model has 19", least=1)
    single_layers: int = knob(38, "blocks with text and picture as one; the published model has 38", least=1)
    text_layers: int = knob(24, "blocks of the larger text encoder; the published model has 24", least=1)
    short_text_layers: int = knob(12, "blocks of the smaller text encoder; the published model has 12", least=1)
    narrow: int = knob(1, "divides heads, widths and vocabularies", choices=(1, 2, 4, 8))
    tile: int = tile_knob()

    def _denoiser(self) -> Flux:
        return self._alone(Flux, heads=24 // self.narrow, text_width=4096 // self.narrow)

    @property
    def tokens(self) -> int:
        """Of the picture alone."""
        return self._denoiser().tokens

    def _model(self) -> nn.Module:
        return Pipeline(
            steps=self.denoising,
            sides=(self.height // _PIXELS_PER_TOKEN, self.width // _PIXELS_PER_TOKEN),
            text_encoder=self._short_text_encoder(),
            text_encoder_2=self._text_encoder(),
            transformer=self._denoiser()._model(),
            vae=self._autoencoder(),
        )

    def _short_text_encoder(self) -> nn.Module:
        words = words_of(CLIP_WORDS, self.narrow)
        return clip_encoder(words=words, width=_POOLED, layers=self.short_text_layers, heads=12)

    def _text_encoder(self) -> nn.Module:
        return t5_encoder(narrow=self.narrow, layers=self.text_layers)

    def _autoencoder(self) -> nn.Module:
        channels = max(32, 128 // self.narrow)
        return picture_decoder(channels=channels, latent_channels=_CHANNELS, tile=self.tile, product=False)

    def inputs(self, device: torch.device, micro_batch: int = 0) -> dict[str, Any]:
        draw = RandomInputs(device, self.seed, micro_batch)
        inner = self._denoiser().inputs(device, micro_batch)
        return {
            "short_prompt": draw.whole(words_of(CLIP_WORDS, self.narrow), self.batch, PROMPT),
            "prompt": draw.whole(words_of(T5_WORDS, self.narrow), self.batch, self.text_tokens),
            **{name: inner[name] for name in ("hidden_states", "img_ids", "txt_ids", "guidance")},
        }

    def small(self) -> Self:
        smaller = self._at_most(
            batch=2,
            text_tokens=16,
            denoising=2,
            double_layers=2,
            single_layers=2,
            text_layers=2,
            short_text_layers=2,
        )
        return replace(smaller, **self._sides_in_tiles(64, of=16), narrow=8)

    def _shapes(self) -> str:
        pictures = self._denoiser()._pictures()
        return f"{pictures} ({self.tokens:,} + {self.text_tokens} tokens), {self._steps()}"


class Pipeline(Parts):
    """As diffusers' pipeline goes through its parts."""

    text_encoder_2: nn.Module
    transformer: nn.Module

    def __init__(self, *, steps: int, sides: tuple[int, int], **parts: nn.Module) -> None:
        super().__init__(steps=steps, **parts)
        self.sides = sides

    def forward(self, short_prompt: Tensor, prompt: Tensor, hidden_states: Tensor, **places: Tensor) -> Tensor:
        pooled = self.text_encoder(input_ids=short_prompt).pooler_output
        text = self.text_encoder_2(input_ids=prompt).last_hidden_state
        latents = hidden_states
        for number in range(self.steps):
            time = torch.full((len(latents),), 1 - number / self.steps, dtype=latents.dtype, device=latents.device)
            velocity = self.transformer(
                hidden_states=latents,
                timestep=time,
                pooled_projections=pooled,
                encoder_hidden_states=text,
                return_dict=False,
                **places,
            )[0]
            latents = latents - velocity / self.steps
        picture: Tensor = self.vae(self._unpacked(latents) / _SCALE + _SHIFT)
        return picture

    def _unpacked(self, tokens: Tensor) -> Tensor:
        """A token is 2 x 2 latents."""
        squares = tokens.view(len(tokens), *self.sides, _CHANNELS, 2, 2).permute(0, 3, 1, 4, 2, 5)
        return squares.reshape(len(tokens), _CHANNELS, 2 * self.sides[0], 2 * self.sides[1])
