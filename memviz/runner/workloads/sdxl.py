"""Stable Diffusion XL's UNet through diffusers' own class."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from memviz.runner.knobs import knob
from memviz.runner.workloads.picture_model import PictureModel, pictures_knob, side_knob
from memviz.runner.workloads.random_inputs import RandomInputs
from memviz.runner.workloads.workload import DTYPES, Published, check_multiple

_CHANNELS = 4
_PIXELS_PER_LATENT = 8
_LEVELS = 3
_SIZES_AND_CROPS = 6
_TIME_WIDTH = 256
_HEAD = 64


@dataclass(frozen=True)
class Sdxl(PictureModel):
    name: ClassVar[str] = "sdxl"
    title: ClassVar[str] = "SDXL UNet"
    sentence: ClassVar[str] = "Makes pictures: convolutions at three sizes, with transformer blocks at the two smaller."
    published: ClassVar[tuple[Published, ...]] = (
        Published({}, 2_567_463_684, "2.6B", "https://arxiv.org/abs/2307.01952"),
    )
    side: ClassVar[int] = _PIXELS_PER_LATENT * 2 ** (_LEVELS - 1)
    why: ClassVar[str] = "the autoencoder folds 8 pixels a side into one, and the model halves that twice"
    depths: ClassVar[tuple[str, ...]] = ("depth",)

    batch: int = pictures_knob()
    height: int = side_knob(32)
    width: int = side_knob(32)
    text_tokens: int = knob(77, "tokens of the prompt, padding included", least=1)
    depth: int = knob(10, "transformer blocks at the smallest size; the published model has 10", least=2)
    channels: int = knob(320, "channels at the largest size; the published model has 320", least=64)
    text_width: int = knob(2048, "channels of both text encoders' output", least=1)

    def _check(self) -> None:
        super()._check()
        check_multiple("channels", self.channels, _HEAD, why="an attention head has 64")

    def _model(self) -> nn.Module:
        from diffusers import UNet2DConditionModel

        widths = tuple(self.channels * 2**level for level in range(_LEVELS))
        model: nn.Module = UNet2DConditionModel(
            sample_size=self.height // _PIXELS_PER_LATENT,
            in_channels=_CHANNELS,
            out_channels=_CHANNELS,
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
            block_out_channels=widths,
            layers_per_block=2,
            transformer_layers_per_block=(1, 2, self.depth),
            attention_head_dim=tuple(width // _HEAD for width in widths),
            cross_attention_dim=self.text_width,
            use_linear_projection=True,
            addition_embed_type="text_time",
            addition_time_embed_dim=_TIME_WIDTH,
            projection_class_embeddings_input_dim=self._pooled + _SIZES_AND_CROPS * _TIME_WIDTH,
        )
        return model

    @property
    def _pooled(self) -> int:
        """Channels of the larger text encoder."""
        return self.text_width * 5 // 8

    def inputs(self, device: torch.device, micro_batch: int = 0) -> dict[str, Any]:
        draw, dtype = RandomInputs(device, self.seed, micro_batch), DTYPES[self.dtype]
        sides = self.height // _PIXELS_PER_LATENT, self.width // _PIXELS_PER_LATENT
        return {
            "sample": draw.normal(self.batch, _CHANNELS, *sides, dtype=dtype),
            "timestep": draw.whole(1000, self.batch),
            "encoder_hidden_states": draw.normal(self.batch, self.text_tokens, self.text_width, dtype=dtype),
            "added_cond_kwargs": {
                "text_embeds": draw.normal(self.batch, self._pooled, dtype=dtype),
                "time_ids": draw.made((self.batch, _SIZES_AND_CROPS), dtype, self._sizes_and_crops),
            },
        }

    def _sizes_and_crops(self) -> Tensor:
        sizes = torch.tensor([self.height, self.width, 0, 0, self.height, self.width])
        return sizes.repeat(self.batch, 1)

    def small(self) -> Self:
        smaller = self._at_most(batch=2, height=64, width=64, text_tokens=16, depth=2, text_width=128)
        return replace(smaller, channels=64)

    def _shapes(self) -> str:
        return self._pictures()
