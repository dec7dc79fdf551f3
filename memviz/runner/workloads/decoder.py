"""What our decoders share: published sizes, the same knobs, and twins that are as narrow as they can be."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import nn

from memviz.errors import UsageError
from memviz.runner.knobs import knob
from memviz.runner.workloads.continuing import Continuing
from memviz.runner.workloads.language_model import LanguageModel, attention_name, finished
from memviz.runner.workloads.workload import mode_knob, plural

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
    """Blocks of attention and a gated feed-forward with RMS norms. Subclasses give `_language_model`."""

    holds: ClassVar[tuple[str, ...] | None] = ("a language model that writes",)
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
    new_tokens: int = knob(0, "tokens that inference reads one by one after the sequence, from its cache", least=0)
    mode: str = mode_knob("training")

    def _check(self) -> None:
        super()._check()
        if self.sequence + self.new_tokens > self.positions:
            beside = f" and {self.new_tokens} new tokens" if self.new_tokens else ""
            raise UsageError(f"sequence is {self.sequence}{beside}; {self.family} knows {self.positions:,} positions.")
        if self.new_tokens and not self.cache:
            raise UsageError(
                "new_tokens look at the keys and values of earlier ones: set cache=true and mode=inference."
            )

    @property
    def _published(self) -> PublishedDecoder:
        return self.sizes[self.size]

    @property
    def vocabulary(self) -> int:
        return self.words if self.narrow == 1 else self.words // 8 // self.narrow

    def inputs(self, device: torch.device, micro_batch: int = 0) -> dict[str, Any]:
        if not self.new_tokens:
            return super().inputs(device, micro_batch)
        longer = replace(self, sequence=self.sequence + self.new_tokens, new_tokens=0)
        return longer.inputs(device, micro_batch)

    def _model(self) -> nn.Module:
        model = finished(self._language_model())
        return Continuing(model, self.sequence) if self.new_tokens else model

    @abstractmethod
    def _language_model(self) -> nn.Module: ...

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
            # After a prompt a mask says what a cache holds, and transformers makes it without a look at the data.
            "attn_implementation": "sdpa" if self.new_tokens else attention_name(),
        }

    def small(self) -> Self:
        return replace(
            self._at_most(batch=2, sequence=64, new_tokens=4),
            layers=min(self.layers or self._published.layers, 4),
            narrow=_NARROWEST,
        )

    def _shapes(self) -> str:
        layers = plural(self.layers or self._published.layers, "layer")
        new = f" and {self.new_tokens} one by one" if self.new_tokens else ""
        return f"{self.size}, {layers}, {self.batch} x {self.sequence} tokens{new}"
