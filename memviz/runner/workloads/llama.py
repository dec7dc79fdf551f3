"""Llama 3 through transformers' own class, in three published sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn

from memviz.runner.knobs import knob
from memviz.runner.workloads.decoder import Decoder, PublishedDecoder
from memviz.runner.workloads.workload import Published

_SIZES = {
    "1b": PublishedDecoder(2048, 8192, 16, 32, 64, tied=True),
    "3b": PublishedDecoder(3072, 8192, 28, 24, 128, tied=True),
    "8b": PublishedDecoder(4096, 14336, 32, 32, 128, tied=False),
}
_STRETCH = {"1b": 32.0, "3b": 32.0, "8b": 8.0}
"""How much further positions reach than those first trained on."""


@dataclass(frozen=True)
class Llama(Decoder):
    name: ClassVar[str] = "llama"
    title: ClassVar[str] = "Llama 3"
    sentence: ClassVar[str] = "A language model with gated feed-forwards and few heads for keys and values."
    published: ClassVar[tuple[Published, ...]] = (
        Published({"size": "1b"}, 1_235_814_400, "1.23B", "https://huggingface.co/meta-llama/Llama-3.2-1B"),
        Published({"size": "3b"}, 3_212_749_824, "3.21B", "https://huggingface.co/meta-llama/Llama-3.2-3B"),
        Published({"size": "8b"}, 8_030_261_248, "8B", "https://huggingface.co/meta-llama/Llama-3.1-8B"),
    )
    sizes: ClassVar[dict[str, PublishedDecoder]] = _SIZES
    positions: ClassVar[int] = 131_072
    words: ClassVar[int] = 128_256
    family: ClassVar[str] = "Llama 3"

    size: str = knob("1b", "which published model: Llama 3.2 in 1b and 3b, Llama 3.1 in 8b", choices=tuple(_SIZES))

    def _language_model(self) -> nn.Module:
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(**self._dimensions(), rms_norm_eps=1e-5, rope_parameters=self._rope())
        model: nn.Module = LlamaForCausalLM(config)
        return model

    def _rope(self) -> dict[str, Any]:
        return {
            "rope_type": "llama3",
            "rope_theta": 500_000.0,
            "factor": _STRETCH[self.size],
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }
