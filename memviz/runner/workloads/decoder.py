"""What our decoders share: published sizes, the same knobs, and twins that are as narrow as they can be."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from memviz.errors import UsageError
from memviz.runner.knobs import knob
from memviz.runner.workloads.language_model import LanguageModel, attention_name
from memviz.runner.workloads.workload import dtype_knob, micro_batches_knob, mode_knob, plural, seed_knob

_NARROWEST = 8


@dataclass(frozen=True)
class PublishedDecoder:
    width: int
    inner: int
    layers: int
    heads: int
    head: int
    tied: bool
    key_value_heads: int = 8


@dataclass(frozen=True)
class Decoder(LanguageModel):
    """Blocks of attention and a gated feed-forward with RMS norms. Subclasses say their sizes and give `_model`."""

    sizes: ClassVar[dict[str, PublishedDecoder]]
    positions: ClassVar[int]
    """That it knows."""
    words: ClassVar[int]
    """Of its vocabulary, as published."""
    family: ClassVar[str]
    """What its sizes have in common, for an error to say."""

    size: str = knob("", "which published model")
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
        if self.sequence > self.positions:
            raise UsageError(f"sequence is {self.sequence}; {self.family} knows {self.positions:,} positions.")

    @property
    def _published(self) -> PublishedDecoder:
        return self.sizes[self.size]

    @property
    def vocabulary(self) -> int:
        return self.words if self.narrow == 1 else self.words // 8 // self.narrow

    def _dimensions(self) -> dict[str, Any]:
        """What every configuration of transformers calls the same."""
        size, by = self._published, self.narrow
        return {
            "vocab_size": self.vocabulary,
            "hidden_size": size.width // by,
            "intermediate_size": size.inner // by,
            "num_hidden_layers": self.layers or size.layers,
            "num_attention_heads": size.heads // by,
            "num_key_value_heads": size.key_value_heads // by,
            "head_dim": size.head,
            "max_position_embeddings": self.positions,
            "initializer_range": 0.02 if by == 1 else (size.width // by) ** -0.5,
            "tie_word_embeddings": size.tied,
            "bos_token_id": None,
            "eos_token_id": None,
            "attn_implementation": attention_name(),
        }

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
