"""Programs that say "cuda": the word means our device, and `torch.cuda` answers as a machine with the card would."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn, overrides
from torch.overrides import TorchFunctionMode

from memviz.runner.predict.named_devices import HERE, NamedDevices
from memviz.runner.predict.patches import Patches
from memviz.runner.predict.tensor_words import TensorWords, has_unknown_numbers

if TYPE_CHECKING:
    from memviz.runner.predict.device import PretendedDevice

_modes: Callable[[], list[Any]] = overrides._get_current_function_mode_stack


class CudaWords(TorchFunctionMode):
    """In every function of torch: the device named, and what is asked of a tensor."""

    def __init__(self, named: NamedDevices, tensors: TensorWords) -> None:
        super().__init__()
        self._named = named
        self._tensors = tensors
        self._answers = {**tensors.answers, Tensor.cuda: self._to_the_card}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        answer = self._answers.get(func)
        if answer is not None:
            out = answer(args, kwargs)
            if out is not NotImplemented:
                return out
        out = self._called(func, args, kwargs)
        if has_unknown_numbers(args, kwargs):
            # In a tensor it would be 1.0 for everybody who looks.
            self._tensors.lose(args[0] if func is Tensor.__setitem__ else out)
        return out

    def _called(self, func: Any, args: Any, kwargs: Any) -> Any:
        means_us = self._named.means_us
        if any(map(means_us, args)):
            args = tuple(HERE if means_us(each) else each for each in args)
        elif func is Tensor.to and len(args) > 1 and means_us(args[1], numbers=True):
            args = (args[0], HERE, *args[2:])
        if not kwargs:
            return func(*args)
        if means_us(kwargs.get("device"), numbers=True):
            kwargs = {**kwargs, "device": HERE}
        if not kwargs.get("pin_memory"):
            return func(*args, **kwargs)
        return self._tensors.pinned(func(*args, **{**kwargs, "pin_memory": False}))

    def _to_the_card(self, args: Any, kwargs: Any) -> Any:
        self._named.check(args[1] if len(args) > 1 else kwargs.get("device"))
        return args[0].to(HERE)


@contextmanager
def spoken(device: PretendedDevice) -> Iterator[None]:
    patches = Patches()
    named = NamedDevices(device.card.name)
    tensors = TensorWords(device)
    words = partial(CudaWords, named, tensors)
    try:
        patches.replace(Tensor, "__reduce_ex__", tensors.write_out(Tensor.__reduce_ex__))
        _move_modules(patches, device, named)
        for name, answer in _answers(device, named).items():
            patches.replace(torch.cuda, name, answer)
        # Without one there would be a warning; recurrent layers are predicted step by step.
        patches.replace(getattr(torch.backends.cudnn, "m", torch.backends.cudnn), "is_acceptable", lambda tensor: False)
        _make_wrappers_here(patches, named)
        _speak_in_backward(patches, words)
        _speak_in_hooks(patches, words)
        with words():
            yield
    finally:
        patches.undo()


def _speak_in_backward(patches: Patches, words: Callable[[], CudaWords]) -> None:
    """Hooks and checkpoints run there; torch runs its engine without modes."""
    for owner in (torch.autograd, torch.autograd.graph):
        run = vars(owner).get("_engine_run_backward")
        if run is not None:
            patches.replace(owner, "_engine_run_backward", _spoken(run, words))


def _make_wrappers_here(patches: Patches, named: NamedDevices) -> None:
    """Tensors made of others, such as quantized ones: torch would put the outer one on a card."""
    make = Tensor._make_wrapper_subclass

    def made(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if named.means_us(kwargs.get("device")):
            kwargs["device"] = HERE
        return make(cls, *args, **kwargs)

    patches.give(Tensor, "_make_wrapper_subclass", staticmethod(made))


def _speak_in_hooks(patches: Patches, words: Callable[[], CudaWords]) -> None:
    """Of saved tensors: torch calls them from within an operator, where no words are, and again in backward."""
    hooks: Any = torch.autograd.graph.saved_tensors_hooks
    begin = hooks.__init__

    def begun(self: Any, pack: Any, unpack: Any) -> None:
        begin(self, _spoken(pack, words), _spoken(unpack, words))

    patches.replace(hooks, "__init__", begun)


def _spoken(run: Any, words: Callable[[], CudaWords]) -> Any:
    def run_with_words(*args: Any, **kwargs: Any) -> Any:
        if any(isinstance(each, CudaWords) for each in _modes()):
            return run(*args, **kwargs)
        with words():
            return run(*args, **kwargs)

    return run_with_words


def _move_modules(patches: Patches, device: PretendedDevice, named: NamedDevices) -> None:
    """Keeps tied weights tied, and optimizers and their weights together as far as the host's can stay the same."""
    to = nn.Module.to

    def is_ours(value: Any) -> bool:
        return named.means_us(value, numbers=True) or (type(value) is torch.device and value == HERE)

    def moved(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not any(map(is_ours, (*args[:1], kwargs.get("device")))):
            return to(self, *args, **kwargs)
        device.place(self)
        rest = [each for each in args if isinstance(each, torch.dtype)]
        dtype = kwargs.get("dtype", rest[0] if rest else None)
        return self if dtype is None else to(self, dtype)

    def to_the_card(self: nn.Module, device_: Any = None, **kwargs: Any) -> nn.Module:
        named.check(kwargs.get("device", device_))
        return device.place(self)

    patches.replace(nn.Module, "to", moved)
    patches.replace(nn.Module, "cuda", to_the_card)


def _answers(device: PretendedDevice, named: NamedDevices) -> dict[str, Any]:
    card = device.card
    described = SimpleNamespace(
        name=card.name,
        major=card.capability[0],
        minor=card.capability[1],
        total_memory=card.memory_bytes,
        multi_processor_count=card.multiprocessors,
    )
    of_the_card = {
        "get_device_name": lambda: card.name,
        "get_device_capability": lambda: card.capability,
        "get_device_properties": lambda: described,
        "synchronize": lambda: None,
        "set_device": lambda: None,
        "_exchange_device": lambda: 0,
        "_maybe_exchange_device": lambda: 0,
        "memory_allocated": lambda: device.allocated_bytes,
        "memory_reserved": lambda: device.reserved_bytes,
        "max_memory_allocated": lambda: device.peak_allocated_bytes,
        "max_memory_reserved": lambda: device.peak_reserved_bytes,
        "reset_peak_memory_stats": device.reset_peak,
        "mem_get_info": lambda: (card.memory_bytes - device.reserved_bytes, card.memory_bytes),
    }
    return {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "is_bf16_supported": lambda including_emulation=True: card.capability[0] >= 8 or including_emulation,
        "empty_cache": device.empty_cache,
        **{name: _of_the_card(answer, named) for name, answer in of_the_card.items()},
    }


def _of_the_card(answer: Callable[[], Any], named: NamedDevices) -> Callable[..., Any]:
    """A function that may be told which device; there is one."""

    def answers(device: Any = None) -> Any:
        named.check(device)
        return answer()

    return answers
