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
from memviz.runner.workloads.pipeline_parts import CLIP_WORDS, PROMPT, clip_encoder, picture_decoder, words_of
from memviz.runner.workloads.random_inputs import RandomInputs
from memviz.runner.workloads.sdxl import Sdxl
from memviz.runner.workloads.workload import (
    FromConfiguration,
    check_multiple,
    dtype_knob,
    micro_batches_knob,
    mode_knob,
    plural,
    seed_knob,
)

_SMALLER, _LARGER = 768, 1280
"""Channels of the text encoders."""
_HEAD = 64
_SCALE = 0.13025
"""Of the latents that the autoencoder is given."""
_GUIDANCE = 5.0


@dataclass(frozen=True)
class SdxlPipeline(FromConfiguration):
    name: ClassVar[str] = "sdxl_pipeline"
    title: ClassVar[str] = "SDXL pipeline"
    sentence: ClassVar[str] = (
        "Makes pictures from words: two text encoders, the UNet once a step, and the autoencoder in the end."
    )
    together: ClassVar[dict[str, tuple[str, ...]]] = {"resolution": ("height", "width")}
    depths: ClassVar[tuple[str, ...]] = ("depth", "text_layers", "short_text_layers")

    batch: int = knob(1, "pictures at once", least=1)
    height: int = knob(1024, "of the picture: a multiple of 32", unit="pixels", least=1)
    width: int = knob(1024, "of the picture: a multiple of 32", unit="pixels", least=1)
    guided: bool = knob(True, "whether each step looks at the prompt and at none, which doubles its batch")
    denoising: int = knob(2, "steps of the UNet; a real picture takes 50 or so, with the same peak", least=1)
    depth: int = knob(10, "transformer blocks at the smallest size; the published model has 10", least=2)
    text_layers: int = knob(32, "blocks of the larger text encoder; the published model has 32", least=2)
    short_text_layers: int = knob(12, "blocks of the smaller text encoder; the published model has 12", least=2)
    narrow: int = knob(1, "divides widths, heads and vocabularies", choices=(1, 4))
    tile: int = knob(1024, "a side of a tile, if the autoencoder works in tiles", unit="pixels", least=32)
    dtype: str = dtype_knob("bf16")
    mode: str = mode_knob("inference")
    micro_batches: int = micro_batches_knob()
    seed: int = seed_knob()

    def _check(self) -> None:
        check_multiple("tile", self.tile, 32, why="tiles overlap by a quarter, in latents too")
        self._unet()

    def _unet(self) -> Sdxl:
        """The workload of its UNet alone, which has the same knobs."""
        shared = ("height", "width", "depth", "dtype", "mode", "seed")
        same = {name: getattr(self, name) for name in shared}
        widths: dict[str, Any] = {
            "channels": 320 // self.narrow // 64 * 64,
            "text_width": (_SMALLER + _LARGER) // self.narrow,
        }
        return Sdxl(**same, **widths, batch=self.batch * (1 + self.guided), text_tokens=PROMPT)

    def _model(self) -> nn.Module:
        return Pipeline(
            self._text_encoder(_SMALLER, self.short_text_layers),
            self._text_encoder(_LARGER, self.text_layers),
            self._unet()._model(),
            picture_decoder(channels=128 if self.narrow == 1 else 32, latent_channels=4, tile=self.tile, product=True),
            steps=self.denoising,
            guided=self.guided,
        )

    def _text_encoder(self, width: int, layers: int) -> nn.Module:
        words, heads = words_of(CLIP_WORDS, self.narrow), width // self.narrow // _HEAD
        return clip_encoder(
            words=words, width=width // self.narrow, layers=layers, heads=heads, projected=width == _LARGER
        )

    def inputs(self, device: torch.device, micro_batch: int = 0) -> dict[str, Any]:
        draw, words = RandomInputs(device, self.seed, micro_batch), words_of(CLIP_WORDS, self.narrow)
        inner = self._unet().inputs(device, micro_batch)
        return {
            "prompts": draw.whole(words, self.batch * (1 + self.guided), PROMPT),
            "latents": inner["sample"][: self.batch].clone(),
            "time_ids": inner["added_cond_kwargs"]["time_ids"],
        }

    def loss(self, output: Any) -> Tensor:
        mean: Tensor = output.square().mean()
        return mean

    def small(self) -> Self:
        return replace(
            self,
            batch=min(self.batch, 2),
            height=min(self.height, 64),
            width=min(self.width, 64),
            denoising=min(self.denoising, 2),
            depth=min(self.depth, 2),
            text_layers=min(self.text_layers, 2),
            short_text_layers=min(self.short_text_layers, 2),
            narrow=4,
            tile=min(self.tile, 32),
            dtype="fp32",
        )

    def _shapes(self) -> str:
        return f"{plural(self.batch, 'picture')} of {self.height} x {self.width}, {plural(self.denoising, 'step')}"


class Pipeline(nn.Module):
    """As diffusers' pipeline goes through its parts, under the names that they have there."""

    def __init__(
        self,
        text_encoder: nn.Module,
        text_encoder_2: nn.Module,
        unet: nn.Module,
        vae: nn.Module,
        *,
        steps: int,
        guided: bool,
    ) -> None:
        super().__init__()
        self.text_encoder = text_encoder
        self.text_encoder_2 = text_encoder_2
        self.unet = unet
        self.vae = vae
        self.steps, self.guided = steps, guided

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
