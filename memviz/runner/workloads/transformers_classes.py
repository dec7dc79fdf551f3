"""Transformers' classes for a `config.json`: the model that a configuration makes, and its reduced configuration."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from memviz.errors import UsageError
from memviz.runner.workloads.language_models import attention_name

_CLASS = re.compile(r"[A-Z]\w{0,120}")
_KINDS = (
    "AutoModelForSeq2SeqLM",
    "AutoModelForMaskedLM",
    "AutoModelForCausalLM",
    "AutoModelForImageTextToText",
    "AutoModelForSpeechSeq2Seq",
    "AutoModelForImageClassification",
    "AutoModelForCTC",
    "AutoModel",
)
"""Auto classes to try in this order, for a configuration that names no class."""
_NOT_THE_MODEL = ("dtype", "quantization_config")
_WINDOWS = ("sliding_window", "attention_chunk_size", "local_attention", "window_size")


def config_of(values: Mapping[str, Any]) -> Any:
    """The configuration as transformers reads it, with what it says nothing of as that model's class has it."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

    kind = str(values["model_type"])
    if kind not in CONFIG_MAPPING_NAMES:
        raise UsageError(f"transformers knows no model_type {kind[:80]}.{_near(kind, CONFIG_MAPPING_NAMES)}")
    with _in_words(kind):
        return CONFIG_MAPPING[kind].from_dict(_without(values))


def _near(kind: str, known: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(kind.lower()[:80], list(known), n=3, cutoff=0.5)
    return f" Near it are {', '.join(close)}." if close else " A model with code of its own is FILE.py:function."


def _without(values: Mapping[str, Any]) -> dict[str, Any]:
    kept = ((key, value) for key, value in values.items() if key not in _NOT_THE_MODEL)
    return {key: _without(value) if isinstance(value, dict) else value for key, value in kept}


def class_of(config: Any) -> type[Any]:
    """The class that `architectures` names, or the first kind of model that there is of it."""
    import transformers

    name = next(iter(config.architectures or ()), None)
    if name is None:
        return _usual_class(config)
    loaded_class: Any = getattr(transformers, name, None) if isinstance(name, str) and _CLASS.fullmatch(name) else None
    is_model = isinstance(loaded_class, type) and issubclass(loaded_class, transformers.PreTrainedModel)
    if not is_model or not isinstance(config, getattr(loaded_class, "config_class", None) or ()):
        raise UsageError(
            f"architectures names {str(name)[:80]}, which is no model of transformers for {config.model_type}. "
            f"Take it out for {_usual_class(config).__name__}."
        )
    kind: type[Any] = loaded_class
    return kind


def _usual_class(config: Any) -> type[Any]:
    import transformers

    for kind in _KINDS:
        mapping = getattr(transformers, kind)._model_mapping
        if type(config) in mapping:
            usual = mapping[type(config)]
            made: type[Any] = usual[0] if isinstance(usual, tuple) else usual
            return made
    raise UsageError(f"transformers has no model for {config.model_type}; name one of its classes in architectures.")


def build(config: Any, kind: type[Any], dtype: torch.dtype, length: int) -> Any:
    """On torch's current default device. `length` is that of the sequences it will be given."""
    refusal: Exception | None = None
    for attention in _attentions(config, length):
        with _in_words(config.model_type):
            try:
                return _tied(kind._from_config(config, attn_implementation=attention, dtype=dtype))
            except (ValueError, KeyError) as error:
                refusal = error
    raise UsageError(f"No {kind.__name__} can be built from it: {_words(refusal)}") from None


def _attentions(config: Any, length: int) -> Iterator[str | None]:
    """PyTorch's own without a mask, where transformers would make none either; else what it takes by itself."""
    parts = {id(part): part for part in (config, config.get_text_config())}.values()
    windows = [getattr(part, name, None) for part in parts for name in _WINDOWS]
    if not any(isinstance(window, int) and 0 < window <= length for window in windows):
        yield attention_name()
    yield None


def _tied(model: Any) -> Any:
    model.tie_weights()
    if type(model).__name__.endswith("ForCausalLM"):
        # What it falls back to anyway, without a warning for classes that it does not know.
        model.loss_type = "ForCausalLM"
    return model


@contextmanager
def _in_words(kind: str) -> Iterator[None]:
    """Whatever a library says of values that do not go together is told, and is no fault of ours."""
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
    "num_hidden_layers",
    "n_layer",
    "n_layers",
    "num_layers",
    "encoder_layers",
    "decoder_layers",
    "num_decoder_layers",
    "depth",
)
_HEADS = (
    "num_attention_heads",
    "num_key_value_heads",
    "n_head",
    "n_heads",
    "num_heads",
    "encoder_attention_heads",
    "decoder_attention_heads",
)
_WIDTHS = (
    "hidden_size",
    "d_model",
    "n_embd",
    "intermediate_size",
    "n_inner",
    "d_ff",
    "ffn_dim",
    "moe_intermediate_size",
    "encoder_ffn_dim",
    "decoder_ffn_dim",
    "word_embed_proj_dim",
    "dim",
    "hidden_dim",
    "embed_dim",
)
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
_FEW_LAYERS, _FEW_EXPERTS, _FEW_TOKENS = 4, 16, 2048
_DIVISORS = (16, 14, 12, 10, 9, 8, 7, 6, 5, 4, 3, 2)


def narrowed(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """From the smallest to the one that has fewer layers alone: not every model can be made narrow."""
    full = {**config_of(values).to_dict(), **values}
    shallow = _shallow(full)
    ways = [_divided(shallow, by) for by in _DIVISORS if _divides(shallow, by)]
    return [*ways, shallow]


def _shallow(values: Mapping[str, Any]) -> dict[str, Any]:
    depths = {values[name] for name in _LAYERS if isinstance(values.get(name), int)}
    made: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            made[name] = _shallow(value) if "model_type" in value else value
        elif name in _LAYERS and isinstance(value, int):
            made[name] = min(value, _FEW_LAYERS)
        elif name in _EXPERTS and isinstance(value, int):
            made[name] = min(value, _FEW_EXPERTS)
        elif isinstance(value, list) and len(value) in depths and len(value) > _FEW_LAYERS:
            # One entry a layer, as `layer_types` has.
            made[name] = value[:_FEW_LAYERS]
        else:
            made[name] = value
    return _fewer_tokens(made)


def _fewer_tokens(values: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(values.get("vocab_size"), int) or values["vocab_size"] <= _FEW_TOKENS:
        return values
    named = {name: value for name, value in values.items() if name.endswith("token_id") and isinstance(value, int)}
    beyond = {name: value % _FEW_TOKENS for name, value in named.items() if value >= _FEW_TOKENS}
    return {**values, **beyond, "vocab_size": _FEW_TOKENS}


def _divides(values: Mapping[str, Any], by: int) -> bool:
    heads = [values[name] for name in _HEADS if isinstance(values.get(name), int)]
    widths = [values[name] for name in _WIDTHS if isinstance(values.get(name), int)]
    return all(head % by == 0 or (head < by and by % head == 0) for head in heads) and not any(
        width % by for width in widths
    )


def _divided(values: Mapping[str, Any], by: int) -> dict[str, Any]:
    made = dict(values)
    for name in (*_HEADS, *_WIDTHS):
        if isinstance(made.get(name), int):
            made[name] = max(1, made[name] // by)
    return made
