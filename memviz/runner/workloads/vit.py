"""Vision transformers that tell what a picture shows, through transformers' own class, in two published sizes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from memviz.runner.knobs import knob
from memviz.runner.workloads.random_inputs import RandomInputs
from memviz.runner.workloads.workload import DTYPES, FromConfiguration, Published, check_multiple, mode_knob, plural

_PATCH = 16
_HEAD = 64
_CLASSES = 1000


@dataclass(frozen=True)
class _PublishedVit:
    heads: int
    layers: int


_SIZES = {"base": _PublishedVit(12, 12), "large": _PublishedVit(16, 24)}


@dataclass(frozen=True)
class Vit(FromConfiguration):
    name: ClassVar[str] = "vit"
    title: ClassVar[str] = "Vision transformer"
    sentence: ClassVar[str] = "Tells which of 1,000 classes a picture is of, from patches of 16 x 16 pixels."
    published: ClassVar[tuple[Published, ...]] = (
        Published({"size": "base"}, 86_567_656, "86M", "https://arxiv.org/abs/2010.11929"),
        Published({"size": "large"}, 304_326_632, "307M", "https://arxiv.org/abs/2010.11929"),
    )

    size: str = knob("base", "which published model", choices=tuple(_SIZES))
    batch: int = knob(64, "pictures at once", least=1)
    pixels: int = knob(224, "height and width of the picture: a multiple of 16", least=1)
    layers: int | None = knob(None, "transformer blocks; none means as published", least=1)
    narrow: int = knob(1, "divides the number of heads, and the width with it", choices=(1, 2, 4))
    mode: str = mode_knob("training")

    def _check(self) -> None:
        check_multiple("pixels", self.pixels, _PATCH, why="a patch is 16 pixels a side")

    @property
    def _published(self) -> _PublishedVit:
        return _SIZES[self.size]

    @property
    def tokens(self) -> int:
        """Patches, and one that stands for the whole picture."""
        return (self.pixels // _PATCH) ** 2 + 1

    def _model(self) -> nn.Module:
        from transformers import ViTConfig, ViTForImageClassification

        heads = self._published.heads // self.narrow
        model: nn.Module = ViTForImageClassification(
            ViTConfig(
                hidden_size=heads * _HEAD,
                num_hidden_layers=self.layers or self._published.layers,
                num_attention_heads=heads,
                intermediate_size=4 * heads * _HEAD,
                image_size=self.pixels,
                num_labels=_CLASSES,
                attn_implementation="sdpa",
            )
        )
        return model

    def inputs(self, device: torch.device, micro_batch: int = 0) -> dict[str, Any]:
        draw = RandomInputs(device, self.seed, micro_batch)
        pictures = draw.normal(self.batch, 3, self.pixels, self.pixels, dtype=DTYPES[self.dtype])
        classes = draw.whole(_CLASSES, self.batch)
        return {"pixel_values": pictures, "labels": classes} if self.training else {"pixel_values": pictures}

    def loss(self, output: Any) -> Tensor:
        loss: Tensor = output.loss if self.training else output.logits.mean()
        return loss

    def small(self) -> Self:
        return replace(
            self._at_most(batch=2, pixels=64), layers=min(self.layers or self._published.layers, 4), narrow=4
        )

    def _shapes(self) -> str:
        layers = plural(self.layers or self._published.layers, "layer")
        pictures = f"{plural(self.batch, 'picture')} of {self.pixels} x {self.pixels} ({self.tokens} tokens)"
        return f"{self.size}, {layers}, {pictures}"
