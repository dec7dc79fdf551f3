"""Any model of transformers, built from its `config.json` with random weights: its class, inputs, KV cache and LoRA."""

from __future__ import annotations

import difflib
import inspect
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import prod
from typing import Any, Self

import torch
from torch import Tensor, nn

from memviz.errors import UsageError
from memviz.runner.config_source import FILE
from memviz.runner.request import knob, with_knobs
from memviz.runner.workloads.own import default_loss
from memviz.runner.workloads.transformer_presets import attention_name
from memviz.runner.workloads.workload import DTYPES, FromConfiguration, RandomInputs, parameters_text
from memviz.units import counted
from optimizations.kv_cache import cache_argument

_CLASS = re.compile(r"[A-Z]\w{0,120}")
_KINDS = (
    *("AutoModelForSeq2SeqLM", "AutoModelForMaskedLM", "AutoModelForCausalLM", "AutoModelForImageTextToText"),
    *("AutoModelForSpeechSeq2Seq", "AutoModelForImageClassification", "AutoModelForCTC", "AutoModel"),
)
"""Auto classes to try in this order, for a configuration that names no class."""
_NOT_THE_MODEL = ("dtype", "quantization_config")
_WINDOWS = ("sliding_window", "attention_chunk_size", "local_attention", "window_size")


def config_of(values: Mapping[str, Any]) -> Any:
    """Return the configuration as transformers reads it, completed by the defaults of its class."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

    kind = str(values["model_type"])
    if kind not in CONFIG_MAPPING_NAMES:
        close = difflib.get_close_matches(kind.lower()[:80], list(CONFIG_MAPPING_NAMES), n=3, cutoff=0.5)
        near = f" Similar: {', '.join(close)}." if close else " For a model with custom code use FILE.py:function."
        raise UsageError(f"transformers knows no model_type {kind[:80]}.{near}")
    with _library_errors_as_usage(kind):
        return CONFIG_MAPPING[kind].from_dict(_without(values))


def _without(values: Mapping[str, Any]) -> dict[str, Any]:
    remaining = ((key, value) for key, value in values.items() if key not in _NOT_THE_MODEL)
    return {key: _without(value) if isinstance(value, dict) else value for key, value in remaining}


def class_of(config: Any) -> type[Any]:
    """Return the class that `architectures` names, or the first kind of model that transformers has for it."""
    import transformers

    name = next(iter(config.architectures or ()), None)
    if name is None:
        return _usual_class(config)
    kind: Any = getattr(transformers, name, None) if isinstance(name, str) and _CLASS.fullmatch(name) else None
    is_model = isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)
    if not is_model or not isinstance(config, getattr(kind, "config_class", None) or ()):
        raise UsageError(
            f"architectures names {str(name)[:80]}, which is not a model of transformers for {config.model_type}. "
            f"Remove it for {_usual_class(config).__name__}."
        )
    return kind  # type: ignore[no-any-return]


def _usual_class(config: Any) -> type[Any]:
    import transformers

    for kind in _KINDS:
        mapping = getattr(transformers, kind)._model_mapping
        if type(config) in mapping:
            usual = mapping[type(config)]
            return usual[0] if isinstance(usual, tuple) else usual  # type: ignore[no-any-return]
    raise UsageError(f"transformers has no model for {config.model_type}; name one of its classes in architectures.")


def build(config: Any, kind: type[Any], dtype: torch.dtype, length: int) -> Any:
    """On torch's current default device. `length` is that of the sequences it will be given."""
    refusal: Exception | None = None
    for attention in _attentions(config, length):
        with _library_errors_as_usage(config.model_type):
            try:
                model = kind._from_config(config, attn_implementation=attention, dtype=dtype)
            except (ValueError, KeyError) as error:
                refusal = error
                continue
            model.tie_weights()
            if type(model).__name__.endswith("ForCausalLM"):
                # The loss that it falls back to anyway, without a warning for classes that it does not know.
                model.loss_type = "ForCausalLM"
            return model
    raise UsageError(f"No {kind.__name__} can be built from it: {_words(refusal)}") from None


