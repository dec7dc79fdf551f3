"""Weights wait in host memory and are on the device only while the module that they belong to computes.

`granularity` says how much comes at once: `leaf` single layers (sequential offloading: least memory, most copies),
`block` the repeated blocks of the model, some of them as a group, `part` whole models of a pipeline, and `model` all of
it, between its forward passes. A part stays until another one computes, as with diffusers' model offloading: all steps
of a denoiser find its weights there. Nothing is computed otherwise. What to know before using it:

* It is for inference: a backward pass through the model is refused, since its weights have gone to the host by then.
* Every forward pass copies all weights over the bus, 1 GiB in 40 ms or so, before each module computes.
* `ahead` copies the next piece on a CUDA stream of its own while one computes, in the order of the forward pass before,
  so that two pieces are on the device at once. Copies out of pinned memory need no word to run by themselves:
  they always are `non_blocking`.
* With `block` what lies outside of the blocks stays on the device: embeddings, norms, the head.
* Host memory is pinned, in one piece a weight, and PyTorch rounds each piece up to a power of two. `most_gib` bounds
  what is held there, so rounded: modules beyond it stay on the device.
* With layerwise casting the small weights come over the bus and are cast on the device, as long as what comes at once
  is not less than what is cast at once: then they are cast on the host, before they come.
* Weights are read where their module is called. A module that reads those of another finds them on the host.
* Without `onload_device` the model is on the device when this is applied. With it, as in diffusers and accelerate, the
  model is in host memory and may be larger than the device: its weights stay there, and the rest is moved.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NoReturn

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

_PIECES = ("block", "leaf", "part", "model")
_GIB = 1 << 30
_IMPLEMENTATIONS = ("memviz", "library")
_HOOKED = {"forward", "_diffusers_hook"}


def _knob(default: Any, help: str, **more: Any) -> Any:
    return field(default=default, metadata={"help": help, **more})


@dataclass(frozen=True)
class WeightOffload:
    """`undo = WeightOffload("leaf").apply(model)`; `host_bytes(model)` says how much waits on the host."""

    granularity: str = _knob(
        "block", "unit that is moved to the GPU at once", choices=_PIECES, says="weights moved {}-wise"
    )
    group: int = _knob(1, "blocks that are moved at once, with granularity=block", least=1)
    most_gib: float = _knob(0.0, "limit of pinned CPU memory; 0: no limit", unit="GiB")

    ahead: bool = _knob(False, "copy the next unit on a CUDA stream: two at once, less waiting")
    from_host: bool = field(
        default=False,
        repr=False,
        metadata={
            "help": "also copy tensors that are on the host, to test on a CPU",
            "python_only": True,
            "reduced": True,
        },
    )
    onload_device: str = _knob("", "device that computes, for a model in host memory", python_only=True)
    implementation: str = _knob(
        "memviz", "implementation: this file or diffusers' group offloading", choices=_IMPLEMENTATIONS
    )

    name: ClassVar[str] = "weight_offload"
    title: ClassVar[str] = "CPU offload (weights)"
    sentence: ClassVar[str] = "Keep weights in CPU memory; move each block in when it runs."
    not_with: ClassVar[Mapping[str, str]] = {}
    claim: ClassVar[Literal["bitwise"]] = "bitwise"
    """Bits come as they went."""
    environment: ClassVar[Mapping[str, str]] = {}
    needs: ClassVar[Literal["any", "training", "inference"]] = "inference"
    pins_host_memory: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for knob, choices in (("granularity", _PIECES), ("implementation", _IMPLEMENTATIONS)):
            if getattr(self, knob) not in choices:
                raise ValueError(f"{knob} is {getattr(self, knob)!r}; it must be one of {', '.join(choices)}.")
        if self.ahead and self.granularity == "model":
            raise ValueError("granularity=model has no next unit to copy ahead. Use granularity=block, leaf or part.")
        if self.group < 1 or self.most_gib < 0:
            raise ValueError("The minimum of group is 1, that of most_gib is 0.")
        if self.implementation == "library" and (self.granularity not in _PIECES[:2] or self.most_gib):
            raise ValueError("implementation=library supports granularity=block or leaf, without most_gib.")

    def check(self, model: nn.Module, *, training: bool) -> None:
        if self.implementation == "library":
            _diffusers()
            if self.ahead and self._block_modules(model):
                raise ValueError("diffusers has no streams for nested blocks. Use ahead=false, or granularity=leaf.")
        if training:
            raise ValueError(
                "Autograd keeps the weights for backward on the device, so nothing would be saved. Use it in "
                "inference only."
            )
        if _unit_of(model) is not None or any(_unit_of(module) is not None for module in model.modules()):
            raise ValueError("Weights of this model are already offloaded. Undo that first.")
        if self.granularity == "part" and (lists := _uncalled(model)):
            raise ValueError(
                f"Parts are the models of a pipeline, but {', '.join(lists)} of this "
                f"{type(model).__name__} are not called as a whole. Use granularity=block, leaf or model."
            )
        if not any(True for _ in self._pieces(model)):
            raise ValueError(
                "No blocks were found. They are looked for in a ModuleList or Sequential of two or more modules of one "
                "class that have modules inside: use granularity=leaf or model."
            )

    def apply(self, model: nn.Module) -> Callable[[], None]:
        self.check(model, training=False)
        if self.implementation == "library":
            return self._apply_diffusers(model)
        units = self._units(model)
        undo = contextlib.ExitStack()
        if self.onload_device:
            undo.callback(_move(model, {weight for unit in units for weight in unit.weights}, self.onload_device))
        for unit in units:
            undo.callback(unit.restore)
        # In the model's order, so that the peak of host memory is the same each time.
        for weight in dict.fromkeys(weight for unit in units for weight in unit.weights):
            weight.rest()
        if self.granularity == "part":
            for unit in units:
                unit.until = units
            undo.callback(model.register_forward_hook(units[0].end_pass, always_call=True).remove)
        if self.ahead:
            ahead = _Ahead()
            for unit in units:
                unit.ahead = ahead
            undo.callback(model.register_forward_pre_hook(ahead.begin, prepend=True).remove)
            undo.callback(model.register_forward_hook(ahead.end, always_call=True).remove)
        for unit in units:
            for module in unit.modules:
                undo.callback(module.register_forward_pre_hook(unit.enter, prepend=True).remove)
                undo.callback(module.register_forward_hook(unit.leave, always_call=True).remove)
        return undo.close

    def _apply_diffusers(self, model: nn.Module) -> Callable[[], None]:
        before = [(module, dict(vars(module))) for module in model.modules()]
        home = {tensor: tensor.device for tensor in (*model.parameters(), *model.buffers())}
        _diffusers().apply_group_offloading(
            model,
            torch.device(self.onload_device or next(iter(home.values()))),
            offload_type=f"{self.granularity}_level",
            num_blocks_per_group=self.group,
            use_stream=self.ahead,
            block_modules=self._block_modules(model),
        )

        def undo() -> None:
            for module, given in before:
                others = {name: value for name, value in vars(module).items() if name not in _HOOKED}
                module.__dict__ = others | {name: given[name] for name in _HOOKED & given.keys()}
            for tensor, device in home.items():
                tensor.data = tensor.data.to(device)

        return undo

    def _block_modules(self, model: nn.Module) -> list[str]:
        """Return names of modules that hold blocks; diffusers finds by itself those that the model lists."""
        if self.granularity != "block":
            return []
        inside = {block for blocks in self._pieces(model) for block in blocks}
        paths = [name.split(".") for name, module in model.named_modules() if module in inside]
        parents = {part for path in paths for part in path[:-2]}
        return getattr(model, "_group_offload_block_modules", None) or sorted(parents)

    def offloaded(self, model: nn.Module) -> list[nn.Parameter]:
        """Return the weights that stay in host memory while their module does not compute."""
        if self.implementation == "library":
            return list(model.parameters())
        return list(dict.fromkeys(weight.parameter for unit in self._units(model) for weight in unit.weights))

    def _units(self, model: nn.Module) -> list[_Unit]:
        """Return the units that may be offloaded, from the first on."""
        units, weights, waiting = [], dict[nn.Parameter, _Weight](), 0
        for modules in self._pieces(model):
            own = dict.fromkeys(parameter for module in modules for parameter in self._weights_of(module))
            new = [weight for weight in own if weight not in weights]
            size = sum(_pinned_bytes(weight) for weight in new)
            if self.most_gib and waiting + size > self.most_gib * _GIB:
                continue
            waiting += size
            weights.update({weight: _Weight(weight, self.onload_device, copies=self.from_host) for weight in new})
            units.append(_Unit(modules, [weights[weight] for weight in own]))
        return units

    def _weights_of(self, module: nn.Module) -> Iterator[nn.Parameter]:
        """Return the weights that a call of the module reads: of a leaf those of its own, where it calls its children.

        Modules of torch such as MultiheadAttention read weights of children that they do not call.
        """
        calls = "forward" not in vars(module) and not type(module).__module__.startswith("torch.")
        return module.parameters(recurse=not (self.granularity == "leaf" and calls))

    def _pieces(self, model: nn.Module) -> Iterator[list[nn.Module]]:
        if self.granularity == "model":
            yield [model]
        elif self.granularity == "part":
            yield from ([child] for child in model.children() if any(True for _ in child.parameters()))
        elif self.granularity == "leaf":
            yield from ([module] for module in _readers(model))
        else:
            blocks = list(dict.fromkeys(_listed_blocks(model)))
            for start in range(0, len(blocks), self.group):
                yield blocks[start : start + self.group]


def host_bytes(model: nn.Module) -> int:
    """Return the bytes of weights that stay in host memory while their module does not compute."""
    units = {unit for module in model.modules() if (unit := _unit_of(module)) is not None}
    weights = {weight.parameter for unit in units for weight in unit.weights}
    if any(hasattr(module, "_diffusers_hook") for module in model.modules()):
        weights |= {weight for weight in model.parameters() if weight.device.type == "cpu"}
    return sum(weight.numel() * weight.element_size() for weight in weights)


class _Weight:
    def __init__(self, parameter: nn.Parameter, onload_device: str, *, copies: bool) -> None:
        self.parameter = parameter
        self.home = parameter.device
        """Undo brings it back there."""
        self.device = torch.device(onload_device) if onload_device else parameter.device
        self.copies = copies
        """Copy even where the device is the host, too."""
        self.host: Tensor | None = None
        self.ready: tuple[Tensor, int, Tensor] | None = None
        """Brought ahead: what was on the host then, its version, and the copy of it."""
        self.users = 0

    def rest(self) -> None:
        here = self.parameter.data
        is_pageable = here.device.type == "cpu" and self.device.type == "cuda"
        self.parameter.data = self.host = here.pin_memory() if is_pageable else _on_host(here)

    def come(self) -> None:
        self.users += 1
        if self.users == 1:
            # As it is now: it may have been loaded or converted since.
            self.host = self.parameter.data
            here = self._brought()
            self.parameter.data = self._bring(self.host) if here is None else here

    def make_ready(self) -> None:
        if not self.users and self.host is not None:
            now = self.parameter.data
            self.ready = now, self.parameter._version, self._bring(now)

    def _brought(self) -> Tensor | None:
        """Return the copy that was made ahead, unless the weight has changed since."""
        if self.ready is None:
            return None
        (host, version, here), self.ready = self.ready, None
        now = self.parameter
        same = now.data_ptr() == host.data_ptr() and now.dtype is host.dtype and now._version == version
        return here if same else None

    def go(self) -> None:
        self.users -= 1
        if not self.users and self.host is not None:
            self.parameter.data = self.host

    def restore(self) -> None:
        if self.host is not None:
            self.parameter.data = _on_device(self.parameter.data, self.home)
            self.host = None

    def _bring(self, tensor: Tensor) -> Tensor:
        here = _on_device(tensor, self.device)
        return here.clone() if self.copies and here is tensor else here


class _Unit:
    """Modules whose weights come and go together: with the first of them that is called, until the last is done."""

    def __init__(self, modules: list[nn.Module], weights: list[_Weight]) -> None:
        self.modules, self.weights = modules, weights
        self.here = False
        self.until: list[_Unit] = []
        """All of them, where a unit stays until another one comes."""
        self.ahead: _Ahead | None = None

    def enter(self, module: nn.Module, _: Any) -> None:
        if not self.here:
            self.end_pass()
            self.here = True
            if self.ahead is not None:
                self.ahead.arrive_at(self)
            for weight in self.weights:
                weight.come()
            if self.ahead is not None:
                self.ahead.go_on_from(self)

    def leave(self, module: nn.Module, _: Any, output: Any = None) -> None:
        if torch.is_grad_enabled():
            for result in tree_leaves(output):
                if isinstance(result, Tensor) and result.requires_grad:
                    result.register_hook(_refuse_backward)  # type: ignore[no-untyped-call]
        if not self.until and module is self.modules[-1]:
            self.go()

    def go(self) -> None:
        if self.here:
            self.here = False
            for weight in self.weights:
                weight.go()

    def end_pass(self, *_: Any) -> None:
        """Let the part go that stayed, before another comes and after the whole model."""
        for unit in self.until:
            unit.go()

    def restore(self) -> None:
        for weight in self.weights:
            weight.restore()


def _refuse_backward(_: Tensor) -> NoReturn:
    """Backward would read weights that have gone to the host."""
    raise RuntimeError(
        "Offloaded weights cannot be trained, nor can the layers before them. Undo WeightOffload, or run "
        "the model under torch.no_grad()."
    )


class _Ahead:
    """Prefetches the next unit while one computes, in the order of the model's previous forward pass.

    Memory that the stream takes was used by nothing launched later than when the stream begins to wait for the one
    that computes, and that one waits for it before it reads: so neither overwrites what the other still needs.
    """

    def __init__(self) -> None:
        self.order: list[_Unit] = []
        """Units in the order of the last pass."""
        self.so_far: list[_Unit] | None = None
        self.next: _Unit | None = None
        self.streams: dict[torch.device, torch.cuda.Stream] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Copies and files of a model have streams of their own."""
        return {**vars(self), "streams": {}}

    def begin(self, *_: Any) -> None:
        self.so_far = []

    def end(self, *_: Any) -> None:
        self.order, self.so_far = self.so_far or [], None
        self.arrive_at(None)

    def arrive_at(self, unit: _Unit | None) -> None:
        if self.next is None:
            return
        if unit is self.next:
            for device, stream in self.streams.items():
                torch.cuda.current_stream(device).wait_stream(stream)
        else:
            for weight in self.next.weights:
                weight.ready = None
        self.next = None

    def go_on_from(self, unit: _Unit) -> None:
        if self.so_far is None:
            return
        self.so_far.append(unit)
        done = len(self.so_far)
        if done < len(self.order) and self.order[done - 1] is unit:
            self.next = self.order[done]
            for weight in self.next.weights:
                with self._stream_of(weight.device):
                    weight.make_ready()

    @contextlib.contextmanager
    def _stream_of(self, device: torch.device) -> Iterator[None]:
        if device.type != "cuda":
            yield
            return
        if device not in self.streams:
            self.streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        stream = self.streams[device]
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            yield


