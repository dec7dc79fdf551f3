"""The half of diffusers' autoencoder that a pipeline runs last. Importing this loads diffusers."""

from __future__ import annotations

from typing import Any

from diffusers import AutoencoderKL
from torch import Tensor


class Decoder(AutoencoderKL):  # type: ignore[misc]
    """Its own class, names and ways to decode, in tiles and slices too; only what encodes is gone."""

    def __init__(self, **sizes: Any) -> None:
        super().__init__(**sizes)
        del self.encoder, self.quant_conv

    def forward(self, latents: Tensor) -> Tensor:
        picture: Tensor = self.decode(latents, return_dict=False)[0]
        return picture
