"""All of LTX-Video one part after the other: the text encoder, the transformer some times, and the autoencoder.

Each step looks at the prompt and at none, in one batch of twice the size, as diffusers' own pipeline does by default.
Of the autoencoder there is what makes video.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from memviz.runner.knobs import knob
from memviz.runner.workloads.ltx_video import LtxVideo
from memviz.runner.workloads.pipeline_parts import (
    T5_WORDS,
    Parts,
    PipelineModel,
    encoded,
    t5_encoder,
    tile_knob,
    words_of,
)
from memviz.runner.workloads.random_inputs import RandomInputs
from memviz.runner.workloads.video_model import VIDEO_SIDES
from memviz.runner.workloads.workload import check_multiple

_OVERLAP = 64
"""Pixels that tiles share, as diffusers has them."""
_GUIDANCE = 3.0


@dataclass(frozen=True)
class LtxPipeline(PipelineModel):
    name: ClassVar[str] = "ltx_pipeline"
    title: ClassVar[str] = "LTX-Video pipeline"
    sentence: ClassVar[str] = (
        "Makes video from words: a text encoder, the transformer once a step, and the autoencoder in the end."
    )
    together: ClassVar[dict[str, tuple[str, ...]]] = VIDEO_SIDES
    depths: ClassVar[tuple[str, ...]] = ("layers", "text_layers")

    batch: int = knob(1, "videos at once", least=1)
    frames: int = knob(161, "frames of the video: 1 more than a multiple of 8", least=1)
    height: int = knob(512, "of the video: a multiple of 32", unit="pixels", least=1)
    width: int = knob(704, "of the video: a multiple of 32", unit="pixels", least=1)
    text_tokens: int = knob(128, "tokens of the prompt, padding included", least=1)
    guided: bool = knob(True, "whether each step looks at the prompt and at none, which doubles its batch")
    denoising: int = knob(2, "steps of the transformer; a real video takes 50 or so, with the same peak", least=1)
    layers: int = knob(28, "transformer blocks; the published model has 28", least=1)
    text_layers: int = knob(24, "blocks of the text encoder; the published model has 24", least=1)
    narrow: int = knob(1, "divides heads, widths and vocabulary", choices=(1, 2, 4, 8))
    tile: int = tile_knob(512, least=2 * _OVERLAP)

    def _check(self) -> None:
        super()._check()
        check_multiple("tile", self.tile, _OVERLAP, why="tiles share 64 pixels a side, and a latent has 32")

    def _denoiser(self) -> LtxVideo:
        heads, text = 32 // self.narrow, 4096 // self.narrow
        return self._alone(LtxVideo, batch=self.batch * (1 + self.guided), heads=heads, text_width=text)

    def _model(self) -> nn.Module:
        return Pipeline(
            steps=self.denoising,
            guided=self.guided,
            latents=self._denoiser().latents,
            text_encoder=self._text_encoder(),
            transformer=self._denoiser()._model(),
            vae=self._autoencoder(),
        )

    def _text_encoder(self) -> nn.Module:
        return t5_encoder(narrow=self.narrow, layers=self.text_layers)

    def _autoencoder(self) -> nn.Module:
        from memviz.runner.workloads.video_decoders import LtxDecoder, in_tiles_of

        widths = tuple(width // self.narrow for width in (128, 256, 512, 512))
        decoder = LtxDecoder(block_out_channels=widths, decoder_block_out_channels=widths)
        return in_tiles_of(decoder, self.tile, _OVERLAP)

    def inputs(self, device: torch.device, micro_batch: int = 0) -> dict[str, Any]:
        draw, prompts = RandomInputs(device, self.seed, micro_batch), self.batch * (1 + self.guided)
        inner = self._denoiser().inputs(device, micro_batch)
        return {
            "prompts": draw.whole(words_of(T5_WORDS, self.narrow), prompts, self.text_tokens),
            "mask": inner["encoder_attention_mask"],
            # As the pipeline has them, whatever the transformer computes in.
            "latents": inner["hidden_states"][: self.batch].to(torch.float32, copy=True),
        }

    def small(self) -> Self:
        smaller = self._at_most(batch=2, frames=9, text_tokens=16, denoising=2, layers=2, text_layers=2)
        return replace(smaller, **self._sides_in_tiles(4 * _OVERLAP, of=32), narrow=8)

    def _shapes(self) -> str:
        alone = replace(self._denoiser(), batch=self.batch)
        return f"{alone._videos()} ({alone.tokens:,} + {self.text_tokens} tokens), {self._steps()}"


class Pipeline(Parts):
    """As diffusers' pipeline goes through its parts."""

    transformer: nn.Module

    def __init__(self, *, steps: int, guided: bool, latents: tuple[int, int, int], **parts: nn.Module) -> None:
        super().__init__(steps=steps, **parts)
        self.guided, self.sides = guided, dict(zip(("num_frames", "height", "width"), latents, strict=True))

    def forward(self, prompts: Tensor, mask: Tensor, latents: Tensor) -> Tensor:
        """`prompts` are what not to show, then as many of what to show, where each step looks at both."""
        text = torch.cat(encoded(self.text_encoder, prompts, 1 + self.guided))
        for number in range(self.steps):
            given = torch.cat([latents] * 2) if self.guided else latents
            velocity = self.transformer(
                hidden_states=given.to(text.dtype),
                encoder_hidden_states=text,
                timestep=torch.full((len(given),), 1000 - 1000 * number / self.steps, device=given.device),
                encoder_attention_mask=mask,
                return_dict=False,
                **self.sides,
            )[0].float()
            if self.guided:
                without, prompted = velocity.chunk(2)
                velocity = without + _GUIDANCE * (prompted - without)
            latents = latents - velocity / self.steps
        squares = latents.view(len(latents), *self.sides.values(), -1).permute(0, 4, 1, 2, 3)
        video: Tensor = self.vae(squares.to(text.dtype))
        return video
