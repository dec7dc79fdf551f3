"""Attention backend: which of PyTorch's kernels computes `scaled_dot_product_attention`.

`math` writes the whole table of scores (queries x keys, for every head) to memory and keeps it for backward; the
other three never have it. On its own PyTorch takes flash where it can, then efficient, then math (cuDNN comes first
on the newest cards), call by call; this chooses one for all calls, and then a call that the kernel cannot serve fails
instead of quietly taking a hundred times the memory.

The choice is PyTorch's own switch, so it holds for the process and not for one model, also while a checkpointed block
computes again during backward. Of several, the one made last holds, in whatever order they are undone. A copy of the
model has it while it holds; a model that another process has saved or sent makes it for good in its first forward pass.
A CPU has no efficient and no cuDNN kernel; its flash stands in for the three there.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import CellType, CodeType, FunctionType
from typing import Any, ClassVar, Literal

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

_KERNELS = {
    "math": SDPBackend.MATH,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}
_ATTENTION = ("attention", "attn", "sdp")
_HALVES = (torch.float16, torch.bfloat16)
_SERVES = {"efficient": (*_HALVES, torch.float32), "flash": _HALVES, "cudnn": _HALVES}
_WIDEST_HEAD = {"flash": 256, "cudnn": 256}
_OWN_WAYS = ("AttnProcessor", "AttnAddedKVProcessor", "SlicedAttnProcessor", "SlicedAttnAddedKVProcessor")
"""Processors of diffusers that multiply by themselves; those of later make end in 2_0 or ask its dispatcher."""


def _knob(default: Any, help: str, **more: Any) -> Any:
    return field(default=default, metadata={"help": help, **more})


@dataclass(frozen=True)
class AttentionBackend:
    """`undo = AttentionBackend("flash").apply(model)`; the model's attention must be PyTorch's, and is made so."""

    backend: str = _knob("efficient", "SDPA kernel", choices=tuple(_KERNELS), says="{} attention", always=True)
    strict: bool = _knob(
        True, "fail if the kernel does not support a call, instead of falling back to efficient or math"
    )

    name: ClassVar[str] = "attention_backend"
    title: ClassVar[str] = "Attention backend"
    sentence: ClassVar[str] = "Choose the SDPA kernel: flash, memory-efficient, cuDNN, math."
    not_with: ClassVar[Mapping[str, str]] = {}
    claim: ClassVar[Literal["rounding"]] = "rounding"
    """The same sums in another order."""
    environment: ClassVar[Mapping[str, str]] = {}
    needs: ClassVar[Literal["any", "training", "inference"]] = "any"
    idle_where: ClassVar[str] = "the reduced model uses the same kernel without it"

    def __post_init__(self) -> None:
        if self.backend not in _KERNELS:
            raise ValueError(f"backend is {self.backend!r}; it must be one of {', '.join(_KERNELS)}.")

    def check(self, model: nn.Module, *, training: bool) -> None:
        _refuse_other_attention(model)
        if self.strict and self.backend != "math":
            # That of most of its weights.
            sizes: Counter[torch.dtype] = Counter({torch.float32: 0})
            for parameter in model.parameters():
                sizes[parameter.dtype] += parameter.numel() if parameter.is_floating_point() else 0
            dtype = sizes.most_common(1)[0][0]
            if dtype not in _SERVES[self.backend]:
                served = ", ".join(_name_of(one) for one in _SERVES[self.backend])
                raise ValueError(
                    f"The {self.backend} kernel computes in {served}, but this model is in {_name_of(dtype)}. Use one "
                    "of these dtypes, the math kernel, or strict=false to fall back to other kernels."
                )
            for name, module in model.named_modules():
                self._refuse_heads(name, module, 16 // dtype.itemsize)

    def apply(self, model: nn.Module) -> Callable[[], None]:
        _refuse_other_attention(model)
        with contextlib.ExitStack() as undo:
            for part in _not_sdpa(model):
                undo.callback(part.set_attn_implementation, part.config._attn_implementation)
                part.set_attn_implementation("sdpa")
            switch = _Switch(self)
            undo.callback(switch.back)
            switch.choose(model)
            undo.callback(model.register_forward_pre_hook(switch).remove)
            return undo.pop_all().close

    def kernels(self, device: str) -> list[SDPBackend]:
        """Return the kernels that may compute attention on this device; the first that supports the inputs runs."""
        if device == "cpu":
            return [SDPBackend.MATH] if self.backend == "math" else [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]
        wanted = ["math"] if self.backend == "math" else [self.backend, "efficient", "math"]
        return [_KERNELS[name] for name in dict.fromkeys(wanted[:1] if self.strict else wanted)]

    def _refuse_heads(self, name: str, module: nn.Module, step: int) -> None:
        size, step = _head_size(module), 1 if self.backend == "flash" else step
        widest = _WIDEST_HEAD.get(self.backend, size)
        if size > widest or size % step:
            limit = f"at most {widest}" if size > widest else f"a multiple of {step} in this dtype"
            raise ValueError(
                f"{name} has heads of {size} channels; the {self.backend} kernel supports {limit}. "
                "Use another kernel, or strict=false to fall back to other kernels."
            )
        if self.backend == "efficient" and getattr(module, "num_key_value_groups", 1) > 1:
            raise ValueError(
                f"{name} has fewer key/value heads than query heads, which the efficient kernel does not support. "
                "Use flash, cudnn or math, or strict=false to fall back to math."
            )


class _Switch:
    """Turned at every forward, since the model may have been moved from or to a CPU."""

    def __init__(self, knobs: AttentionBackend, copied_in: int | None = None) -> None:
        self.knobs = knobs
        self.copied_in = copied_in
        """The process that a copy of a model was made in: there the model's own switch holds for all, until undone."""
        self.chosen: list[SDPBackend] = []

    def __reduce__(self) -> tuple[Any, ...]:
        return _Switch, (self.knobs, os.getpid())

    def __call__(self, model: nn.Module, *_: Any) -> None:
        if self.copied_in != os.getpid():
            self.choose(model)

    def choose(self, model: nn.Module) -> None:
        wanted = self.knobs.kernels(next((parameter.device.type for parameter in model.parameters()), "cpu"))
        if wanted != self.chosen:
            self.chosen = wanted
            _in_force.hold([*(choice for choice in _in_force.choices if choice is not self), self])

    def back(self) -> None:
        _in_force.hold([choice for choice in _in_force.choices if choice is not self])


