"""Qwen3 through transformers' own class, in four published sizes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

from torch import nn

from memviz.errors import UsageError
from memviz.runner.knobs import knob
from memviz.runner.workloads.language_model import LanguageModel, attention_name, finished
from memviz.runner.workloads.workload import dtype_knob, micro_batches_knob, mode_knob, plural, seed_knob

_POSITIONS = 40_960
_VOCABULARY = 151_936
_KEY_VALUE_HEADS = 8
_HEAD = 128
_NARROWEST = 8


@dataclass(frozen=True)
class _PublishedQwen3:
    width: int
    inner: int
    layers: int
    heads: int
    tied: bool


_SIZES = {
    "0.6b": _PublishedQwen3(1024, 3072, 28, 16, tied=True),
    "1.7b": _PublishedQwen3(2048, 6144, 28, 16, tied=True),
    "4b": _PublishedQwen3(2560, 9728, 36, 32, tied=True),
    "8b": _PublishedQwen3(4096, 12288, 36, 32, tied=False),
}


@dataclass(frozen=True)
class Qwen3(LanguageModel):
    name: ClassVar[str] = "qwen3"
    title: ClassVar[str] = "Qwen3"
    sentence: ClassVar[str] = (
        "A language model that normalises queries and keys, with a vocabulary larger than Llama's."
    )

    size: str = knob("0.6b", "which published model", choices=tuple(_SIZES))
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
            raise UsageError(f"sequence is {self.sequence}; Qwen3 knows {_POSITIONS:,} positions.")

    @property
    def _published(self) -> _PublishedQwen3:
        return _SIZES[self.size]

    @property
    def vocabulary(self) -> int:
        return _VOCABULARY if self.narrow == 1 else _VOCABULARY // 8 // self.narrow

    def _model(self) -> nn.Module:
        from transformers import Qwen3Config, Qwen3ForCausalLM

        size, by = self._published, self.narrow
        config = Qwen3Config(
            vocab_size=self.vocabulary,
            hidden_size=size.width // by,
            intermediate_size=size.inner // by,
            num_hidden_layers=self.layers or size.layers,
            num_attention_heads=size.heads // by,
            num_key_value_heads=_KEY_VALUE_HEADS // by,
            head_dim=_HEAD,
            max_position_embeddings=_POSITIONS,
            initializer_range=0.02 if by == 1 else (size.width // by) ** -0.5,
            rms_norm_eps=1e-6,
            rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0},
            tie_word_embeddings=size.tied,
            bos_token_id=None,
            eos_token_id=None,
            attn_implementation=attention_name(),
        )
        return finished(Qwen3ForCausalLM(config))

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
