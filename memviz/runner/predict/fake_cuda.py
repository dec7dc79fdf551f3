"""Programs that say "cuda": the word means our device, and `torch.cuda` answers as a machine with the card would."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn, overrides
from torch.overrides import TorchFunctionMode

from memviz.runner.predict.allocation_recorder import AllocationRecorder
from memviz.runner.predict.cards import KnownCard
from memviz.runner.predict.named_devices import META, NamedDevices
from memviz.runner.predict.place import NOTHING_TO_COPY, place_model
from memviz.runner.predict.tensor_answers import TensorAnswers, has_unknown_numbers
from memviz.runner.predict.torch_patches import Patches

_modes: Callable[[], list[Any]] = overrides._get_current_function_mode_stack


class FakeCudaMode(TorchFunctionMode):
    """In every function of torch: the device that is named, and what the program wants to know of a tensor."""

    def __init__(self, named: NamedDevices, tensors: TensorAnswers) -> None:
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
        nowhere = self._named.means_nowhere
        if nowhere(kwargs.get("device")) or any(map(nowhere, args)):
            return self._tensors.made_nowhere(func, args, kwargs)
        out = self._called(func, args, kwargs)
        if has_unknown_numbers(args, kwargs):
            # In a tensor it would be 1.0 for everybody who looks.
            self._tensors.lose(args[0] if func is Tensor.__setitem__ else out)
        return out

    def _called(self, func: Any, args: Any, kwargs: Any) -> Any:
        means_us = self._named.means_us
        if any(map(means_us, args)):
            args = tuple(META if means_us(arg) else arg for arg in args)
        elif func is Tensor.to and len(args) > 1 and means_us(args[1], numbers=True):
            args = (args[0], META, *args[2:])
        if not kwargs:
            return func(*args)
        if means_us(kwargs.get("device"), numbers=True):
            kwargs = {**kwargs, "device": META}
        if not kwargs.get("pin_memory"):
            return func(*args, **kwargs)
        return self._tensors.pinned(func(*args, **{**kwargs, "pin_memory": False}))

    def _to_the_card(self, args: Any, kwargs: Any) -> Any:
        self._named.check(args[1] if len(args) > 1 else kwargs.get("device"))
        return args[0].to(META)


@contextmanager
def installed(
    recorder: AllocationRecorder, memory: Mapping[str, Callable[[], Any]], set_settings: Callable[[str], None]
) -> Iterator[None]:
    """`memory` is what functions of `torch.cuda` say of the device's memory, by their names."""
    patches = Patches()
    named = NamedDevices(recorder.card.name)
    tensors = TensorAnswers(recorder)
    mode = partial(FakeCudaMode, named, tensors)
    try:
        patches.replace(Tensor, "__reduce_ex__", tensors.write_out(Tensor.__reduce_ex__))
        _move_modules(patches, recorder, named)
        # Between the host and a card a tensor may take over another's memory; torch would not have it with ours.
        patches.replace(torch, "_has_compatible_shallow_copy_type", _take_over(torch._has_compatible_shallow_copy_type))
        for name, answer in _answers(recorder.card, memory, named).items():
            patches.replace(torch.cuda, name, answer)
        patches.replace(torch.cuda.memory, "_set_allocator_settings", set_settings)
        # Without one there would be a warning; recurrent layers are predicted step by step.
        patches.replace(getattr(torch.backends.cudnn, "m", torch.backends.cudnn), "is_acceptable", lambda tensor: False)
        _make_wrappers_here(patches, named)
        _enter_in_backward(patches, mode)
        _enter_in_hooks(patches, mode)
        with mode():
            yield
    finally:
        patches.undo()


def _check_memory(recorder: AllocationRecorder, model: nn.Module) -> None:
    nowhere = recorder.host.nowhere
    if len(nowhere) and any(tensor in nowhere for tensor in (*model.parameters(), *model.buffers())):
        raise NotImplementedError(NOTHING_TO_COPY)