def _uncalled(model: nn.Module) -> list[str]:
    """Return names of weights that no called child owns: those in lists of modules, and the model's own."""
    lists = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)
    return [
        *(
            name
            for name, child in model.named_children()
            if isinstance(child, lists) and any(True for _ in child.parameters())
        ),
        *(name for name, _ in model.named_parameters(recurse=False)),
    ]


def _unit_of(module: nn.Module) -> _Unit | None:
    hooks = (getattr(hook, "__self__", None) for hook in module._forward_pre_hooks.values())
    return next((hook for hook in hooks if isinstance(hook, _Unit)), None)


def _diffusers() -> Any:
    try:
        importlib.import_module("accelerate")
        return importlib.import_module("diffusers.hooks")
    except ImportError:
        raise ValueError("implementation=library needs diffusers and accelerate: pip install them.") from None


def _pinned_bytes(tensor: Tensor) -> int:
    """Return the pinned memory that PyTorch takes for this tensor: the next power of two."""
    size = tensor.numel() * tensor.element_size()
    return 1 << (size - 1).bit_length() if size else 0


def _on_host(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda).copy_(tensor)


def _move(model: nn.Module, offloaded: set[_Weight], device: str) -> Callable[[], None]:
    """Move what is not offloaded to the device; return what moves it back."""
    stay = {weight.parameter for weight in offloaded}
    tensors = dict.fromkeys(tensor for tensor in (*model.parameters(), *model.buffers()) if tensor not in stay)
    before = {tensor: tensor.device for tensor in tensors}
    for tensor in tensors:
        tensor.data = tensor.data.to(device)

    def undo() -> None:
        for tensor, home in before.items():
            tensor.data = tensor.data.to(home)

    return undo


def _on_device(tensor: Tensor, device: torch.device) -> Tensor:
    return tensor.to(device, non_blocking=True)


def _readers(module: nn.Module) -> Iterator[nn.Module]:
    """Modules that own weights; and those whose forward was replaced by one that may read those of its layers."""
    if "forward" in vars(module) or any(True for _ in module.parameters(recurse=False)):
        yield module
    for child in module.children():
        yield from _readers(child)


def _listed_blocks(module: nn.Module) -> Iterator[nn.Module]:
    """Entries of the outermost lists of alike modules that have modules inside."""
    if isinstance(module, nn.ModuleList | nn.Sequential):
        large = [child for child in module if any(True for _ in child.children())]
        if len(large) > 1 and len({type(child) for child in large}) == 1:
            yield from large
            return
    for child in module.children():
        yield from _listed_blocks(child)
