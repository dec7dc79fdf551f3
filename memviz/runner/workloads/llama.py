"""Llama 3 through transformers' own class, in three published sizes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from torch import nn

from memviz.errors import UsageError
from memviz.runner.knobs import knob
from memviz.runner.workloads.language_model import LanguageModel, attention_name, finished
from memviz.runner.workloads.workload import dtype_knob, micro_batches_knob, mode_knob, plural, seed_knob

_POSITIONS = 131_072
_VOCABULARY = 128_256
_NARROWEST = 8


@dataclass(frozen=True)
class _PublishedLlama:
    width: int
    inner: int
    layers: int
    heads: int
    head: int
    tied: bool
    stretch: float
    """How much further positions reach than those first trained on."""


_SIZES = {
    "1b": _PublishedLlama(2048, 8192, 16, 32, 64, tied=True, stretch=32.0),
    "3b": _PublishedLlama(3072, 8192, 28, 24, 128, tied=True, stretch=32.0),
    "8b": _PublishedLlama(4096, 14336, 32, 32, 128, tied=False, stretch=8.0),
}
_KEY_VALUE_HEADS = 8


@dataclass(frozen=True)
class Llama(LanguageModel):
    name: ClassVar[str] = "llama"
    title: ClassVar[str] = "Llama 3"
    sentence: ClassVar[str] = "A language model with gated feed-forwards and few heads for keys and values."

    size: str = knob("1b", "which published model: Llama 3.2 in 1b and 3b, Llama 3.1 in 8b", choices=tuple(_SIZES))
    batch: int = knob(1, "sequences at once", least=1)
    sequence: int = knob(4096, "tokens in a sequence", least=1)
    layers: int | None = knob(None, "transformer blocks; none means as published", least=1)
    narrow: int = knob(1, "divides heads, widths and vocabulary", choices=(1, 2, 4, 8))
    cache: bool = knob(False, "whether inference keeps keys and values")
    dtype: str = dtype_knob("bf16")
    mode: str = mode_knob("training")
    micro_batches: int = micro_batches_knob()
    seed: int = seed_knob()

    def _check(self) -> None:
        super()._check()
        if self.sequence > _POSITIONS:
            raise UsageError(f"sequence is {self.sequence}; Llama 3 knows {_POSITIONS:,} positions.")

    @property
    def _published(self) -> _PublishedLlama:
        return _SIZES[self.size]

    @property
    def vocabulary(self) -> int:
        return _VOCABULARY if self.narrow == 1 else _VOCABULARY // 8 // self.narrow

    def _model(self) -> nn.Module:
        from transformers import LlamaConfig, LlamaForCausalLM

        size, by = self._published, self.narrow
        config = LlamaConfig(
            vocab_size=self.vocabulary,
            hidden_size=size.width // by,
            intermediate_size=size.inner // by,
            num_hidden_layers=self.layers or size.layers,
            num_attention_heads=size.heads // by,
            num_key_value_heads=_KEY_VALUE_HEADS // by,
            head_dim=size.head,
            max_position_embeddings=_POSITIONS,
            initializer_range=0.02 if by == 1 else (size.width // by) ** -0.5,
            rms_norm_eps=1e-5,
            rope_parameters=_positions(size),
            tie_word_embeddings=size.tied,
            bos_token_id=None,
            eos_token_id=None,
            attn_implementation=attention_name(),
        )
        return finished(LlamaForCausalLM(config))

    def small(self) -> Self:
        return replace(
            self,
            batch=min(self.batch, 2),
            sequence=min(self.sequence, 64),
            layers=min(self.layers or self._published.layers, 4),
            narrow=_NARROWEST,
            dtype="fp32",
        )

    def _shapes(self) -> str:
        layers = plural(self.layers or self._published.layers, "layer")
        return f"{self.size}, {layers}, {self.batch} x {self.sequence} tokens"


def _positions(size: _PublishedLlama) -> dict[str, Any]:
    return {
        "rope_type": "llama3",
        "rope_theta": 500_000.0,
        "factor": size.stretch,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
