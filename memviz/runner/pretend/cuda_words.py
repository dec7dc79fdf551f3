"""Programs that say "cuda": the word means our device, and `torch.cuda` answers as a machine with the card would."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from memviz.runner.pretend.patches import Patches

if TYPE_CHECKING:
    from memviz.runner.pretend.device import PretendedDevice

_HERE = torch.device("meta")
_IS_CUDA = torch.Tensor.is_cuda.__get__  # type: ignore[attr-defined]


def _means_us(value: Any) -> bool:
    if type(value) is str:
        return value == "cuda" or value.startswith("cuda:")
    return type(value) is torch.device and value.type == "cuda"


class CudaWords(TorchFunctionMode):
    """In every function of torch: the device named, and memory pinned for a card that is not there."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.cuda:
            return args[0].to(_HERE)
        if func is torch.Tensor.pin_memory:
            return args[0]
        if func == _IS_CUDA:
            return args[0].is_meta
        if any(map(_means_us, args)):
            args = tuple(_HERE if _means_us(each) else each for each in args)
        if kwargs:
            if _means_us(kwargs.get("device")):
                kwargs = {**kwargs, "device": _HERE}
            if kwargs.get("pin_memory"):
                kwargs = {**kwargs, "pin_memory": False}
        return func(*args, **kwargs)


@contextmanager
def spoken(device: PretendedDevice) -> Iterator[None]:
    patches = Patches()
    try:
        _move_modules(patches, device)
        for name, answer in _answers(device).items():
            patches.replace(torch.cuda, name, answer)
        _speak_in_backward(patches)
        with CudaWords():
            yield
    finally:
        patches.undo()


def _speak_in_backward(patches: Patches) -> None:
    """Hooks and checkpoints run there; torch runs its engine without modes."""
    for owner in (torch.autograd, torch.autograd.graph):
        run = vars(owner).get("_engine_run_backward")
        if run is not None:
            patches.replace(owner, "_engine_run_backward", _spoken(run))


def _spoken(run: Any) -> Any:
    def run_with_words(*args: Any, **kwargs: Any) -> Any:
        with CudaWords():
            return run(*args, **kwargs)

    return run_with_words


def _move_modules(patches: Patches, device: PretendedDevice) -> None:
    """Keeps tied weights tied, and optimizers and their weights together as far as the host's can stay the same."""
    to = nn.Module.to

    def moved(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        names = [*args, *kwargs.values()]
        if not any(_means_us(each) or (type(each) is torch.device and each == _HERE) for each in names):
            return to(self, *args, **kwargs)
        device.place(self)
        rest = [each for each in args if isinstance(each, torch.dtype)]
        dtype = kwargs.get("dtype", rest[0] if rest else None)
        return self if dtype is None else to(self, dtype)

    def to_the_card(self: nn.Module, _: Any = None) -> nn.Module:
        return device.place(self)

    patches.replace(nn.Module, "to", moved)
    patches.replace(nn.Module, "cuda", to_the_card)


def _answers(device: PretendedDevice) -> dict[str, Any]:
    card = device.card
    described = SimpleNamespace(
        name=card.name,
        major=card.capability[0],
        minor=card.capability[1],
        total_memory=card.memory_bytes,
        multi_processor_count=card.multiprocessors,
    )
    return {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "synchronize": lambda device=None: None,
        "get_device_name": lambda device=None: card.name,
        "get_device_capability": lambda device=None: card.capability,
        "get_device_properties": lambda device=None: described,
        "is_bf16_supported": lambda including_emulation=True: card.capability[0] >= 8 or including_emulation,
        "empty_cache": device.empty_cache,
        "memory_allocated": lambda device_=None: device.allocated_bytes,
        "memory_reserved": lambda device_=None: device.reserved_bytes,
        "max_memory_allocated": lambda device_=None: device.peak_allocated_bytes,
        "max_memory_reserved": lambda device_=None: device.peak_reserved_bytes,
        "reset_peak_memory_stats": lambda device_=None: device.reset_peak(),
        "mem_get_info": lambda device_=None: (card.memory_bytes - device.reserved_bytes, card.memory_bytes),
    }
