"""A cache of keys and values that holds a number of tokens before each pass, as generating text goes on from one."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from memviz.errors import UsageError
from optimizations.kv_cache import cache_argument


def check_keeps_tokens(kind: type[Any], config: Any) -> None:
    if getattr(config, "is_encoder_decoder", False):
        raise UsageError(
            f"tokens are those in the KV cache of a decoder that stands alone, and {kind.__name__} has an encoder, "
            "whose cache is not predicted; leave it at 0."
        )
    if not cache_argument(kind, config):
        raise UsageError(
            f"tokens are those in the KV cache, and {kind.__name__} keeps none from one pass to the next; "
            "leave it at 0."
        )


def kept_tokens(config: Any, before: int) -> Any:
    """Filled by the first pass, on the device and in the shape of what it computes; each pass finds `before` tokens."""
    from transformers import DynamicCache

    class KeptTokens(DynamicCache):  # type: ignore[misc]
        def get_seq_length(self, *args: Any, **options: Any) -> int:
            return before

        def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
            there = _there(self.layers[layer_idx] if layer_idx < len(self.layers) else None, before)
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


def _there(layer: Any, before: int) -> int:
    """How many of them a layer keeps: of a window, those that the next token still sees."""
    window = getattr(layer, "sliding_window", None)
    return before if window is None else min(before, window - 1)


def _wind_back(layer: Any, before: int, key: Tensor, value: Tensor) -> None:
    there = _there(layer, before)
    if layer.is_initialized:
        layer.keys, layer.values = layer.keys[..., :there, :], layer.values[..., :there, :]
    else:
        layer.lazy_initialization(key, value)
        layer.keys = key.new_empty((*key.shape[:-2], there, key.shape[-1]))
        layer.values = value.new_empty((*value.shape[:-2], there, value.shape[-1]))
    if hasattr(layer, "cumulative_length"):
        layer.cumulative_length = before