def _attentions(config: Any, length: int) -> Iterator[str | None]:
    """PyTorch's own without a mask, where transformers would make none either; else what it takes by itself."""
    parts = {id(part): part for part in (config, config.get_text_config())}.values()
    windows = [getattr(part, name, None) for part in parts for name in _WINDOWS]
    if not any(isinstance(window, int) and 0 < window <= length for window in windows):
        yield attention_name()
    yield None


@contextmanager
def _library_errors_as_usage(kind: str) -> Iterator[None]:
    """Raise errors of a library about inconsistent values as UsageError."""
    try:
        yield
    except (UsageError, MemoryError):
        raise
    except Exception as error:
        raise UsageError(f"No {kind} can be built from it: {_words(error)}") from error


def _words(error: Exception | None) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}"


_LAYERS = (
    *("num_hidden_layers", "n_layer", "n_layers", "num_layers", "depth"),
    *("encoder_layers", "decoder_layers", "num_decoder_layers"),
)
_HEADS = (
    *("num_attention_heads", "num_key_value_heads", "n_head", "n_heads", "num_heads"),
    *("encoder_attention_heads", "decoder_attention_heads"),
)
_WIDTHS = (
    *("hidden_size", "d_model", "n_embd", "dim", "hidden_dim", "embed_dim", "word_embed_proj_dim"),
    *("intermediate_size", "n_inner", "d_ff", "ffn_dim"),
    *("moe_intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim"),
)
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
_FEW_LAYERS, _FEW_EXPERTS, _FEW_TOKENS = 4, 16, 2048
_DIVISORS = (16, 14, 12, 10, 9, 8, 7, 6, 5, 4, 3, 2)


def _shallow(values: Mapping[str, Any]) -> dict[str, Any]:
    depths = {values[name] for name in _LAYERS if isinstance(values.get(name), int)}
    reduced: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            reduced[name] = _shallow(value) if "model_type" in value else value
        elif name in _LAYERS and isinstance(value, int):
            reduced[name] = min(value, _FEW_LAYERS)
        elif name in _EXPERTS and isinstance(value, int):
            reduced[name] = min(value, _FEW_EXPERTS)
        elif isinstance(value, list) and len(value) in depths and len(value) > _FEW_LAYERS:
            # One entry a layer, as `layer_types` has.
            reduced[name] = value[:_FEW_LAYERS]
        else:
            reduced[name] = value
    if not isinstance(reduced.get("vocab_size"), int) or reduced["vocab_size"] <= _FEW_TOKENS:
        return reduced
    token_ids = {name: value for name, value in reduced.items() if name.endswith("token_id") and isinstance(value, int)}
    beyond = {name: value % _FEW_TOKENS for name, value in token_ids.items() if value >= _FEW_TOKENS}
    return {**reduced, **beyond, "vocab_size": _FEW_TOKENS}


