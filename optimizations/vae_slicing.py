"""An autoencoder's batch one picture at a time: what a pipeline of diffusers calls `enable_vae_slicing`.

Activations of a decoder are many times a picture's size, and of a batch that many times as many. Here each picture is
decoded, and encoded, by itself, and only the finished ones wait for the others. The work is the same; a GPU that one
picture does not fill takes longer for several. It is the model's own `enable_slicing`. What to know before using it:

* Models are the autoencoders of diffusers; the model may hold one, as a pipeline's modules do.
* With one picture, or one video, nothing changes. What wants tiles for one large picture is vae_tiling.
* It is for inference. In training all activations wait for backward, whichever picture they are of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import nn


@dataclass(frozen=True)
class VaeSlicing:
    """`undo = VaeSlicing().apply(vae)`, then `vae.decode(latents)` as before."""

    name: ClassVar[str] = "vae_slicing"
    title: ClassVar[str] = "VAE slicing"
    sentence: ClassVar[str] = "Decode one image of the batch at a time."
    not_with: ClassVar[Mapping[str, str]] = {}
    claim: ClassVar[Literal["rounding"]] = "rounding"
    """The same convolutions, though kernels may be others for one picture."""
    environment: ClassVar[Mapping[str, str]] = {}
    needs: ClassVar[Literal["any", "training", "inference"]] = "inference"
    only_on: ClassVar[str] = "an autoencoder"
    idle_where: ClassVar[str] = "the batch has one image"

    def check(self, model: nn.Module, *, training: bool) -> None:
        if training:
            raise ValueError("Training keeps all activations for backward, sliced or not. Use it in inference only.")
        _autoencoders(model)

    def apply(self, model: nn.Module) -> Callable[[], None]:
        before = [(module, module.use_slicing) for module in _autoencoders(model)]
        for autoencoder, _ in before:
            autoencoder.enable_slicing()

        def undo() -> None:
            for autoencoder, used in before:
                autoencoder.use_slicing = used

        return undo


def _autoencoders(model: nn.Module) -> list[Any]:
    having = [
        module for module in model.modules() if hasattr(module, "use_slicing") and hasattr(module, "enable_slicing")
    ]
    if not having:
        raise ValueError("This model has no diffusers autoencoder that supports slicing.")
    return having
