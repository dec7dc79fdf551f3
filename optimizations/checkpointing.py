"""Checkpointing with a strategy: some blocks keep only their inputs and compute the rest again for backward.

The knobs choose which blocks, what of them is kept after all, and where their inputs wait. Blocks are found by
structure (`blocks`), so diffusers, transformers and plain modules are treated alike, and the switches that those
libraries have of their own stay off. A chosen block gets a class of its own whose call goes through
`torch.utils.checkpoint`: hooks on the block run in the recomputation too, its parameters, its name in the model and
`isinstance` stay as they were, and a deep copy of the model, or one read from a file, is checkpointed like the model.

A function of your own is called either way: as `function(number, block, *args, **kwargs)`, or as diffusers calls
one, `function(block, *args)`, which is told by its parameters: a single one before `*args` is the block.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

_MATMULS = {"mm", "addmm", "bmm", "baddbmm", "convolution", "_scaled_mm"}
_KEEPS = ("nothing", "attention", "matmuls", "both")
_IMPLEMENTATIONS = ("memviz", "library")
_SWITCHES = ("activation_checkpointing_{}", "gradient_checkpointing_{}", "{}_gradient_checkpointing")
"""Methods of models of transformers, in newer and older releases, and of diffusers."""


def _knob(default: Any, help: str, **more: Any) -> Any:
    return field(default=default, metadata={"help": help, **more})


@dataclass(frozen=True)
class Checkpointing:
    """`Checkpointing(every=2).apply(model)` checkpoints blocks 0, 2, 4 and so on; `blocks(model)` lists them."""

    every: int = _knob(
        1, "checkpoint every k-th block, starting with the first; 1: all, 0: none", says="every {nth} block"
    )
    invert: bool = _knob(False, "checkpoint all blocks except every k-th")
    skip: str = _knob("", "blocks that are not checkpointed, such as 0,3,20-27; 0 is the first")
    keep: str = _knob("nothing", "results that a checkpointed block saves instead of recomputing", choices=_KEEPS)
    offload: bool = _knob(False, "keep inputs of checkpointed blocks in CPU memory until backward")
    function: Callable[..., Any] | None = _knob(
        None,
        "custom function for chosen blocks: function(number, block, *args, **kwargs), or function(block, *args)",
        python_only=True,
    )
    implementation: str = _knob(
        "memviz", "this file's code, or gradient checkpointing of transformers and diffusers", choices=_IMPLEMENTATIONS
    )

    name: ClassVar[str] = "checkpointing"
    title: ClassVar[str] = "Gradient checkpointing"
    sentence: ClassVar[str] = "Recompute activations in the backward pass instead of keeping them."
    not_with: ClassVar[Mapping[str, str]] = {}
    claim: ClassVar[Literal["bitwise"]] = "bitwise"
    """The same kernels run on the same inputs, and random numbers are drawn again from the same state."""
    environment: ClassVar[Mapping[str, str]] = {}
    needs: ClassVar[Literal["any", "training", "inference"]] = "training"
    idle_where: ClassVar[str] = "no block is checkpointed"

    def __post_init__(self) -> None:
        if self.every < 0:
            raise ValueError(f"every is {self.every}; it must be 0 (no block), 1 (all), 2 (every second) and so on.")
        for name, choices in (("keep", _KEEPS), ("implementation", _IMPLEMENTATIONS)):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} is {getattr(self, name)!r}; it must be one of {', '.join(choices)}.")
        if self.function is not None and (self.offload or self.keep != "nothing"):
            raise ValueError("A custom function cannot be combined with keep or offload. Drop them.")
        others = [getattr(self, knob.name) != knob.default for knob in fields(self) if knob.name != "implementation"]
        if self.implementation == "library" and any(others):
            raise ValueError("implementation=library checkpoints every block and supports no other knob.")
        self._skipped()

    def chosen(self, count: int) -> tuple[int, ...]:
        """Return the numbers of the checkpointed blocks among `count`."""
        is_kth = [self.every > 0 and number % self.every == 0 for number in range(count)]
        skipped = self._skipped()
        wanted = (number for number in range(count) if is_kth[number] != self.invert)
        return tuple(number for number in wanted if not any(number in numbers for numbers in skipped))

    def check(self, model: nn.Module, *, training: bool) -> None:
        if not training:
            raise ValueError("Inference saves no activations for backward. Use it in training only.")
        self._find_blocks(model)
        if self.implementation == "library":
            _switch(model)

    def apply(self, model: nn.Module) -> Callable[[], None]:
        chosen = self._find_blocks(model)
        if self.implementation == "library":
            enable, disable = _switch(model)
            enable()
            return disable
        kinds = {chosen[number]: (type(chosen[number]), number) for number in self.chosen(len(chosen))}
        classes: dict[type[nn.Module], type[nn.Module]] = {}
        for block, (plain, number) in kinds.items():
            # Blocks keep one class, unless a function of the caller's own takes their numbers.
            made = classes.get(plain) if self.function is None else None
            classes[plain] = made or _checkpointed_class(plain, self, number)
            block.__class__ = classes[plain]

        def undo() -> None:
            if any("unchecked_class" not in vars(type(block)) for block in kinds):
                raise RuntimeError("Another optimization was applied to the checkpointed blocks later. Undo it first.")
            for block, (plain, _) in kinds.items():
                block.__class__ = plain
            kinds.clear()

        return undo

    def _skipped(self) -> list[range]:
        ranges = []
        for piece in filter(None, re.split(r"[,+;\s]+", self.skip)):
            match = re.fullmatch(r"(\d+)(?:-(\d+))?", piece)
            ranges.append(range(int(match[1]), int(match[2] or match[1]) + 1) if match else range(0))
            if not ranges[-1]:
                raise ValueError(f"skip has {piece!r}; it must list block numbers and ranges, such as 0,3,20-27.")
        return ranges

    def _find_blocks(self, model: nn.Module) -> list[nn.Module]:
        blocks_found = list(blocks(model).values())
        if not blocks_found:
            raise ValueError(
                "No blocks were found. They are looked for in a ModuleList or Sequential of two or more modules of one "
                "class that have modules inside: put the repeated part of the model into such a list."
            )
        last = max((skip[-1] for skip in self._skipped()), default=0)
        if last >= len(blocks_found):
            raise ValueError(
                f"skip names block {last}; this model has {len(blocks_found)}, numbered 0 to {len(blocks_found) - 1}."
            )
        if any(hasattr(type(module), "unchecked_class") for module in model.modules()):
            raise ValueError("Blocks of this model are already checkpointed. Undo that first.")
        if any(getattr(module, "gradient_checkpointing", False) is True for module in model.modules()):
            raise ValueError(
                "The model already uses gradient checkpointing, and twice would compute everything three times. "
                "Call its disable_gradient_checkpointing() or gradient_checkpointing_disable() first."
            )
        return blocks_found

    def _run(self, number: int, plain: type[nn.Module], block: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> Any:
        if self.function is None:
            return self._recompute(functools.partial(plain.__call__, block), *args, **kwargs)
        if not _takes_the_block_alone(self.function):
            return self.function(number, _as_plain(plain, block, {}), *args, **kwargs)
        # By position, as diffusers passes them, so that any checkpoint function sees the tensors.
        bound = inspect.signature(block.forward).bind(*args, **kwargs)
        bound.apply_defaults()
        by_name = {name: value for name, value in bound.kwargs.items() if name in kwargs}
        return self.function(_as_plain(plain, block, by_name), *bound.args)

    def _recompute(self, block: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        # Only positional tensors pass the hooks that move them; nested ones, as rotary tables, are shared and stay.
        everything, names, unnamed = (*args, *kwargs.values()), tuple(kwargs), len(args)
        # Blocks write to key/value caches, and to lists: the decoder of Wan counts its convolutions in one.
        may_change = [isinstance(value, list) or hasattr(value, "get_seq_length") for value in everything]
        caches = {place: _as_now(everything[place]) for place, changes in enumerate(may_change) if changes}
        calls = itertools.count()

        def positional(*values: Any) -> Any:
            if next(calls):
                values = tuple(_as_now(caches.get(place, value)) for place, value in enumerate(values))
            return block(*values[:unnamed], **dict(zip(names, values[unnamed:], strict=True)))

        how: dict[str, Any] = {"use_reentrant": False}
        if self.keep != "nothing":
            how["context_fn"] = functools.partial(create_selective_checkpoint_contexts, self._policy)
        moved = torch.autograd.graph.saved_tensors_hooks(_to_host, _to_device)
        with moved if self.offload else contextlib.nullcontext():
            return checkpoint(positional, *everything, **how)

    def _policy(self, context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        name = operator.name().rpartition("::")[2].partition(".")[0]
        is_attention = "attention" in name or "attn" in name
        wanted = (self.keep != "matmuls" and is_attention) or (self.keep != "attention" and name in _MATMULS)
        # A kept result is not drawn again, and whatever draws after it would then see other random numbers.
        if wanted and not _uses_dropout(operator, args, kwargs):
            return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE


def _switch(model: Any) -> tuple[Callable[[], None], Callable[[], None]]:
    for name in _SWITCHES:
        if hasattr(model, name.format("enable")):
            return getattr(model, name.format("enable")), getattr(model, name.format("disable"))
    raise ValueError(f"{type(model).__name__} does not support gradient checkpointing. Use implementation=memviz.")


def blocks(model: nn.Module) -> dict[str, nn.Module]:
    """Return the checkpointable blocks by name, in the model's order: entries of the outermost lists of alike modules.

    An entry that is itself a model of such entries, and says so, is taken apart: it would be computed again as a whole.
    """
    names: dict[nn.Module, str] = {}
    for name, block in _listed_blocks(model, ""):
        names.setdefault(block, name)
    return {name: block for block, name in names.items()}


def _listed_blocks(module: nn.Module, path: str) -> Iterator[tuple[str, nn.Module]]:
    children = [(f"{path}.{name}".lstrip("."), child) for name, child in module.named_children()]
    if isinstance(module, nn.ModuleList | nn.Sequential):
        large = [(name, child) for name, child in children if any(True for _ in child.children())]
        classes = {getattr(type(child), "unchecked_class", type(child)) for _, child in large}
        # Of one class, or of classes that offer checkpointing, as layers of transformers do.
        alike = len(classes) == 1 or all(hasattr(kind, "gradient_checkpointing") for kind in classes)
        if len(large) > 1 and alike:
            for name, child in large:
                # One with a switch of its own checkpoints what is listed inside of it, as in diffusers' UNets.
                inside = list(_listed_blocks(child, name)) if "gradient_checkpointing" in vars(child) else []
                yield from inside or [(name, child)]
            return
    for name, child in children:
        yield from _listed_blocks(child, name)


def _checkpointed_class(plain: Any, strategy: Checkpointing, number: int) -> type[nn.Module]:
    """A class that differs from `plain` in how it is called, and only where autograd would keep something."""

    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return plain.__call__(self, *args, **kwargs)
        return strategy._run(number, plain, self, args, kwargs)

    def reduce(self: nn.Module, protocol: Any) -> tuple[Any, ...]:
        make, args, *rest = plain.__reduce_ex__(self, protocol)
        # Pickles refer to classes by name, and this class has none: it is made again from its base.
        rebuild_args = tuple(plain if arg is type(self) else arg for arg in args)
        return _checkpointed_again, (strategy, number, make, rebuild_args), *rest

    attributes = {"__module__": plain.__module__, "__doc__": plain.__doc__, "unchecked_class": plain}
    return type(plain.__name__, (plain,), {**attributes, "__call__": call, "__reduce_ex__": reduce})


def _checkpointed_again(strategy: Checkpointing, number: int, make: Callable[..., nn.Module], args: Any) -> nn.Module:
    block = make(*args)
    block.__class__ = _checkpointed_class(type(block), strategy, number)
    return block


def _as_plain(plain: type[nn.Module], block: nn.Module, by_name: Mapping[str, Any]) -> nn.Module:
    """Return a twin of the block that shares its state, and whose call is not checkpointed."""

    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return plain.__call__(block, *args, **by_name, **kwargs)

    twin: nn.Module = object.__new__(type(plain.__name__, (plain,), {"__call__": call, "__module__": plain.__module__}))
    object.__setattr__(twin, "__dict__", vars(block))
    return twin


def _takes_the_block_alone(function: Callable[..., Any]) -> bool:
    """Return whether a function is called as function(block, *args), without the block's number first."""
    try:
        first, rest, *_ = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    one = first.kind in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD) and rest.kind == rest.VAR_POSITIONAL
    return one and first.name != "number" and first.annotation not in (int, "int")


