"""Any model of transformers, built from its `config.json` with random weights: inputs, KV cache and LoRA training."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import prod
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor, nn

from memviz.errors import UsageError
from memviz.runner.config_source import FILE
from memviz.runner.knobs import knob, with_knobs
from memviz.runner.workloads.own import default_loss
from memviz.runner.workloads.transformers_classes import build, class_of, config_of, narrowed
from memviz.runner.workloads.workload import DTYPES, FromConfiguration, RandomInputs, parameters_text, plural
from optimizations.kv_cache import cache_argument


def check_has_cache(kind: type[Any], config: Any) -> None:
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


def filled_cache(config: Any, before: int) -> Any:
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


_LORA_SCALE = 2.0
"""Common default: alpha is twice the rank."""


def add_lora(model: nn.Module, rank: int) -> nn.Module:
    """Beside all linear layers but the head that makes the outputs, as `target_modules="all-linear"` of PEFT does."""
    model.requires_grad_(False)
    head = _head(model)
    adapted = [layer for layer in model.modules() if _sides(layer) is not None and layer is not head]
    if not adapted:
        raise UsageError(f"{type(model).__name__} has no linear layer that LoRA could stand beside; mode=training.")
    for layer in adapted:
        _adapt(layer, rank)
    return model


def _head(model: nn.Module) -> nn.Module | None:
    give: Any = getattr(model, "get_output_embeddings", None)
    head: nn.Module | None = give() if callable(give) else None
    return head


def _sides(layer: nn.Module) -> tuple[int, int] | None:
    """How wide what goes in is, and what comes out; None for what is no linear layer of a model's own forward."""
    if isinstance(layer, nn.modules.linear.NonDynamicallyQuantizableLinear):
        return None
    if isinstance(layer, nn.Linear):
        return layer.in_features, layer.out_features
    if type(layer).__name__ == "Conv1D" and isinstance(getattr(layer, "nf", None), int):
        # GPT-2's, which lies the other way round.
        weight: Any = layer.weight
        return int(weight.shape[0]), int(weight.shape[1])
    return None


def _adapt(layer: nn.Module, rank: int) -> None:
    sides = _sides(layer)
    assert sides is not None
    place = {"device": layer.weight.device, "dtype": layer.weight.dtype, "bias": False}
    down, up = nn.Linear(sides[0], rank, **place), nn.Linear(rank, sides[1], **place)  # type: ignore[arg-type]
    with torch.no_grad():
        # As training starts it is nothing; a twin that is compared needs something to differ by.
        up.weight.normal_(std=0.02)
    layer.lora_down, layer.lora_up = down, up
    layer.register_forward_hook(_beside)


