"""An autoencoder's picture in tiles that overlap: what a pipeline of diffusers calls `enable_vae_tiling`.

Activations of a decoder are many times a picture's size. Here it decodes one tile after the other, and blends their
edges; activations exist for one tile, and only finished tiles wait for the others. Tiles overlap by a quarter, so 9 of
512 pixels make a picture of 1024: about twice the work. It is the model's own `enable_tiling`. What to know:

* The picture changes: norms and attention see a tile where they saw the picture. diffusers calls that tile-sized
  changes of tone; look at one before you rely on it.
* What is no larger than a tile is decoded whole. How large a tile is, the model says: `tile_sample_min_size`, from its
  configuration's `sample_size`, or `tile_sample_min_height` and `_width` where it has those.
* Models are the autoencoders of diffusers; the model may hold one, as a pipeline's modules do.
* It is for inference. In training all activations wait for backward, whichever tile they are of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import nn


@dataclass(frozen=True)
class VaeTiling:
    """`undo = VaeTiling().apply(vae)`, then `vae.decode(latents)` as before."""

    name: ClassVar[str] = "vae_tiling"
    title: ClassVar[str] = "VAE tiling"
    sentence: ClassVar[str] = "Decode the image in overlapping tiles."
    not_with: ClassVar[Mapping[str, str]] = {}
    claim: ClassVar[Literal["lossy"]] = "lossy"
    """Norms and attention see a tile."""
    environment: ClassVar[Mapping[str, str]] = {}
    needs: ClassVar[Literal["any", "training", "inference"]] = "inference"
    only_on: ClassVar[str] = "an autoencoder"
    sees_less: ClassVar[bool] = True
    idle_where: ClassVar[str] = "the image fits in one tile"

    def check(self, model: nn.Module, *, training: bool) -> None:
        if training:
            raise ValueError("Training keeps all activations for backward, tiled or not. Use it in inference only.")
        _autoencoders(model)

    def apply(self, model: nn.Module) -> Callable[[], None]:
        before = [(module, module.use_tiling) for module in _autoencoders(model)]
        for autoencoder, _ in before:
            autoencoder.enable_tiling()

        def undo() -> None:
            for autoencoder, used in before:
                autoencoder.use_tiling = used

        return undo


def _autoencoders(model: nn.Module) -> list[Any]:
    having = [
        module for module in model.modules() if hasattr(module, "use_tiling") and hasattr(module, "enable_tiling")
    ]
    if not having:
        raise ValueError("This model has no diffusers autoencoder that supports tiling.")
    return having