class _InForce:
    """The choices of this process. PyTorch's switch nests, and restores nonsense when not undone from within: so one
    choice at a time is entered, always over what was there before all of them."""

    def __init__(self) -> None:
        self.choices: list[_Switch] = []
        self.entered = contextlib.ExitStack()

    def hold(self, choices: list[_Switch]) -> None:
        self.entered.close()
        self.choices = choices
        if choices:
            self.entered.enter_context(sdpa_kernel(choices[-1].chosen, set_priority=True))


_in_force = _InForce()


def restore_kernels() -> None:
    """For a process whose models are gone and were not undone: what it runs next chooses as it would by itself."""
    _in_force.hold([])


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _head_size(module: nn.Module) -> int:
    """Channels of one attention head, by the names that torch, transformers and diffusers use; 0 for other modules."""
    size = getattr(module, "head_dim", None)
    if size is None and isinstance(heads := getattr(module, "heads", None), int):
        size = getattr(module, "inner_dim", 0) // heads
    return size if isinstance(size, int) else 0


def _not_sdpa(model: nn.Module) -> Iterator[Any]:
    """Models of transformers that compute attention otherwise now; `sdpa_paged` and the like differ in masks alone."""
    for module in model.modules():
        config: Any = getattr(module, "config", None)
        if hasattr(module, "set_attn_implementation") and not config._attn_implementation.startswith("sdpa"):
            yield module


def _diffusers_backend(processor: Any) -> str:
    """That of the processor, else that of the process: diffusers sets both when one model is given a backend."""
    if not hasattr(processor, "_attention_backend"):
        return "native"
    own = processor._attention_backend
    if own is None:
        dispatch: Any = sys.modules.get("diffusers.models.attention_dispatch")
        registry = getattr(dispatch, "_AttentionBackendRegistry", None)
        own = "native" if registry is None else registry.get_active_backend()[0]
    return str(getattr(own, "value", own))


def _may_attend(function: Any, kind: type, seen: set[CodeType]) -> bool:
    """Return whether a forward names attention or calls a function that does; a callable without code counts."""
    function = inspect.unwrap(function)
    called = function if inspect.isroutine(function) else type(function).__call__
    called = getattr(called, "__func__", called)
    code = getattr(called, "__code__", None)
    if code is None:
        return True
    codes, names = [code], {kind.__name__, getattr(called, "__name__", "")}
    for outer in codes:  # grows: functions within functions have code of their own
        codes += [inner for inner in outer.co_consts if isinstance(inner, CodeType)]
        names |= {*outer.co_names, *outer.co_freevars}
    seen.update(codes)
    if any(word in name.lower() for name in names for word in _ATTENTION):
        return True
    return any(
        _may_attend(function, kind, seen)
        for function in _functions(called, kind, names)
        if function.__code__ not in seen
    )


def _functions(function: Any, kind: type, names: set[str]) -> Iterator[FunctionType]:
    """Those of Python that it can reach by a name: its module's, its class's, and what stood around it."""
    cells = [cell.cell_contents for cell in function.__closure__ or () if cell != CellType()]
    candidates = [
        *cells,
        *(function.__globals__.get(name) for name in names),
        *(getattr(kind, name, None) for name in names),
    ]
    yield from (function for function in map(_plain_function, candidates) if isinstance(function, FunctionType))


def _plain_function(value: Any) -> Any:
    return inspect.unwrap(getattr(value, "__func__", value)) if callable(value) else None


def _refuse_other_attention(model: nn.Module) -> None:
    if not any(_may_attend(module.forward, type(module), set()) for module in model.modules()):
        raise ValueError("This model computes no attention, so attention_backend has no effect. Drop it.")
    for part in _not_sdpa(model):
        if not getattr(part, "_supports_sdpa", False):
            raise ValueError(f"{type(part).__name__} computes attention by itself, without PyTorch's SDPA kernels.")
    for name, module in model.named_modules():
        processor = getattr(module, "processor", None)
        own = _diffusers_backend(processor)
        if own != "native":
            raise ValueError(
                f"{name} has the attention backend {own} of diffusers: call the model's "
                'set_attention_backend("native") first.'
            )
        if type(processor).__name__ in _OWN_WAYS or type(processor).__name__.startswith("XFormers"):
            raise ValueError(
                f"{name} computes attention by itself with {type(processor).__name__}: call the model's "
                "set_attn_processor with the processor of that name that ends in 2_0."
            )
