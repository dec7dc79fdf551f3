"""Transformers of the library transformers in their published sizes: BERT, GPT-2, Llama 3, Qwen3, Mixtral, ViT."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from torch import Tensor, nn

from memviz.errors import UsageError
from memviz.runner.request import knob
from memviz.runner.workloads.workload import (
    FromConfiguration,
    Published,
    RandomInputs,
    Shape,
    check_multiple,
    check_share,
    mode_knob,
    size_knob,
)
from memviz.units import counted
from optimizations.kv_cache import cache_argument

ATTENTION = "sdpa_without_mask"
_HEAD = 64
"""Channels of a head in BERT, GPT-2 and ViT."""


def attention_name() -> str:
    """Register transformers' own SDPA attention without the mask made before it, and return its name.

    For a whole sequence without padding transformers makes no mask either: SDPA is told that it is causal. But it finds
    that out by looking whether the positions restart somewhere, and tensors without data cannot be looked at. For an
    attention that it has no mask for, it does not look.
    """
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    AttentionInterface.register(ATTENTION, sdpa_attention_forward)
    return ATTENTION


def layers_knob() -> Any:
    return knob(None, "transformer blocks (default: as published)", least=1)


def dropout_knob() -> Any:
    return knob(0.1, "dropout probability in training, as published; 0 in output checks", least=0)


def cache_knob() -> Any:
    return knob(False, "KV cache in inference")


class TransformerPreset(FromConfiguration):
    """A model of transformers in one of its published sizes."""

    library = "transformers"
    batch: int
    layers: int | None
    narrow: int

    def _model(self) -> Any:
        import transformers

        kind: Any = getattr(transformers, self.kind)
        return kind(kind.config_class(**self._configuration()))

    @property
    def heads(self) -> int:
        return self.shape.heads // self.narrow

    def loss(self, output: Any) -> Tensor:
        loss: Tensor = output.loss
        return loss

    @abstractmethod
    def contents_text(self) -> str: ...

    def _shapes(self) -> str:
        return f"{getattr(self, 'size', '')}, {counted(self.setting('layers'), 'layer')}, {self.contents_text()}"


@dataclass(frozen=True)
class Vit(TransformerPreset):
    name = "vit"
    title = "Vision transformer"
    sentence = "Image classification into 1,000 classes, from patches of 16 x 16 pixels."
    published = (
        Published({"size": "base"}, 86_567_656, "86M", "https://arxiv.org/abs/2010.11929"),
        Published({"size": "large"}, 304_326_632, "307M", "https://arxiv.org/abs/2010.11929"),
    )
    kind = "ViTForImageClassification"
    sizes = {"base": Shape(heads=12, layers=12), "large": Shape(heads=16, layers=24)}
    most = {"batch": 2, "pixels": 64, "layers": 4}
    reduced = {"narrow": 4}
    classes: ClassVar[int] = 1000

    size: str = size_knob(sizes)
    batch: int = knob(64, "images per batch", least=1)
    pixels: int = knob(224, "image height and width: a multiple of 16", least=1)
    layers: int | None = layers_knob()
    narrow: int = knob(1, "divisor of the number of heads and the width", choices=(1, 2, 4))
    mode: str = mode_knob("training")

    def _check(self) -> None:
        check_multiple("pixels", self.pixels, 16, why="a patch has 16 x 16 pixels")

    @property
    def tokens(self) -> int:
        """Patches, and one token for the whole picture."""
        return (self.pixels // 16) ** 2 + 1

    def _configuration(self) -> dict[str, Any]:
        return {
            "hidden_size": self.heads * _HEAD,
            "num_hidden_layers": self.setting("layers"),
            "num_attention_heads": self.heads,
            "intermediate_size": 4 * self.heads * _HEAD,
            "image_size": self.pixels,
            "num_labels": self.classes,
            "attn_implementation": "sdpa",
        }

    def _inputs(self, draw: RandomInputs) -> dict[str, Any]:
        pictures = draw.normal(self.batch, 3, self.pixels, self.pixels)
        labels = {"labels": draw.integers(self.classes, self.batch)} if self.training else {}
        return {"pixel_values": pictures, **labels}

    def loss(self, output: Any) -> Tensor:
        loss: Tensor = output.loss if self.training else output.logits.mean()
        return loss

    def contents_text(self) -> str:
        return f"{counted(self.batch, 'image')} of {self.pixels} x {self.pixels} ({self.tokens} tokens)"


class LanguageModel(TransformerPreset):
    words: ClassVar[int]
    """Size of the published vocabulary."""
    positions: ClassVar[int]
    """Longest sequence of the published model."""
    family: ClassVar[str]
    """Name of the published family, for errors."""
    most = {"batch": 2, "sequence": 64, "layers": 4}
    sequence: int
    cache: bool

    @property
    def vocabulary(self) -> int:
        return self.words if self.narrow == 1 else self.words // 8 // self.narrow

    def _check(self) -> None:
        if self.cache and self.training:
            raise UsageError("cache is for inference only. Drop it, or set mode=inference.")

    def _check_length(self) -> None:
        if self.sequence > self.positions:
            raise UsageError(f"sequence is {self.sequence}; {self.family} knows {self.positions} positions.")

    def _model(self) -> Any:
        model = super()._model()
        # Early releases of transformers 5 do not tie the head to the embeddings on meta.
        model.tie_weights()
        return model

    def _inputs(self, draw: RandomInputs) -> dict[str, Any]:
        tokens = draw.integers(self.vocabulary, self.batch, self.sequence)
        labels = {"labels": tokens} if self.training else {}
        return {"input_ids": tokens, "use_cache": self.cache, **labels}

    def _weights(self, model: nn.Module) -> None:
        """Leave the weights as transformers drew them: its scale fits each width, and tied matrices have two roles."""

    def initializer_range(self, width: int) -> float:
        return 0.02 if self.narrow == 1 else width**-0.5

    def contents_text(self) -> str:
        return f"{self.batch} x {self.sequence} tokens"


@dataclass(frozen=True)
class Bert(LanguageModel):
    name = "bert"
    title = "BERT"
    sentence = "Bidirectional encoder that predicts masked words."
    published = (
        Published({"size": "base"}, 109_514_298, "110M", "https://huggingface.co/google-bert/bert-base-uncased"),
        Published({"size": "large"}, 335_174_458, "336M", "https://huggingface.co/google-bert/bert-large-uncased"),
    )
    kind = "BertForMaskedLM"
    sizes = {"base": Shape(heads=12, layers=12), "large": Shape(heads=16, layers=24)}
    words = 30_522
    positions = 512
    family = "BERT"
    # Without dropout two runs differ by what is compared and by nothing else.
    reduced = {"narrow": 4, "dropout": 0.0}

    size: str = size_knob(sizes)
    batch: int = knob(32, "sequences per batch", least=1)
    sequence: int = knob(512, "tokens per sequence, at most 512", least=1)
    layers: int | None = layers_knob()
    narrow: int = knob(1, "divisor of the number of heads and the width", choices=(1, 2, 4))
    dropout: float = dropout_knob()
    mode: str = mode_knob("training")

    cache: bool = field(default=False, init=False, repr=False)
    """An encoder has nothing to cache."""

    def _check(self) -> None:
        self._check_length()
        check_share("dropout", self.dropout)

    def _configuration(self) -> dict[str, Any]:
        width = self.heads * _HEAD
        return {
            "vocab_size": self.vocabulary,
            "hidden_size": width,
            "num_hidden_layers": self.setting("layers"),
            "num_attention_heads": self.heads,
            "intermediate_size": 4 * width,
            "hidden_dropout_prob": self.dropout,
            "attention_probs_dropout_prob": self.dropout,
            "max_position_embeddings": self.positions,
            "initializer_range": self.initializer_range(width),
            "attn_implementation": attention_name(),
        }

    def _inputs(self, draw: RandomInputs) -> dict[str, Any]:
        return {name: value for name, value in super()._inputs(draw).items() if name != "use_cache"}


class CausalModel(LanguageModel):
    holds = ("a decoder-only language model",)

    def _model(self) -> Any:
        model = super()._model()
        # The loss that transformers falls back to anyway, without its warning for classes that it does not know.
        model.loss_type = "ForCausalLM"
        return model


@dataclass(frozen=True)
class Gpt2(CausalModel):
    name = "gpt2"
    title = "GPT-2"
    sentence = "A small language model whose logits outweigh its layers."
    published = (
        Published({"size": "124m"}, 124_439_808, "124M", "https://huggingface.co/openai-community/gpt2"),
        Published({"size": "355m"}, 354_823_168, "355M", "https://huggingface.co/openai-community/gpt2-medium"),
        Published({"size": "774m"}, 774_030_080, "774M", "https://huggingface.co/openai-community/gpt2-large"),
        Published({"size": "1558m"}, 1_557_611_200, "1.5B", "https://huggingface.co/openai-community/gpt2-xl"),
    )
    kind = "GPT2LMHeadModel"
    sizes = {"124m": Shape(12, 12), "355m": Shape(16, 24), "774m": Shape(20, 36), "1558m": Shape(25, 48)}
    words = 50_257
    positions = 1024
    family = "GPT-2"
    reduced = {"dropout": 0.0}

    size: str = size_knob(sizes, "published model, by parameters")
    batch: int = knob(8, "sequences at once", least=1)
    sequence: int = knob(1024, "tokens per sequence, at most 1024", least=1)
    layers: int | None = layers_knob()
    narrow: int = knob(1, "divisor of the number of heads and the width", least=1)
    dropout: float = dropout_knob()
    cache: bool = cache_knob()
    mode: str = mode_knob("training")

    def _check(self) -> None:
        super()._check()
        self._check_length()
        check_share("dropout", self.dropout)
        if self.shape.heads % self.narrow:
            raise UsageError(f"narrow is {self.narrow}; it must divide the {self.shape.heads} heads.")

    @property
    def vocabulary(self) -> int:
        return self.words if self.narrow == 1 else 2**14 // self.narrow

    def _configuration(self) -> dict[str, Any]:
        width = self.heads * _HEAD
        return {
            "vocab_size": self.vocabulary,
            "n_positions": self.positions,
            "n_embd": width,
            "n_layer": self.setting("layers"),
            "n_head": self.heads,
            "resid_pdrop": self.dropout,
            "embd_pdrop": self.dropout,
            "attn_pdrop": self.dropout,
            "initializer_range": self.initializer_range(width),
            "bos_token_id": None,
            "eos_token_id": None,
            "attn_implementation": attention_name(),
        }

    def small(self) -> Self:
        narrow = next(divisor for divisor in range(4, 26) if self.shape.heads % divisor == 0)
        return replace(super().small(), narrow=max(self.narrow, narrow))


class PromptThenTokens(nn.Module):
    """A model that reads a prompt and then given tokens one by one, so that variants which round differently read the
    same ones."""

    def __init__(self, model: nn.Module, prompt: int) -> None:
        super().__init__()
        self.model = model
        self.prompt = prompt

    def forward(self, input_ids: Tensor, use_cache: bool) -> Any:
        """Return the last token's logits, and the cache of all."""
        cache = cache_argument(type(self.model), self.model.config)
        output = self.model(input_ids=input_ids[:, : self.prompt], use_cache=use_cache, logits_to_keep=1)
        for place in range(self.prompt, input_ids.shape[1]):
            token, cached = input_ids[:, place : place + 1], {cache: output[cache]} if use_cache else {}
            output = self.model(input_ids=token, **cached, use_cache=use_cache, logits_to_keep=1)
        return output


