"""GPT-2 through transformers' own class, in its four published sizes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

from torch import nn

from memviz.errors import UsageError
from memviz.runner.knobs import knob
from memviz.runner.workloads.language_model import LanguageModel, attention_name, finished
from memviz.runner.workloads.workload import Published, mode_knob, plural

_HEAD = 64
_POSITIONS = 1024
_VOCABULARY = 50257
_WIDE_VOCABULARY = 2**14


@dataclass(frozen=True)
class _PublishedGpt2:
    heads: int
    layers: int


_SIZES = {
    "124m": _PublishedGpt2(12, 12),
    "355m": _PublishedGpt2(16, 24),
    "774m": _PublishedGpt2(20, 36),
    "1558m": _PublishedGpt2(25, 48),
}


@dataclass(frozen=True)
class Gpt2(LanguageModel):
    name: ClassVar[str] = "gpt2"
    title: ClassVar[str] = "GPT-2"
    sentence: ClassVar[str] = "A small language model whose logits outweigh its layers."
    published: ClassVar[tuple[Published, ...]] = (
        Published({"size": "124m"}, 124_439_808, "124M", "https://huggingface.co/openai-community/gpt2"),
        Published({"size": "355m"}, 354_823_168, "355M", "https://huggingface.co/openai-community/gpt2-medium"),
        Published({"size": "774m"}, 774_030_080, "774M", "https://huggingface.co/openai-community/gpt2-large"),
        Published({"size": "1558m"}, 1_557_611_200, "1.5B", "https://huggingface.co/openai-community/gpt2-xl"),
    )
    holds: ClassVar[tuple[str, ...] | None] = ("a language model that writes",)

    size: str = knob("124m", "which published model, by its parameters", choices=tuple(_SIZES))
    batch: int = knob(8, "sequences at once", least=1)
    sequence: int = knob(1024, "tokens in a sequence, at most 1024", least=1)
    layers: int | None = knob(None, "transformer blocks; none means as published", least=1)
    narrow: int = knob(1, "divides the number of heads, and the width with it", least=1)
    dropout: float = knob(0.1, "share dropped in training, as published; a twin for comparing has none", least=0)
    cache: bool = knob(False, "whether inference keeps keys and values")
    mode: str = mode_knob("training")

    def _check(self) -> None:
        super()._check()
        if self.sequence > _POSITIONS:
            raise UsageError(f"sequence is {self.sequence}; GPT-2 knows {_POSITIONS} positions.")
        if not self.dropout < 1:
            raise UsageError(f"dropout is {self.dropout}; it is a share from 0 up to, but not including, 1.")
        if self._published.heads % self.narrow:
            raise UsageError(f"narrow is {self.narrow}; it must divide the {self._published.heads} heads.")

    @property
    def _published(self) -> _PublishedGpt2:
        return _SIZES[self.size]

    @property
    def vocabulary(self) -> int:
        return _VOCABULARY if self.narrow == 1 else _WIDE_VOCABULARY // self.narrow

    def _model(self) -> nn.Module:
        from transformers import GPT2Config, GPT2LMHeadModel

        heads = self._published.heads // self.narrow
        width = heads * _HEAD
        config = GPT2Config(
            vocab_size=self.vocabulary,
            n_positions=_POSITIONS,
            n_embd=width,
            n_layer=self.layers or self._published.layers,
            n_head=heads,
            resid_pdrop=self.dropout,
            embd_pdrop=self.dropout,
            attn_pdrop=self.dropout,
            initializer_range=0.02 if self.narrow == 1 else width**-0.5,
            bos_token_id=None,
            eos_token_id=None,
            attn_implementation=attention_name(),
        )
        return finished(GPT2LMHeadModel(config))

    def small(self) -> Self:
        """Without dropout, so that two runs differ by what is compared and by nothing else."""
        narrow = next(divisor for divisor in range(4, 26) if self._published.heads % divisor == 0)
        return replace(
            self._at_most(batch=2, sequence=64),
            layers=min(self.layers or self._published.layers, 4),
            narrow=max(self.narrow, narrow),
            dropout=0.0,
        )

    def _shapes(self) -> str:
        layers = plural(self.layers or self._published.layers, "layer")
        return f"{self.size}, {layers}, {self.batch} x {self.sequence} tokens"