def _narrowed(values: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the values with heads and widths divided, as far as that goes evenly: the narrowest first, itself last."""
    heads = {name: values[name] for name in _HEADS if isinstance(values.get(name), int)}
    widths = {name: values[name] for name in _WIDTHS if isinstance(values.get(name), int)}
    for by in (*_DIVISORS, 1):
        even_heads = all(head % by == 0 or (head < by and by % head == 0) for head in heads.values())
        if even_heads and not any(width % by for width in widths.values()):
            yield {**values, **{name: max(1, value // by) for name, value in (heads | widths).items()}}


def check_has_cache(kind: type[Any], config: Any) -> None:
    if getattr(config, "is_encoder_decoder", False):
        raise UsageError(
            f"tokens sets the KV cache of a decoder-only model, but {kind.__name__} has an encoder, "
            "whose cache is not predicted. Leave tokens at 0."
        )
    if not cache_argument(kind, config):
        raise UsageError(f"tokens sets the KV cache, but {kind.__name__} has none. Leave tokens at 0.")


def filled_cache(config: Any, before: int) -> Any:
    """Filled by the first pass, on the device and in the shape of what it computes; each pass finds `before` tokens."""
    from transformers import DynamicCache

    class KeptTokens(DynamicCache):  # type: ignore[misc]
        def get_seq_length(self, *args: Any, **options: Any) -> int:
            return before

        def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
            there = _kept_tokens(self.layers[layer_idx] if layer_idx < len(self.layers) else None, before)
            return there + query_length, before - there

        def update(
            self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **options: Any
        ) -> tuple[Tensor, Tensor]:
            while layer_idx >= len(self.layers):
                self.layers.append(self.layer_class_to_replicate())
            _wind_back(self.layers[layer_idx], before, key_states, value_states)
            keys, values = super().update(key_states, value_states, layer_idx, *args, **options)
            return keys, values

    return KeptTokens(config=config)


def _kept_tokens(layer: Any, before: int) -> int:
    """Return how many tokens a layer keeps: of a window those that the next token still sees."""
    window = getattr(layer, "sliding_window", None)
    return before if window is None else min(before, window - 1)


def _wind_back(layer: Any, before: int, key: Tensor, value: Tensor) -> None:
    there = _kept_tokens(layer, before)
    if layer.is_initialized:
        layer.keys, layer.values = layer.keys[..., :there, :], layer.values[..., :there, :]
    else:
        layer.lazy_initialization(key, value)
        layer.keys = key.new_empty((*key.shape[:-2], there, key.shape[-1]))
        layer.values = value.new_empty((*value.shape[:-2], there, value.shape[-1]))
    if hasattr(layer, "cumulative_length"):
        layer.cumulative_length = before


def add_lora(model: nn.Module, rank: int) -> nn.Module:
    """Targets all linear layers except the output head, like `target_modules="all-linear"` of PEFT."""
    model.requires_grad_(False)
    output_embeddings: Any = getattr(model, "get_output_embeddings", None)
    head = output_embeddings() if callable(output_embeddings) else None
    adapted = {layer: sides for layer in model.modules() if (sides := _layer_widths(layer)) and layer is not head}
    if not adapted:
        raise UsageError(f"{type(model).__name__} has no linear layer for LoRA. Set mode=training.")
    for layer, (into, out) in adapted.items():
        place: dict[str, Any] = {"device": layer.weight.device, "dtype": layer.weight.dtype, "bias": False}
        layer.lora_down, layer.lora_up = nn.Linear(into, rank, **place), nn.Linear(rank, out, **place)
        with torch.no_grad():
            # As training starts it is nothing; a twin that is compared needs something to differ by.
            layer.lora_up.weight.normal_(std=0.02)
        layer.register_forward_hook(_add_adapter)
    return model


def _add_adapter(layer: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
    added: Tensor = layer.lora_up(layer.lora_down(inputs[0]))  # type: ignore[operator]
    # Common default: alpha is twice the rank.
    return output + added * 2.0


def _layer_widths(layer: nn.Module) -> tuple[int, int] | None:
    """Return input and output width; None for what is no linear layer of a model's own forward."""
    if isinstance(layer, nn.modules.linear.NonDynamicallyQuantizableLinear):
        return None
    if isinstance(layer, nn.Linear):
        return layer.in_features, layer.out_features
    if type(layer).__name__ == "Conv1D" and isinstance(getattr(layer, "nf", None), int):
        # GPT-2's Conv1D, whose weight is transposed.
        weight: Any = layer.weight
        return int(weight.shape[0]), int(weight.shape[1])
    return None


_POSITIONS = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_target_positions")
_BESIDE_TOKENS = 2
"""RoBERTa's table of positions begins behind that of padding."""
_PIXELS, _CHANNELS = 224, 3
_USUAL_SEQUENCE = 1024


def positions_of(config: Any) -> int | None:
    """Return the longest sequence of the model; None if nothing limits it."""
    text = config.get_text_config()
    positions = next((getattr(text, name, None) for name in _POSITIONS if getattr(text, name, None)), None)
    if not isinstance(positions, int):
        return None
    inside = positions - _BESIDE_TOKENS
    return inside if inside > 0 and inside.bit_count() == 1 else positions


def usual_sequence(config: Any) -> int:
    return min(positions_of(config) or _USUAL_SEQUENCE, _USUAL_SEQUENCE)


def main_input(kind: type[Any]) -> str:
    """Return the name of the main input: input_ids, pixel_values, input_features or input_values."""
    return str(getattr(kind, "main_input_name", "input_ids"))


def model_inputs(kind: type[Any], config: Any, shape: tuple[int, int], draw: RandomInputs) -> dict[str, Any]:
    """`shape` is (sequences or pictures, tokens)."""
    takes, main, (batch, length) = inspect.signature(kind.forward).parameters, main_input(kind), shape
    inputs: dict[str, Any] = {}
    if main == "pixel_values" or ("return_loss" in takes and "pixel_values" in takes):
        part = getattr(config, "vision_config", None) or config
        size = getattr(part, "image_size", None) or _PIXELS
        sides = (size, size) if isinstance(size, int) else (size[0], size[1])
        inputs["pixel_values"] = draw.normal(batch, getattr(part, "num_channels", None) or _CHANNELS, *sides)
    if main == "input_features":
        # Whisper's thirty seconds, of which its first layers keep every second frame.
        inputs["input_features"] = draw.normal(batch, config.num_mel_bins, 2 * config.max_source_positions)
    if main == "input_values":
        # So many samples that the convolutions leave as many frames as tokens, or a few more.
        inputs["input_values"] = draw.normal(batch, (length + 1) * prod(getattr(config, "conv_stride", (1,))))
    if main == "input_ids" or ("pixel_values" in inputs and "input_ids" in takes):
        inputs["input_ids"] = draw.integers(config.get_text_config().vocab_size, batch, length)
    if not inputs:
        raise UsageError(f"{kind.__name__} takes {main}, which is not supported here. Use FILE.py:function.")
    if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in takes:
        inputs["decoder_input_ids"] = draw.integers(config.get_text_config().vocab_size, batch, length)
    return inputs


def _labels(kind: type[Any], inputs: dict[str, Any], draw: RandomInputs, config: Any) -> dict[str, Any]:
    """Return labels for the model's own loss. Without any, a mean of the outputs is trained on."""
    takes, name = inspect.signature(kind.forward).parameters, kind.__name__
    if "return_loss" in takes:
        return {"return_loss": True}
    if "labels" not in takes:
        return {}
    if name.endswith("ForSequenceClassification") or "ForImageClassification" in name:
        batch = next(iter(inputs.values())).shape[0]
        return {"labels": draw.integers(max(config.num_labels, 1), batch)}
    if "decoder_input_ids" in inputs:
        return {"labels": inputs["decoder_input_ids"]}
    if name.endswith(("ForTokenClassification", "ForPreTraining")):
        return {"labels": draw.integers(2, *inputs["input_ids"].shape)}
    return {"labels": inputs["input_ids"]} if "input_ids" in inputs else {}


_AS_CONFIGURED = "as configured"
_NAMES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_MODES = {"training": "training step", "lora": "training step of LoRA", "inference": "forward pass"}


@dataclass(frozen=True)
class ConfiguredModel(FromConfiguration):
    name = FILE
    title = "Your model (config.json)"
    sentence = "Any model that transformers can build from its config.json, with random weights."
    library = "transformers"
    holds = None
    depths = ()

    config: str = field(default="", metadata={"python_only": True})
    file: str = field(default="", metadata={"python_only": True})
    batch: int = knob(1, "sequences or images per batch", least=1)
    sequence: int | None = knob(None, "tokens per sequence (default: 1024, or the model's positions if fewer)", least=1)
    tokens: int = knob(0, "tokens in the KV cache in inference, the last of them computed; 0: no cache", least=0)
    mode: str = knob(
        "training", "training: of all weights; lora: adapters only; inference: no gradients", choices=tuple(_MODES)
    )
    rank: int = knob(16, "rank of the LoRA adapters", least=1)
    dtype: str = knob(_AS_CONFIGURED, "number format of weights and inputs", choices=(_AS_CONFIGURED, *DTYPES))

    def _check(self) -> None:
        if self.tokens and self.mode != "inference":
            raise UsageError(f"tokens sets the KV cache of inference, but mode is {self.mode}. Leave it at 0.")

    @property
    def training(self) -> bool:
        return self.mode != "inference"

    def build(self) -> nn.Module:
        model = super().build()
        return add_lora(model, self.rank) if self.mode == "lora" else model

    def _inputs(self, draw: RandomInputs) -> dict[str, Any]:
        config, kind = self._parsed
        length = 1 if self.tokens else self._length
        inputs = model_inputs(kind, config, (self.batch, length), draw)
        labels = _labels(kind, inputs, draw, config) if self.training else {}
        if "use_cache" in inspect.signature(kind.forward).parameters:
            inputs["use_cache"] = False
        if self.tokens:
            inputs |= {cache_argument(kind, config): filled_cache(config, self.tokens - 1), "use_cache": True}
        return inputs | labels

    def loss(self, output: Any) -> Tensor:
        return default_loss(output)

    def small(self) -> Self:
        """The narrowest that can be built, without a cache."""
        length, rank = min(self._length, 64), min(self.rank, 4)
        twin = replace(self, batch=min(self.batch, 2), sequence=length, tokens=0, rank=rank, dtype="fp32")
        for values in _narrowed(_shallow({**config_of(self._values).to_dict(), **self._values})):
            narrow = replace(twin, config=json.dumps(values, default=str))
            # Not every model goes together with fewer heads or channels.
            with suppress(UsageError), torch.device("meta"):
                narrow.build()
                return narrow
        raise UsageError(
            f"No reduced model of {self._parsed[1].__name__} can be built, so its outputs are not checked."
        )

    def describe(self) -> str:
        _, kind = self._parsed
        split = f" of {self.micro_batches} micro-batches" if self.micro_batches > 1 else ""
        stored = ", its quantization left out" if self._values.get("quantization_config") else ""
        return (
            f"{kind.__name__} of {self.file}, {parameters_text(self._parameter_count())}, {self._shapes()}, "
            f"{self.dtype}{stored}, {_MODES[self.mode]}{split}"
        )

    @property
    def _values(self) -> dict[str, Any]:
        values: dict[str, Any] = json.loads(self.config)
        return values

    @property
    def _parsed(self) -> tuple[Any, type[Any]]:
        return _read(self.config)

    @property
    def _length(self) -> int:
        return self.sequence or usual_sequence(self._parsed[0])

    def _model(self) -> Any:
        return build(*self._parsed, DTYPES[self.dtype], max(self._length, self.tokens))

    def _weights(self, model: nn.Module) -> None:
        """Leave the weights as transformers initializes them."""

    def _shapes(self) -> str:
        config, kind = self._parsed
        if main_input(kind) == "pixel_values":
            return counted(self.batch, "image")
        behind = f" behind {self.tokens - 1:,} in the cache" if self.tokens else ""
        length = 1 if self.tokens else self._length
        rank = f", rank {self.rank}" if self.mode == "lora" else ""
        return f"{self.batch} x {length} tokens{behind}{rank}"


@lru_cache(maxsize=16)
def _read(text: str) -> tuple[Any, type[Any]]:
    config = config_of(json.loads(text))
    return config, class_of(config)


def configured_workload(name: str, settings: Mapping[str, str], text: str) -> ConfiguredModel:
    """Return the workload; the configuration decides number format and length, unless the settings say another."""
    model = with_knobs(ConfiguredModel, settings)
    try:
        config, kind = _read(text)
        dtype = model.dtype
        if dtype == _AS_CONFIGURED:
            dtype = _NAMES.get(str(json.loads(text).get("dtype")), "fp32")
        length, most = model.sequence or usual_sequence(config), positions_of(config)
        if most is not None and max(length, model.tokens) > most:
            what = "sequence" if length > most else "tokens"
            raise UsageError(f"{what} is {max(length, model.tokens):,}; this model knows {most:,} positions.")
        if model.sequence and main_input(kind) == "pixel_values" and not hasattr(config, "text_config"):
            raise UsageError(f"sequence counts tokens, and {kind.__name__} takes images. Drop it.")
        if model.tokens:
            check_has_cache(kind, config)
    except UsageError as error:
        raise UsageError(f"{name}: {error}") from None
    return replace(model, config=text, file=name, dtype=dtype, sequence=length)
