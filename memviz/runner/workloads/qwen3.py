"""Qwen3 through transformers' own class, in four published sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from memviz.runner.knobs import knob
from memviz.runner.workloads.decoder import Decoder, PublishedDecoder

_SIZES = {
    "0.6b": PublishedDecoder(1024, 3072, 28, 16, 128, tied=True),
    "1.7b": PublishedDecoder(2048, 6144, 28, 16, 128, tied=True),
    "4b": PublishedDecoder(2560, 9728, 36, 32, 128, tied=True),
    "8b": PublishedDecoder(4096, 12288, 36, 32, 128, tied=False),
}


@dataclass(frozen=True)
class Qwen3(Decoder):
    name: ClassVar[str] = "qwen3"
    title: ClassVar[str] = "Qwen3"
    sentence: ClassVar[str] = (
        "A language model that normalises queries and keys, with a vocabulary larger than Llama's."
    )
    sizes: ClassVar[dict[str, PublishedDecoder]] = _SIZES
    positions: ClassVar[int] = 40_960
    words: ClassVar[int] = 151_936
    family: ClassVar[str] = "Qwen3"

    size: str = knob("0.6b", "which published model", choices=tuple(_SIZES))

    def _language_model(self) -> nn.Module:
        from transformers import Qwen3Config, Qwen3ForCausalLM

        rope = {"rope_type": "default", "rope_theta": 1_000_000.0}
        model: nn.Module = Qwen3ForCausalLM(Qwen3Config(**self._dimensions(), rms_norm_eps=1e-6, rope_parameters=rope))
        return model