def _beside(layer: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
    down: Any = layer.lora_down
    up: Any = layer.lora_up
    beside: Tensor = up(down(inputs[0]))
    return output + beside * _LORA_SCALE


_POSITIONS = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_target_positions")
_BESIDE_TOKENS = 2
"""RoBERTa's table of positions begins behind that of padding."""
_PIXELS, _CHANNELS = 224, 3
_USUAL_SEQUENCE = 1024


@dataclass(frozen=True)
class InputSizes:
    batch: int
    sequence: int
    dtype: str
    training: bool


def positions_of(config: Any) -> int | None:
    """How many tokens a sequence of it may have; None where nothing limits it."""
    text = config.get_text_config()
    positions = next((getattr(text, name, None) for name in _POSITIONS if getattr(text, name, None)), None)
    if not isinstance(positions, int):
        return None
    inside = positions - _BESIDE_TOKENS
    return inside if inside > 0 and inside.bit_count() == 1 else positions


def usual_sequence(config: Any) -> int:
    return min(positions_of(config) or _USUAL_SEQUENCE, _USUAL_SEQUENCE)


def makes_from(kind: type[Any]) -> str:
    """Return the name of the main input: input_ids, pixel_values, input_features or input_values."""
    return str(getattr(kind, "main_input_name", "input_ids"))


def model_inputs(kind: type[Any], config: Any, sizes: InputSizes, draw: RandomInputs) -> dict[str, Any]:
    takes, made = inspect.signature(kind.forward).parameters, _content(kind, config, sizes, draw)
    if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in takes:
        made["decoder_input_ids"] = _tokens(draw, config, sizes)
    labels = _labels(kind, made, draw, config) if sizes.training else {}
    return {**made, **({"use_cache": False} if "use_cache" in takes else {}), **labels}


def _content(kind: type[Any], config: Any, sizes: InputSizes, draw: RandomInputs) -> dict[str, Any]:
    takes, main = inspect.signature(kind.forward).parameters, makes_from(kind)
    dtype = DTYPES[sizes.dtype]
    made: dict[str, Any] = {}
    if main == "pixel_values" or ("return_loss" in takes and "pixel_values" in takes):
        made["pixel_values"] = draw.normal(sizes.batch, *_image(config), dtype=dtype)
    if main == "input_features":
        made["input_features"] = draw.normal(sizes.batch, *_sound(config), dtype=dtype)
    if main == "input_values":
        made["input_values"] = draw.normal(sizes.batch, _samples(config, sizes.sequence), dtype=dtype)
    if main == "input_ids" or ("pixel_values" in made and "input_ids" in takes):
        made["input_ids"] = _tokens(draw, config, sizes)
    if not made:
        raise UsageError(f"{kind.__name__} takes {main}, which none is made of here; give FILE.py:function instead.")
    return made


def _tokens(draw: RandomInputs, config: Any, sizes: InputSizes) -> Any:
    return draw.whole(config.get_text_config().vocab_size, sizes.batch, sizes.sequence)


def _image(config: Any) -> tuple[int, int, int]:
    part = getattr(config, "vision_config", None) or config
    size = getattr(part, "image_size", None) or _PIXELS
    height, width = (size, size) if isinstance(size, int) else (size[0], size[1])
    return getattr(part, "num_channels", None) or _CHANNELS, height, width


def _sound(config: Any) -> tuple[int, int]:
    """Whisper's: thirty seconds, of which its first layers keep every second frame."""
    return config.num_mel_bins, 2 * config.max_source_positions


def _samples(config: Any, sequence: int) -> int:
    """So many that the convolutions leave `sequence` frames, or a few more."""
    return (sequence + 1) * prod(getattr(config, "conv_stride", (1,)))


def _labels(kind: type[Any], made: dict[str, Any], draw: RandomInputs, config: Any) -> dict[str, Any]:
    """Those that its own loss is computed from. Without any, a mean of the outputs is trained on."""
    takes, name = inspect.signature(kind.forward).parameters, kind.__name__
    if "return_loss" in takes:
        return {"return_loss": True}
    if "labels" not in takes:
        return {}
    if name.endswith("ForSequenceClassification") or "ForImageClassification" in name:
        batch = next(iter(made.values())).shape[0]
        return {"labels": draw.whole(max(config.num_labels, 1), batch)}
    if "decoder_input_ids" in made:
        return {"labels": made["decoder_input_ids"]}
    if name.endswith(("ForTokenClassification", "ForPreTraining")):
        return {"labels": draw.whole(2, *made["input_ids"].shape)}
    return {"labels": made["input_ids"]} if "input_ids" in made else {}


T = TypeVar("T", bound="ConfiguredModel")

_AS_CONFIGURED = "as configured"
_NAMES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_MODES = {"training": "training step", "lora": "training step of LoRA", "inference": "forward pass"}
_SMALL_SEQUENCE = 64


@dataclass(frozen=True)
class ConfiguredModel(FromConfiguration):
    name: ClassVar[str] = FILE
    title: ClassVar[str] = "A model of your own (config.json)"
    sentence: ClassVar[str] = "Any model that transformers can build from its config.json, with random weights."
    holds: ClassVar[tuple[str, ...] | None] = None
    depths: ClassVar[tuple[str, ...]] = ()

    config: str = field(default="", metadata={"python_only": True})
    file: str = field(default="", metadata={"python_only": True})
    batch: int = knob(1, "sequences or images at once", least=1)
    sequence: int | None = knob(None, "tokens in a sequence; none means 1024, or as many as it has positions", least=1)
    tokens: int = knob(
        0, "tokens in the KV cache of inference, of which a pass computes the last; 0 is no cache", least=0
    )
    mode: str = knob(
        "training",
        "training: of all weights; lora: of two thin layers beside each linear one; inference: no gradients",
        choices=tuple(_MODES),
    )
    rank: int = knob(16, "of LoRA's layers", least=1)
    dtype: str = knob(_AS_CONFIGURED, "number format of weights and inputs", choices=(_AS_CONFIGURED, *DTYPES))

    def _check(self) -> None:
        if self.tokens and self.mode != "inference":
            raise UsageError(f"tokens are those in the KV cache of inference, and mode is {self.mode}; leave it at 0.")

    @property
    def training(self) -> bool:
        return self.mode != "inference"

    def build(self) -> nn.Module:
        model = super().build()
        return add_lora(model, self.rank) if self.mode == "lora" else model

    def inputs(self, device: torch.device, micro_batch: int = 0) -> dict[str, Any]:
        config, kind = self._known
        length = 1 if self.tokens else self._length
        sizes = InputSizes(self.batch, length, self.dtype, self.training)
        made = model_inputs(kind, config, sizes, RandomInputs(device, self.seed, micro_batch))
        if self.tokens:
            made |= {cache_argument(kind, config): filled_cache(config, self.tokens - 1), "use_cache": True}
        return made

    def loss(self, output: Any) -> Tensor:
        return default_loss(output)

    def small(self) -> Self:
        """The narrowest that can be built, without a cache."""
        length = min(self._length, _SMALL_SEQUENCE)
        twin = replace(self, batch=min(self.batch, 2), sequence=length, tokens=0, rank=min(self.rank, 4), dtype="fp32")
        for values in narrowed(self._values):
            if (narrow := _built(twin, values)) is not None:
                return narrow
        raise UsageError(f"No small twin of {self._known[1].__name__} can be made, so its outputs are not compared.")

    def describe(self) -> str:
        _, kind = self._known
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
    def _known(self) -> tuple[Any, type[Any]]:
        return _read(self.config)

    @property
    def _length(self) -> int:
        return self.sequence or usual_sequence(self._known[0])

    def _model(self) -> nn.Module:
        config, kind = self._known
        model: nn.Module = build(config, kind, DTYPES[self.dtype], max(self._length, self.tokens))
        return model

    def _weights(self, model: nn.Module) -> None:
        """Leave the weights as transformers initializes them."""

    def _shapes(self) -> str:
        config, kind = self._known
        if makes_from(kind) == "pixel_values":
            return plural(self.batch, "image")
        behind = f" behind {self.tokens - 1:,} in the cache" if self.tokens else ""
        length = 1 if self.tokens else self._length
        rank = f", rank {self.rank}" if self.mode == "lora" else ""
        return f"{self.batch} x {length} tokens{behind}{rank}"


def _built(twin: T, values: Mapping[str, Any]) -> T | None:
    """None where this model does not go together."""
    narrow = replace(twin, config=json.dumps(values, default=str))
    try:
        with torch.device("meta"):
            narrow.build()
    except UsageError:
        return None
    return narrow


@lru_cache(maxsize=16)
def _read(text: str) -> tuple[Any, type[Any]]:
    config = config_of(json.loads(text))
    return config, class_of(config)


def configured_workload(name: str, settings: Mapping[str, str], text: str) -> ConfiguredModel:
    """With what the configuration decides: number format and length, unless the settings say another."""
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
        if model.sequence and makes_from(kind) == "pixel_values" and not hasattr(config, "text_config"):
            raise UsageError(f"sequence counts tokens, and {kind.__name__} takes images; leave it out.")
        if model.tokens:
            check_has_cache(kind, config)
    except UsageError as error:
        raise UsageError(f"{name}: {error}") from None
    return replace(model, config=text, file=name, dtype=dtype, sequence=length)
