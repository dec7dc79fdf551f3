"""Mixtral through transformers' own class: eight feed-forwards in every block, of which each token goes through two."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from memviz.runner.knobs import knob
from memviz.runner.workloads.decoder import Decoder, PublishedDecoder
from memviz.runner.workloads.workload import Published

_SIZES = {"8x7b": PublishedDecoder(4096, 14336, 32, 32, 128, tied=False)}
_CHOSEN = 2
"""Experts that each token goes through."""


@dataclass(frozen=True)
class Mixtral(Decoder):
    name: ClassVar[str] = "mixtral"
    title: ClassVar[str] = "Mixtral"
    sentence: ClassVar[str] = "A language model with experts: all of its weights are held, and a token uses a quarter."
    published: ClassVar[tuple[Published, ...]] = (
        Published({}, 46_702_792_704, "46.7B", "https://mistral.ai/news/mixtral-of-experts"),
    )
    sizes: ClassVar[dict[str, PublishedDecoder]] = _SIZES
    positions: ClassVar[int] = 32_768
    words: ClassVar[int] = 32_000
    family: ClassVar[str] = "Mixtral"

    size: str = knob("8x7b", "the published model", choices=tuple(_SIZES))
    experts: int = knob(8, "feed-forwards in a block; the published model has 8", least=_CHOSEN)

    def _language_model(self) -> nn.Module:
        from transformers import MixtralConfig, MixtralForCausalLM

        config = MixtralConfig(
            **self._dimensions(),
            num_local_experts=self.experts,
            num_experts_per_tok=_CHOSEN,
            rms_norm_eps=1e-5,
            rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0},
        )
        model: nn.Module = MixtralForCausalLM(config)
        return model
