"""Qwen3 through transformers' own class, in four published sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from memviz.runner.knobs import knob
from memviz.runner.workloads.decoder import Decoder, PublishedDecoder
from memviz.runner.workloads.workload import Published

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
    published: ClassVar[tuple[Published, ...]] = (
        Published({"size": "0.6b"}, 596_049_920, "0.6B", "https://huggingface.co/Qwen/Qwen3-0.6B"),
        Published({"size": "1.7b"}, 1_720_574_976, "1.7B", "https://huggingface.co/Qwen/Qwen3-1.7B"),
        Published({"size": "4b"}, 4_022_468_096, "4.0B", "https://huggingface.co/Qwen/Qwen3-4B"),
        Published({"size": "8b"}, 8_190_735_360, "8.2B", "https://huggingface.co/Qwen/Qwen3-8B"),
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
