"""A small twin's configuration: fewer layers, narrower, and otherwise the same kind of model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memviz.runner.workloads.configured.classes import config_of

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
