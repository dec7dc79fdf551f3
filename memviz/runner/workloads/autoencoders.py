"""Decoders of diffusers' autoencoders, which pipelines run last. Importing this file loads diffusers."""

from __future__ import annotations

from typing import Any

from diffusers import AutoencoderKL, AutoencoderKLLTXVideo, AutoencoderKLWan
from torch import Tensor, nn


class ImageDecoder(AutoencoderKL):  # type: ignore[misc]
    """Its own class, names and ways to decode, in tiles and slices too; only what encodes is gone."""

    def __init__(self, **sizes: Any) -> None:
        super().__init__(**sizes)
        del self.encoder, self.quant_conv

    def forward(self, latents: Tensor) -> Tensor:
        picture: Tensor = self.decode(latents, return_dict=False)[0]
        return picture


class LtxDecoder(AutoencoderKLLTXVideo):  # type: ignore[misc]
    """Its own class, names and ways to decode, in tiles too; only what encodes is gone."""

    def __init__(self, **sizes: Any) -> None:
        super().__init__(**sizes)
        del self.encoder

    def forward(self, latents: Tensor) -> Tensor:
        mean, spread = (_per_channel(values, latents) for values in (self.latents_mean, self.latents_std))
        return _decoded(self, latents * spread / self.config.scaling_factor + mean)


class WanDecoder(AutoencoderKLWan):  # type: ignore[misc]
    """Wan's autoencoder without its encoder; its class, names and decoding are unchanged."""

    def __init__(self, **sizes: Any) -> None:
        super().__init__(**sizes)
        del self.encoder, self.quant_conv

    def forward(self, latents: Tensor) -> Tensor:
        numbers = (latents.new_tensor(values) for values in (self.config.latents_mean, self.config.latents_std))
        mean, spread = (_per_channel(values, latents) for values in numbers)
        return _decoded(self, latents * spread + mean)


def _per_channel(values: Tensor, latents: Tensor) -> Tensor:
    return values.view(1, -1, 1, 1, 1).to(latents.device, latents.dtype)


def _decoded(autoencoder: Any, latents: Tensor) -> Tensor:
    video: Tensor = autoencoder.decode(latents, return_dict=False)[0]
    return video


def in_tiles_of(autoencoder: Any, tile: int, overlap: int) -> nn.Module:
    """Set the tile sizes that `enable_tiling` would use."""
    autoencoder.tile_sample_min_height = autoencoder.tile_sample_min_width = tile
    autoencoder.tile_sample_stride_height = autoencoder.tile_sample_stride_width = tile - overlap
    model: nn.Module = autoencoder
    return model