@dataclass(frozen=True)
class Decoder(CausalModel):
    """Blocks of attention and a gated feed-forward with RMS norms."""

    rope_theta: ClassVar[float]
    norm_epsilon: ClassVar[float] = 1e-5
    most = {**LanguageModel.most, "new_tokens": 4}
    reduced = {"narrow": 8}

    size: str = knob("", "which published model")
    batch: int = knob(1, "sequences at once", least=1)
    sequence: int = knob(4096, "tokens in a sequence", least=1)
    layers: int | None = layers_knob()
    narrow: int = knob(1, "divisor of heads, widths and vocabulary", choices=(1, 2, 4, 8))
    cache: bool = cache_knob()
    new_tokens: int = knob(0, "tokens to decode one by one after the sequence, from the KV cache", least=0)
    mode: str = mode_knob("training")

    def _check(self) -> None:
        super()._check()
        if self.sequence + self.new_tokens > self.positions:
            new = f" and {self.new_tokens} new tokens" if self.new_tokens else ""
            raise UsageError(f"sequence is {self.sequence}{new}; {self.family} knows {self.positions:,} positions.")
        if self.new_tokens and not self.cache:
            raise UsageError("new_tokens needs a KV cache: set cache=true and mode=inference.")

    def _inputs(self, draw: RandomInputs) -> dict[str, Any]:
        if not self.new_tokens:
            return super()._inputs(draw)
        return replace(self, sequence=self.sequence + self.new_tokens, new_tokens=0)._inputs(draw)

    def _model(self) -> Any:
        model = super()._model()
        return PromptThenTokens(model, self.sequence) if self.new_tokens else model

    def _configuration(self) -> dict[str, Any]:
        shape, width = self.shape, self.shape.width // self.narrow
        return {
            "vocab_size": self.vocabulary,
            "hidden_size": width,
            "intermediate_size": shape.inner // self.narrow,
            "num_hidden_layers": self.setting("layers"),
            "num_attention_heads": self.heads,
            "num_key_value_heads": shape.key_value_heads // self.narrow,
            "head_dim": shape.head,
            "max_position_embeddings": self.positions,
            "initializer_range": self.initializer_range(width),
            "rms_norm_eps": self.norm_epsilon,
            "rope_parameters": {"rope_type": "default", "rope_theta": self.rope_theta},
            "tie_word_embeddings": shape.tied,
            "bos_token_id": None,
            "eos_token_id": None,
            # After a prompt a mask marks the valid cache entries; transformers builds it without reading data.
            "attn_implementation": "sdpa" if self.new_tokens else attention_name(),
        }

    def contents_text(self) -> str:
        return super().contents_text() + (f" and {self.new_tokens} one by one" if self.new_tokens else "")


