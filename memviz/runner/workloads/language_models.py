"""Language models through transformers' own classes, in their published sizes: BERT, GPT-2, Llama 3, Qwen3, Mixtral."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from memviz.errors import UsageError
from memviz.runner.knobs import knob
from memviz.runner.workloads.workload import FromConfiguration, Published, RandomInputs, mode_knob, plural
from optimizations.kv_cache import cache_argument

ATTENTION = "sdpa_without_mask"


class LanguageModel(FromConfiguration):
    """A causal language model of transformers."""

    batch: int
    sequence: int
    cache: bool
    seed: int

    @property
    @abstractmethod
    def vocabulary(self) -> int: ...

    def _check(self) -> None:
        if self.cache and self.training:
            raise UsageError(
                "cache keeps keys and values for the next token, and training asks for none; leave it off."
            )

    def inputs(self, device: torch.device, micro_batch: int = 0) -> dict[str, Any]:
        tokens = RandomInputs(device, self.seed, micro_batch).whole(self.vocabulary, self.batch, self.sequence)
        arguments: dict[str, Any] = {"input_ids": tokens, "use_cache": self.cache}
        return {**arguments, "labels": tokens} if self.training else arguments

    def loss(self, output: Any) -> Tensor:
        loss: Tensor = output.loss
        return loss

    def _weights(self, model: nn.Module) -> None:
        """Left as transformers drew them: its scale fits each width, and tied matrices have two roles."""


def attention_name() -> str:
    """The name, known to transformers from now on, of its own SDPA attention without the mask made before it.

    For a whole sequence without padding transformers makes no mask either: SDPA is told that it is causal. But it finds
    that out by looking whether the positions restart somewhere, and tensors without data cannot be looked at. For an
    attention that it has no mask for, it does not look.
    """
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    AttentionInterface.register(ATTENTION, sdpa_attention_forward)
    return ATTENTION


def finished(model: Any) -> nn.Module:
    """Ties the head to the embeddings also on meta, where early releases of transformers 5 do not.

    And names the loss that transformers falls back to anyway, without its warning for classes that it does not know.
    """
    model.tie_weights()
    model.loss_type = "ForCausalLM"
    made: nn.Module = model
    return made


_BERT_POSITIONS = 512
_BERT_VOCABULARY = 30_522
_BERT_HEAD = 64


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
        if self.sequence > _BERT_POSITIONS:
            raise UsageError(f"sequence is {self.sequence}; BERT knows {_BERT_POSITIONS} positions.")
        if not self.dropout < 1:
            raise UsageError(f"dropout is {self.dropout}; it is a share from 0 up to, but not including, 1.")

    @property
    def _published(self) -> _PublishedBert:
        return _SIZES[self.size]

    @property
    def vocabulary(self) -> int:
        return _BERT_VOCABULARY if self.narrow == 1 else _BERT_VOCABULARY // 8 // self.narrow

    def _model(self) -> nn.Module:
        from transformers import BertConfig, BertForMaskedLM

        heads = self._published.heads // self.narrow
        width = heads * _BERT_HEAD
        config = BertConfig(
            vocab_size=self.vocabulary,
            hidden_size=width,
            num_hidden_layers=self.layers or self._published.layers,
            num_attention_heads=heads,
            intermediate_size=4 * width,
            hidden_dropout_prob=self.dropout,
            attention_probs_dropout_prob=self.dropout,
            max_position_embeddings=_BERT_POSITIONS,
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


_GPT2_HEAD = 64
_GPT2_POSITIONS = 1024
_GPT2_VOCABULARY = 50257
_GPT2_WIDE_VOCABULARY = 2**14


@dataclass(frozen=True)
class _PublishedGpt2:
    heads: int
    layers: int


_GPT2_SIZES = {
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

    size: str = knob("124m", "which published model, by its parameters", choices=tuple(_GPT2_SIZES))
    batch: int = knob(8, "sequences at once", least=1)
    sequence: int = knob(1024, "tokens in a sequence, at most 1024", least=1)
    layers: int | None = knob(None, "transformer blocks; none means as published", least=1)
    narrow: int = knob(1, "divides the number of heads, and the width with it", least=1)
    dropout: float = knob(0.1, "share dropped in training, as published; a twin for comparing has none", least=0)
    cache: bool = knob(False, "whether inference keeps keys and values")
    mode: str = mode_knob("training")

    def _check(self) -> None:
        super()._check()
        if self.sequence > _GPT2_POSITIONS:
            raise UsageError(f"sequence is {self.sequence}; GPT-2 knows {_GPT2_POSITIONS} positions.")
        if not self.dropout < 1:
            raise UsageError(f"dropout is {self.dropout}; it is a share from 0 up to, but not including, 1.")
        if self._published.heads % self.narrow:
            raise UsageError(f"narrow is {self.narrow}; it must divide the {self._published.heads} heads.")

    @property
    def _published(self) -> _PublishedGpt2:
        return _GPT2_SIZES[self.size]

    @property
    def vocabulary(self) -> int:
        return _GPT2_VOCABULARY if self.narrow == 1 else _GPT2_WIDE_VOCABULARY // self.narrow

    def _model(self) -> nn.Module:
        from transformers import GPT2Config, GPT2LMHeadModel

        heads = self._published.heads // self.narrow
        width = heads * _GPT2_HEAD
        config = GPT2Config(
            vocab_size=self.vocabulary,
            n_positions=_GPT2_POSITIONS,
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


class PromptThenTokens(nn.Module):
    """The tokens after the prompt are given and not chosen, so that whatever rounds otherwise reads the same ones."""

    def __init__(self, model: nn.Module, prompt: int) -> None:
        super().__init__()
        self.model = model
        self.prompt = prompt

    def forward(self, input_ids: Tensor, use_cache: bool) -> Any:
        """The last token's logits, and the cache of all: of earlier tokens nobody wants logits."""
        cache = cache_argument(type(self.model), self.model.config)
        output = self.model(input_ids=input_ids[:, : self.prompt], use_cache=use_cache, logits_to_keep=1)
        for place in range(self.prompt, input_ids.shape[1]):
            token, kept = input_ids[:, place : place + 1], {cache: output[cache]} if use_cache else {}
            output = self.model(input_ids=token, **kept, use_cache=use_cache, logits_to_keep=1)
        return output


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
    """Size of the published vocabulary."""
    family: ClassVar[str]
    """Name of the published family, for errors."""

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
        return PromptThenTokens(model, self.sequence) if self.new_tokens else model

    @abstractmethod
    def _language_model(self) -> nn.Module: ...

    def _dimensions(self) -> dict[str, Any]:
        """Return the dimensions that all configurations of transformers name alike."""
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


