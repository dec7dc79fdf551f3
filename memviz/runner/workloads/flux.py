"""FLUX.1-dev's transformer through diffusers' own class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from memviz.runner.knobs import knob
from memviz.runner.workloads.picture_model import PictureModel, pictures_knob, side_knob
from memviz.runner.workloads.random_inputs import RandomInputs
from memviz.runner.workloads.workload import DTYPES, Published

_CHANNELS = 64
_POOLED = 768
_PIXELS_PER_TOKEN = 16
_GUIDANCE = 3.5


@dataclass(frozen=True)
class Flux(PictureModel):
    name: ClassVar[str] = "flux"
    title: ClassVar[str] = "FLUX.1-dev transformer"
    sentence: ClassVar[str] = (
        "Makes pictures: 19 blocks that treat text and picture apart, then 38 that treat them as one."
    )
    published: ClassVar[tuple[Published, ...]] = (
        Published({}, 11_901_408_320, "12B", "https://huggingface.co/black-forest-labs/FLUX.1-dev"),
    )
    side: ClassVar[int] = _PIXELS_PER_TOKEN
    why: ClassVar[str] = "the autoencoder and the patches fold 16 pixels a side into one token"
    depths: ClassVar[tuple[str, ...]] = ("double_layers", "single_layers")

    batch: int = pictures_knob()
    height: int = side_knob(16)
    width: int = side_knob(16)
    text_tokens: int = knob(512, "tokens of the prompt, padding included", least=1)
    double_layers: int = knob(19, "blocks with text and picture apart; the published model has 19", least=1)
    single_layers: int = knob(38, "blocks with text and picture as one; the published model has 38", least=1)
    heads: int = knob(24, "attention heads of 128 channels; the published model has 24", least=1)
    text_width: int = knob(4096, "channels of the text encoder's output", least=1)
    guidance: bool = knob(True, "whether the guidance scale is an input, as in dev; schnell has none")

    @property
    def tokens(self) -> int:
        """Of the picture alone."""
        return (self.height // _PIXELS_PER_TOKEN) * (self.width // _PIXELS_PER_TOKEN)

    def _model(self) -> nn.Module:
        from diffusers import FluxTransformer2DModel

        model: nn.Module = FluxTransformer2DModel(
            in_channels=_CHANNELS,
            num_layers=self.double_layers,
            num_single_layers=self.single_layers,
            num_attention_heads=self.heads,
            joint_attention_dim=self.text_width,
            pooled_projection_dim=_POOLED,
            guidance_embeds=self.guidance,
        )
        return model

    def inputs(self, device: torch.device, micro_batch: int = 0) -> dict[str, Any]:
        draw, dtype = RandomInputs(device, self.seed, micro_batch), DTYPES[self.dtype]
        arguments: dict[str, Any] = {
            "hidden_states": draw.normal(self.batch, self.tokens, _CHANNELS, dtype=dtype),
            "encoder_hidden_states": draw.normal(self.batch, self.text_tokens, self.text_width, dtype=dtype),
            "pooled_projections": draw.normal(self.batch, _POOLED, dtype=dtype),
            "timestep": draw.uniform(self.batch, dtype=dtype),
            "img_ids": draw.made((self.tokens, 3), dtype, self._places),
            "txt_ids": draw.made((self.text_tokens, 3), dtype, lambda: torch.zeros(self.text_tokens, 3)),
        }
        if self.guidance:
            scale = torch.full((self.batch,), _GUIDANCE)
            arguments["guidance"] = draw.made((self.batch,), torch.float32, lambda: scale)
        return arguments

    def _places(self) -> Tensor:
        """Row and column of every token of the picture; the first coordinate is the text's."""
        rows, columns = self.height // _PIXELS_PER_TOKEN, self.width // _PIXELS_PER_TOKEN
        places = torch.zeros(rows, columns, 3)
        places[..., 1] = torch.arange(rows)[:, None]
        places[..., 2] = torch.arange(columns)[None, :]
        return places.flatten(0, 1)

    def small(self) -> Self:
        return self._at_most(
            batch=2, height=128, width=128, text_tokens=16, double_layers=2, single_layers=4, heads=3, text_width=128
        )

    def _shapes(self) -> str:
        layers = f"{self.double_layers} + {self.single_layers} layers"
        tokens = f"{self.tokens:,} + {self.text_tokens} tokens"
        return f"{layers}, {self._pictures()} ({tokens})"