@dataclass(frozen=True)
class Llama(Decoder):
    name = "llama"
    title = "Llama 3"
    sentence = "Language model with gated feed-forwards and few key/value heads."
    published = (
        Published({"size": "1b"}, 1_235_814_400, "1.23B", "https://huggingface.co/meta-llama/Llama-3.2-1B"),
        Published({"size": "3b"}, 3_212_749_824, "3.21B", "https://huggingface.co/meta-llama/Llama-3.2-3B"),
        Published({"size": "8b"}, 8_030_261_248, "8B", "https://huggingface.co/meta-llama/Llama-3.1-8B"),
        Published({"size": "70b"}, 70_553_706_496, "70.6B", "https://huggingface.co/meta-llama/Llama-3.1-70B"),
    )
    kind = "LlamaForCausalLM"
    sizes = {
        "1b": Shape(heads=32, layers=16, inner=8192, width=2048, head=64, tied=True),
        "3b": Shape(heads=24, layers=28, inner=8192, width=3072, head=128, tied=True),
        "8b": Shape(heads=32, layers=32, inner=14336, width=4096, head=128),
        "70b": Shape(heads=64, layers=80, inner=28672, width=8192, head=128),
    }
    words = 128_256
    positions = 131_072
    family = "Llama 3"
    rope_theta = 500_000.0

    size: str = size_knob(sizes, "published model: Llama 3.2 in 1b and 3b, Llama 3.1 in 8b and 70b")

    def _configuration(self) -> dict[str, Any]:
        rope = {
            "rope_type": "llama3",
            "rope_theta": self.rope_theta,
            # Positions of the model over those that it was first trained on.
            "factor": 32.0 if self.size in ("1b", "3b") else 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }
        return {**super()._configuration(), "rope_parameters": rope}


