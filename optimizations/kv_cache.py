"""KV cache: the class that a language model keeps keys and values in, if called with `use_cache=True` and no cache.

For each token and layer a model keeps a key and a value, which all later tokens read. Transformers' own classes keep
them in four ways:

`dynamic`    as many as there are, in the model's dtype; each further token copies all of its layer's. The usual one.
`static`     room for `length` tokens from the first call on. Nothing is copied, and nothing grows.
`quantized`  as many as there are, in 8 bits or fewer (`by` says how), unpacked for the layer that looks at them.
`sliding`    those of the last `window` tokens. What comes after them does not see the earlier ones.

The first call, which reads the prompt, looks at keys and values as they are, whichever cache keeps them: only what
comes later can differ. What to know before using it:

* A model is told by its call, `model(tokens, use_cache=True)`; where a call brings a cache, that is used. `generate`
  always brings one: tell it by `cache_implementation` instead.
* Models are those of transformers that take `cache`, which was `past_key_values` before 5.24, and keep keys and values
  in it: mamba's states are none. Quantized caches are for full attention in all layers.
* Some ways to quantize are of other libraries, optimum-quanto and hqq; `fp8` is of transformers itself.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from torch import nn

_KINDS = ("quantized", "sliding", "static", "dynamic")
_BY = ("fp8", "quanto", "hqq")
_ARGUMENTS = ("cache", "past_key_values")
"""Since transformers 5.24, and before."""
_NEEDED = {"quanto": "optimum-quanto", "hqq": "hqq"}


def _knob(default: Any, help: str, **more: Any) -> Any:
    return field(default=default, metadata={"help": help, **more})


@dataclass(frozen=True)
class KvCache:
    """`undo = KvCache("static", length=8192).apply(model)`, then `model(tokens, use_cache=True)` as before."""

    kind: str = _knob("quantized", "cache class", choices=_KINDS, says="{} cache", always=True)
    length: int = _knob(8192, "capacity of a static cache in tokens", least=1, counted_in="sequence")
    window: int = _knob(1024, "window of a sliding cache in tokens", least=2, counted_in="sequence")
    by: str = _knob("fp8", "quantizer: fp8 of this file, or a library", choices=_BY)

    name: ClassVar[str] = "kv_cache"
    title: ClassVar[str] = "KV cache"
    sentence: ClassVar[str] = "Static, sliding-window or quantized key/value cache."
    not_with: ClassVar[Mapping[str, str]] = {}
    environment: ClassVar[Mapping[str, str]] = {}
    needs: ClassVar[Literal["any", "training", "inference"]] = "inference"
    only_on: ClassVar[str] = "a decoder-only language model"
    needs_cache: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for knob, value, choices in (("kind", self.kind, _KINDS), ("by", self.by, _BY)):
            if value not in choices:
                raise ValueError(f"{knob} is {value!r}; it must be one of {', '.join(choices)}.")
        if self.length < 1 or self.window < 2:
            raise ValueError("The minimum is 1 for length and 2 for window.")

    @property
    def claim(self) -> Literal["bitwise", "rounding", "lossy"]:
        """The claim for the prefill and for the decoding steps after it."""
        return {"dynamic": "bitwise", "static": "rounding"}.get(self.kind, "lossy")  # type: ignore[return-value]

    @property
    def sees_less(self) -> bool:
        return self.kind == "sliding"

    @property
    def idle_where(self) -> str:
        return {
            "dynamic": "the model already uses a dynamic cache",
            "sliding": "no token after the prompt reads beyond the window",
        }.get(self.kind, "no token after the prompt reads the cache")

    def check(self, model: nn.Module, *, training: bool) -> None:
        if training:
            raise ValueError("Training has no KV cache. Use it in inference only.")
        self._cache(_caching(model).config)

    def apply(self, model: nn.Module) -> Callable[[], None]:
        caching = _caching(model)
        self._cache(caching.config)
        handle = caching.register_forward_pre_hook(_GivesCache(self), with_kwargs=True)
        return handle.remove  # type: ignore[no-any-return]

    def _cache(self, config: Any) -> Any:
        """An empty one, of the classes of the library that the model is of."""
        caches: Any = importlib.import_module("transformers.cache_utils")
        if self.kind == "static":
            return caches.StaticCache(config=config, max_cache_len=self.length)
        if self.kind == "sliding":
            layers = config.get_text_config(decoder=True).num_hidden_layers
            sliding = caches.DynamicSlidingWindowLayer
            return caches.Cache(layers=[sliding(sliding_window=self.window) for _ in range(layers)])
        if self.kind == "quantized":
            try:
                return caches.QuantizedCache(backend=self.by, config=config)
            except ImportError:
                raise ValueError(
                    f"Caches quantized by {self.by} need a library that is not installed: pip install "
                    f"{_NEEDED.get(self.by, self.by)}, or take by=fp8, which transformers has itself."
                ) from None
            except ValueError as error:
                if "backend" not in str(error):
                    raise ValueError(f"The KV cache of this model cannot be quantized: {error}") from None
                raise ValueError(
                    f"The installed transformers has no cache quantized by {self.by}: update it, or install "
                    "optimum-quanto or hqq and name that with `by`."
                ) from None
        return caches.DynamicCache(config=config)


class _GivesCache:
    """Before each call. An object of its knobs alone, so that copies and files of a model take it along."""

    def __init__(self, knobs: KvCache) -> None:
        self.knobs = knobs

    def __call__(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        other_kwargs = {name: value for name, value in kwargs.items() if name not in _ARGUMENTS}
        inputs = inspect.signature(type(model).forward).bind_partial(model, *args, **other_kwargs).arguments
        use = inputs.get("use_cache")
        use = getattr(model.config, "use_cache", False) if use is None else use
        if not use or any((kwargs | inputs).get(name) is not None for name in _ARGUMENTS):
            return None
        tokens = inputs.get("input_ids") if inputs.get("input_ids") is not None else inputs.get("inputs_embeds")
        if self.knobs.kind == "static" and tokens is not None and tokens.shape[1] > self.knobs.length:
            raise ValueError(
                f"{tokens.shape[1]} tokens exceed the static cache of {self.knobs.length}. Set length to the largest "
                "number of tokens."
            )
        return args, {**kwargs, cache_argument(type(model), model.config): self.knobs._cache(model.config)}


def cache_argument(kind: type[nn.Module], config: Any) -> str:
    """Return the name of the argument that takes a key/value cache, or an empty string."""
    parameters = inspect.signature(kind.forward).parameters
    if "use_cache" not in parameters or (getattr(kind, "_is_stateful", False) and not _has_heads(config)):
        return ""
    return next((name for name in _ARGUMENTS if name in parameters), "")


def _has_heads(config: Any) -> bool:
    """Return whether the model has attention heads; Mamba and xLSTM take a state of fixed size by the same argument."""
    text = config.get_text_config(decoder=True)
    return "num_attention_heads" in {*text.to_dict(), *text.attribute_map}


def _caching(model: nn.Module) -> Any:
    """The outermost model that takes a cache; those inside are given it."""
    for module in model.modules():
        config = getattr(module, "config", None)
        if config is not None and cache_argument(type(module), config) and not _only_reads(module):
            return module
    raise ValueError("No language model of transformers with a KV cache was found.")


def _only_reads(model: nn.Module) -> bool:
    """An encoder, such as BERT: its class takes a cache for those who make a decoder of it."""
    flags = [module.is_decoder for module in model.modules() if isinstance(getattr(module, "is_decoder", None), bool)]
    return bool(flags) and not any(flags)
