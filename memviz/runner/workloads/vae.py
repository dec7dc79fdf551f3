"""Stable Diffusion's autoencoder through diffusers' own class: as a whole, or the half that makes pictures."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from memviz.runner.knobs import knob
from memviz.runner.workloads.picture_model import PictureModel, pictures_knob, side_in_tiles, side_knob
from memviz.runner.workloads.random_inputs import RandomInputs
from memviz.runner.workloads.workload import DTYPES, Published, check_multiple

_CHANNELS = 4
_PIXELS_PER_LATENT = 8
_LEVELS = 4
_TILES = 4 * _PIXELS_PER_LATENT
_REDUCED_TILE = 64
_PARTS = ("decoder", "whole")


@dataclass(frozen=True)
class Vae(PictureModel):
    name: ClassVar[str] = "vae"
    title: ClassVar[str] = "Stable Diffusion autoencoder"
    sentence: ClassVar[str] = "Turns latents into pictures: few weights, and convolutions over every pixel."
    published: ClassVar[tuple[Published, ...]] = (
        Published({"part": "whole"}, 83_653_863, "84M", "https://huggingface.co/stabilityai/sd-vae-ft-mse"),
    )
    side: ClassVar[int] = _PIXELS_PER_LATENT
    why: ClassVar[str] = "the autoencoder folds 8 pixels a side into one"
    depths: ClassVar[tuple[str, ...]] = ()
    holds: ClassVar[tuple[str, ...] | None] = ("an autoencoder",)

    part: str = knob("decoder", "what runs: latents to pictures, or pictures to pictures", choices=_PARTS)
    batch: int = pictures_knob()
    height: int = side_knob(8)
    width: int = side_knob(8)
    channels: int = knob(128, "channels at full size; the published model has 128", least=32)
    tile: int = knob(
        512, "a side of a tile, if it works in tiles; the published model has 512", unit="pixels", least=32
    )

    def _check(self) -> None:
        super()._check()
        check_multiple("tile", self.tile, _TILES, why="tiles overlap by a quarter, in latents too")
        check_multiple("channels", self.channels, 32, why="its norms have 32 groups")

    def _model(self) -> nn.Module:
        from diffusers import AutoencoderKL

        from memviz.runner.workloads.vae_decoder import Decoder

        widths = tuple(self.channels * factor for factor in (1, 2, 4, 4))
        kind = AutoencoderKL if self.part == "whole" else Decoder
        model: nn.Module = kind(
            in_channels=3,
            out_channels=3,
            down_block_types=("DownEncoderBlock2D",) * _LEVELS,
            up_block_types=("UpDecoderBlock2D",) * _LEVELS,
            block_out_channels=widths,
            layers_per_block=2,
            latent_channels=_CHANNELS,
            sample_size=self.tile,
        )
        return model

    def inputs(self, device: torch.device, micro_batch: int = 0) -> dict[str, Any]:
        draw, dtype = RandomInputs(device, self.seed, micro_batch), DTYPES[self.dtype]
        if self.part == "whole":
            return {"sample": draw.normal(self.batch, 3, self.height, self.width, dtype=dtype)}
        sides = self.height // _PIXELS_PER_LATENT, self.width // _PIXELS_PER_LATENT
        return {"latents": draw.normal(self.batch, _CHANNELS, *sides, dtype=dtype)}

    def loss(self, output: Any) -> Tensor:
        picture = output[0] if isinstance(output, dict | tuple) else output
        mean: Tensor = picture.square().mean()
        return mean

    def small(self) -> Self:
        sides: dict[str, Any] = {
            name: side_in_tiles(getattr(self, name), self.tile, reduced_tile=_REDUCED_TILE, of=self.side)
            for name in ("height", "width")
        }
        return replace(self._at_most(batch=2), **sides, tile=_REDUCED_TILE, channels=32)

    def _shapes(self) -> str:
        return f"{self.part}, {self._pictures()}"