@dataclass(frozen=True)
class Qwen3(Decoder):
    name = "qwen3"
    title = "Qwen3"
    sentence = "Language model with normalized queries and keys, and a larger vocabulary than Llama."
    published = (
        Published({"size": "0.6b"}, 596_049_920, "0.6B", "https://huggingface.co/Qwen/Qwen3-0.6B"),
        Published({"size": "1.7b"}, 1_720_574_976, "1.7B", "https://huggingface.co/Qwen/Qwen3-1.7B"),
        Published({"size": "4b"}, 4_022_468_096, "4.0B", "https://huggingface.co/Qwen/Qwen3-4B"),
        Published({"size": "8b"}, 8_190_735_360, "8.2B", "https://huggingface.co/Qwen/Qwen3-8B"),
    )
    kind = "Qwen3ForCausalLM"
    sizes = {
        "0.6b": Shape(heads=16, layers=28, inner=3072, width=1024, head=128, tied=True),
        "1.7b": Shape(heads=16, layers=28, inner=6144, width=2048, head=128, tied=True),
        "4b": Shape(heads=32, layers=36, inner=9728, width=2560, head=128, tied=True),
        "8b": Shape(heads=32, layers=36, inner=12288, width=4096, head=128),
    }
    words = 151_936
    positions = 40_960
    family = "Qwen3"
    rope_theta = 1_000_000.0
    norm_epsilon = 1e-6

    size: str = size_knob(sizes)


_EXPERTS_PER_TOKEN = 2


@dataclass(frozen=True)
class Mixtral(Decoder):
    name = "mixtral"
    title = "Mixtral"
    sentence = "Mixture-of-experts language model: all weights are in memory, and a token uses a quarter of them."
    published = (Published({}, 46_702_792_704, "46.7B", "https://mistral.ai/news/mixtral-of-experts"),)
    kind = "MixtralForCausalLM"
    sizes = {"8x7b": Shape(heads=32, layers=32, inner=14336, width=4096, head=128)}
    words = 32_000
    positions = 32_768
    family = "Mixtral"
    rope_theta = 1_000_000.0

    size: str = size_knob(sizes, "published model")
    experts: int = knob(8, "experts per block; the published model has 8", least=_EXPERTS_PER_TOKEN)

    def _configuration(self) -> dict[str, Any]:
        experts = {"num_local_experts": self.experts, "num_experts_per_tok": _EXPERTS_PER_TOKEN}
        return {**super()._configuration(), **experts}