def _as_now(value: Any) -> Any:
    """A key/value cache as before a block writes to it, so that the recomputation starts from the same state."""
    if isinstance(value, list):
        return [_as_now(item) for item in value]
    if not hasattr(value, "get_seq_length"):
        return value
    twin = copy.copy(value)
    twin.__dict__.update({name: _as_now(item) for name, item in vars(value).items()})
    return twin


def _to_host(saved: Tensor) -> tuple[Tensor, torch.device]:
    """Copy an input to host memory, unless it needs no gradient: masks and positions, which all blocks share."""
    device = saved.device
    if device.type == "cpu" or not saved.requires_grad:
        return saved, device
    with torch.no_grad():
        # Not torch.empty: a transposed input must come back transposed, or other kernels would run on it.
        host = torch.empty_like(saved, device="cpu", pin_memory=saved.is_cuda)
        if host.is_meta or not saved.is_meta:
            host.copy_(saved, non_blocking=True)
    return host, device


def _to_device(packed: tuple[Tensor, torch.device]) -> Tensor:
    host, device = packed
    return host if host.device == device else torch.empty_like(host, device=device).copy_(host, non_blocking=True)


def _uses_dropout(operator: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Attention with dropout does."""
    schema = getattr(operator, "_schema", None)
    arguments = dict(zip([argument.name for argument in schema.arguments], args, strict=False)) if schema else {}
    return bool({**arguments, **kwargs}.get("dropout_p", 0.0))
