"""A model as its `config.json` describes it, trained in whole or beside its weights, or computing with a KV cache."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor, nn

from memviz.errors import UsageError
from memviz.runner.config_source import FILE
from memviz.runner.knobs import knob, with_knobs
from memviz.runner.workloads.configured.classes import build, class_of, config_of
from memviz.runner.workloads.configured.kept_tokens import check_keeps_tokens, kept_tokens
from memviz.runner.workloads.configured.lora import add_lora
from memviz.runner.workloads.configured.model_inputs import (
    InputSizes,
    makes_from,
    model_inputs,
    positions_of,
    usual_sequence,
)
from memviz.runner.workloads.configured.narrowed import narrowed
from memviz.runner.workloads.own import default_loss
from memviz.runner.workloads.random_inputs import RandomInputs
from memviz.runner.workloads.workload import DTYPES, FromConfiguration, parameters_text, plural
from optimizations.kv_cache import cache_argument

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
            made |= {cache_argument(kind, config): kept_tokens(config, self.tokens - 1), "use_cache": True}
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
        """As transformers draws them."""

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
            check_keeps_tokens(kind, config)
    except UsageError as error:
        raise UsageError(f"{name}: {error}") from None
    return replace(model, config=text, file=name, dtype=dtype, sequence=length)
