"""Inputs for any model of transformers: what its forward takes, in the sizes that its configuration gives."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from math import prod
from typing import Any

from memviz.errors import UsageError
from memviz.runner.workloads.random_inputs import RandomInputs
from memviz.runner.workloads.workload import DTYPES

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
    """What a model mainly takes: input_ids, pixel_values, input_features or input_values."""
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