def _take_over(compatible: Callable[[Tensor, Tensor], bool]) -> Callable[[Tensor, Tensor], bool]:
    plain = (Tensor, nn.Parameter)
    return lambda one, other: (type(one) in plain and type(other) in plain) or compatible(one, other)


def _enter_in_backward(patches: Patches, mode: Callable[[], FakeCudaMode]) -> None:
    """Hooks and checkpoints run there; torch runs its engine without modes."""
    for owner in (torch.autograd, torch.autograd.graph):
        run = vars(owner).get("_engine_run_backward")
        if run is not None:
            patches.replace(owner, "_engine_run_backward", _within(mode, run))


def _make_wrappers_here(patches: Patches, named: NamedDevices) -> None:
    """Tensors made of others, such as quantized ones: torch would put the outer one on a card."""
    make = Tensor._make_wrapper_subclass

    def made(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if named.means_us(kwargs.get("device")):
            kwargs["device"] = META
        return make(cls, *args, **kwargs)

    patches.give(Tensor, "_make_wrapper_subclass", staticmethod(made))


def _enter_in_hooks(patches: Patches, mode: Callable[[], FakeCudaMode]) -> None:
    """Of saved tensors: torch calls them from within an operator, where no mode is on, and again in backward."""
    hooks: Any = torch.autograd.graph.saved_tensors_hooks
    begin = hooks.__init__

    def begun(self: Any, pack: Any, unpack: Any) -> None:
        begin(self, _within(mode, pack), _within(mode, unpack))

    patches.replace(hooks, "__init__", begun)


def _within(mode: Callable[[], FakeCudaMode], run: Any) -> Any:
    def run_within(*args: Any, **kwargs: Any) -> Any:
        if any(isinstance(entered, FakeCudaMode) for entered in _modes()):
            return run(*args, **kwargs)
        with mode():
            return run(*args, **kwargs)

    return run_within


def _move_modules(patches: Patches, recorder: AllocationRecorder, named: NamedDevices) -> None:
    """Keeps tied weights tied, and optimizers and their weights together as far as the host's can stay the same."""
    to = nn.Module.to

    def is_ours(value: Any) -> bool:
        return named.means_us(value, numbers=True)

    def moved(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not any(map(is_ours, (*args[:1], kwargs.get("device")))):
            return to(self, *args, **kwargs)
        _check_memory(recorder, self)
        place_model(recorder, self, META)
        dtypes = [arg for arg in args if isinstance(arg, torch.dtype)]
        dtype = kwargs.get("dtype", dtypes[0] if dtypes else None)
        return self if dtype is None else to(self, dtype)

    def to_the_card(self: nn.Module, device_: Any = None, **kwargs: Any) -> nn.Module:
        named.check(kwargs.get("device", device_))
        _check_memory(recorder, self)
        return place_model(recorder, self, META)

    patches.replace(nn.Module, "to", moved)
    patches.replace(nn.Module, "cuda", to_the_card)


def _answers(card: KnownCard, memory: Mapping[str, Callable[[], Any]], named: NamedDevices) -> dict[str, Any]:
    described = SimpleNamespace(
        name=card.name,
        major=card.capability[0],
        minor=card.capability[1],
        total_memory=card.memory_bytes,
        multi_processor_count=card.multiprocessors,
    )
    on_the_card = {
        "get_device_name": lambda: card.name,
        "get_device_capability": lambda: card.capability,
        "get_device_properties": lambda: described,
        "synchronize": lambda: None,
        "set_device": lambda: None,
        "_exchange_device": lambda: 0,
        "_maybe_exchange_device": lambda: 0,
        "mem_get_info": lambda: (card.memory_bytes - memory["memory_reserved"](), card.memory_bytes),
        **memory,
    }
    return {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "is_bf16_supported": lambda including_emulation=True: card.capability[0] >= 8 or including_emulation,
        **{name: _on_the_card(answer, named) for name, answer in on_the_card.items()},
    }


def _on_the_card(answer: Callable[[], Any], named: NamedDevices) -> Callable[..., Any]:
    """A function that may be told which device; there is one."""

    def answers(device: Any = None) -> Any:
        named.check(device)
        return answer()

    return answers
