"""BERT that fills in masked words, through transformers' own class, in two published sizes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import torch
from torch import nn

from memviz.errors import UsageError
from memviz.runner.knobs import knob
from memviz.runner.workloads.language_model import LanguageModel, attention_name
from memviz.runner.workloads.workload import Published, mode_knob, plural

_POSITIONS = 512
_VOCABULARY = 30_522
_HEAD = 64


@dataclass(frozen=True)
class _PublishedBert:
    heads: int
    layers: int


_SIZES = {"base": _PublishedBert(12, 12), "large": _PublishedBert(16, 24)}


@dataclass(frozen=True)
class Bert(LanguageModel):
    name: ClassVar[str] = "bert"
    title: ClassVar[str] = "BERT"
    sentence: ClassVar[str] = "Reads a text in both directions and fills in masked words."
    published: ClassVar[tuple[Published, ...]] = (
        Published({"size": "base"}, 109_514_298, "110M", "https://huggingface.co/google-bert/bert-base-uncased"),
        Published({"size": "large"}, 335_174_458, "336M", "https://huggingface.co/google-bert/bert-large-uncased"),
    )

    size: str = knob("base", "which published model", choices=tuple(_SIZES))
    batch: int = knob(32, "sequences at once", least=1)
    sequence: int = knob(512, "tokens in a sequence, at most 512", least=1)
    layers: int | None = knob(None, "transformer blocks; none means as published", least=1)
    narrow: int = knob(1, "divides the number of heads, and the width with it", choices=(1, 2, 4))
    dropout: float = knob(0.1, "share dropped in training, as published; a twin for comparing has none", least=0)
    mode: str = mode_knob("training")

    cache: bool = field(default=False, init=False, repr=False)
    """No word comes after another here, so there is nothing to keep."""

    def _check(self) -> None:
        if self.sequence > _POSITIONS:
            raise UsageError(f"sequence is {self.sequence}; BERT knows {_POSITIONS} positions.")
        if not self.dropout < 1:
            raise UsageError(f"dropout is {self.dropout}; it is a share from 0 up to, but not including, 1.")

    @property
    def _published(self) -> _PublishedBert:
        return _SIZES[self.size]

    @property
    def vocabulary(self) -> int:
        return _VOCABULARY if self.narrow == 1 else _VOCABULARY // 8 // self.narrow

    def _model(self) -> nn.Module:
        from transformers import BertConfig, BertForMaskedLM

        heads = self._published.heads // self.narrow
        width = heads * _HEAD
        config = BertConfig(
            vocab_size=self.vocabulary,
            hidden_size=width,
            num_hidden_layers=self.layers or self._published.layers,
            num_attention_heads=heads,
            intermediate_size=4 * width,
            hidden_dropout_prob=self.dropout,
            attention_probs_dropout_prob=self.dropout,
            max_position_embeddings=_POSITIONS,
            initializer_range=0.02 if self.narrow == 1 else width**-0.5,
            attn_implementation=attention_name(),
        )
        model: Any = BertForMaskedLM(config)
        model.tie_weights()
        made: nn.Module = model
        return made

    def inputs(self, device: torch.device, micro_batch: int = 0) -> dict[str, Any]:
        arguments = super().inputs(device, micro_batch)
        return {name: value for name, value in arguments.items() if name != "use_cache"}

    def small(self) -> Self:
        """Without dropout, so that two runs differ by what is compared and by nothing else."""
        return replace(
            self._at_most(batch=2, sequence=64),
            layers=min(self.layers or self._published.layers, 4),
            narrow=4,
            dropout=0.0,
        )

    def _shapes(self) -> str:
        layers = plural(self.layers or self._published.layers, "layer")
        return f"{self.size}, {layers}, {self.batch} x {self.sequence} tokens"