_LLAMA_SIZES = {
    "1b": PublishedDecoder(2048, 8192, 16, 32, 64, tied=True),
    "3b": PublishedDecoder(3072, 8192, 28, 24, 128, tied=True),
    "8b": PublishedDecoder(4096, 14336, 32, 32, 128, tied=False),
}
_LLAMA_ROPE_FACTORS = {"1b": 32.0, "3b": 32.0, "8b": 8.0}
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
    sizes: ClassVar[dict[str, PublishedDecoder]] = _LLAMA_SIZES
    positions: ClassVar[int] = 131_072
    words: ClassVar[int] = 128_256
    family: ClassVar[str] = "Llama 3"

    size: str = knob(
        "1b", "which published model: Llama 3.2 in 1b and 3b, Llama 3.1 in 8b", choices=tuple(_LLAMA_SIZES)
    )

    def _language_model(self) -> nn.Module:
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(**self._dimensions(), rms_norm_eps=1e-5, rope_parameters=self._rope())
        model: nn.Module = LlamaForCausalLM(config)
        return model

    def _rope(self) -> dict[str, Any]:
        return {
            "rope_type": "llama3",
            "rope_theta": 500_000.0,
            "factor": _LLAMA_ROPE_FACTORS[self.size],
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }


_QWEN3_SIZES = {
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
    sizes: ClassVar[dict[str, PublishedDecoder]] = _QWEN3_SIZES
    positions: ClassVar[int] = 40_960
    words: ClassVar[int] = 151_936
    family: ClassVar[str] = "Qwen3"

    size: str = knob("0.6b", "which published model", choices=tuple(_QWEN3_SIZES))

    def _language_model(self) -> nn.Module:
        from transformers import Qwen3Config, Qwen3ForCausalLM

        rope = {"rope_type": "default", "rope_theta": 1_000_000.0}
        model: nn.Module = Qwen3ForCausalLM(Qwen3Config(**self._dimensions(), rms_norm_eps=1e-6, rope_parameters=rope))
        return model


_MIXTRAL_SIZES = {"8x7b": PublishedDecoder(4096, 14336, 32, 32, 128, tied=False)}
_EXPERTS_PER_TOKEN = 2
"""Experts that each token goes through."""


@dataclass(frozen=True)
class Mixtral(Decoder):
    name: ClassVar[str] = "mixtral"
    title: ClassVar[str] = "Mixtral"
    sentence: ClassVar[str] = "A language model with experts: all of its weights are held, and a token uses a quarter."
    published: ClassVar[tuple[Published, ...]] = (
        Published({}, 46_702_792_704, "46.7B", "https://mistral.ai/news/mixtral-of-experts"),
    )
    sizes: ClassVar[dict[str, PublishedDecoder]] = _MIXTRAL_SIZES
    positions: ClassVar[int] = 32_768
    words: ClassVar[int] = 32_000
    family: ClassVar[str] = "Mixtral"

    size: str = knob("8x7b", "the published model", choices=tuple(_MIXTRAL_SIZES))
    experts: int = knob(8, "feed-forwards in a block; the published model has 8", least=_EXPERTS_PER_TOKEN)

    def _language_model(self) -> nn.Module:
        from transformers import MixtralConfig, MixtralForCausalLM

        config = MixtralConfig(
            **self._dimensions(),
            num_local_experts=self.experts,
            num_experts_per_tok=_EXPERTS_PER_TOKEN,
            rms_norm_eps=1e-5,
            rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0},
        )
        model: nn.Module = MixtralForCausalLM(config)
        return model
