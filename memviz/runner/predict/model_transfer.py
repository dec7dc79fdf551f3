"""`model.to(device)`: new memory for each tensor of a model, in torch's own order."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import Parameter
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from memviz.runner.predict.allocation_recorder import AllocationRecorder
from memviz.runner.predict.compat import without_functions
from memviz.trace.model import Category

_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
"""Hooks stay with the object when its memory is swapped."""


NOTHING_TO_COPY = (
    "Cannot copy out of meta tensor; no data! Please use torch.nn.Module.to_empty() instead of "
    "torch.nn.Module.to() when moving module from meta to a different device."
)


@dataclass(frozen=True, slots=True)
class MoveTo:
    """Target device, dtype and memory format of tensors. One copy applies all: data of the host changes on the way."""

    device: torch.device
    dtype: torch.dtype | None = None
    """Applied to floating-point and complex tensors only."""
    layout: torch.memory_format | None = None
    """Applied to tensors of images and volumes only."""
    waits: bool = True
    """If False, dtypes change on the card."""

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        changes: dict[str, Any] = {"device": self.device, "non_blocking": not self.waits}
        if self.dtype is not None and (tensor.is_floating_point() or tensor.is_complex()):
            changes["dtype"] = self.dtype
        if self.layout is not None and tensor.dim() in (4, 5):
            changes["memory_format"] = self.layout
        copied: torch.Tensor = torch.ops.aten._to_copy.default(tensor.detach(), **changes)
        return copied


def move_model(
    recorder: AllocationRecorder, model: nn.Module, wanted: MoveTo, on_host: Collection[Parameter] = ()
) -> nn.Module:
    """Move a model; tensors that are on the device already stay, so tied weights stay tied.

    Weights of `on_host` are in host memory afterwards, without values.
    """
    with without_functions():
        return _move(recorder, model, wanted, frozenset(map(id, on_host)))


def _move(recorder: AllocationRecorder, model: nn.Module, wanted: MoveTo, on_host: Set[int]) -> nn.Module:
    names = {id(module): path for path, module in model.named_modules()}
    recorder.position.name_modules(model)
    recorder.placed = Category.PARAMETER
    try:
        with torch.no_grad():
            for module in _children_first(model):
                _move_own(recorder, module, names[id(module)], wanted, on_host)
    finally:
        recorder.placed = None
    return model


def _children_first(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        yield from _children_first(child)
    yield module


def _move_own(recorder: AllocationRecorder, module: nn.Module, path: str, wanted: MoveTo, on_host: Set[int]) -> None:
    with recorder.position.inside(module):
        for name, parameter in module._parameters.items():
            if parameter is not None:
                placed = parameter
                if id(parameter) not in on_host:
                    placed = _moved_parameter(recorder, parameter, wanted)
                elif parameter.is_meta:
                    # To the program, a model that was built on `meta` is in host memory.
                    swap_data(parameter, MoveTo(torch.device("cpu")).copy(parameter))
                module._parameters[name] = placed
                recorder.position.own(placed, path)
                recorder.watch(placed)
        for name, buffer in module._buffers.items():
            if buffer is not None and not _is_there(recorder, buffer):
                module._buffers[name] = _copied(buffer, wanted)


def _moved_parameter(recorder: AllocationRecorder, parameter: Parameter, wanted: MoveTo) -> Parameter:
    if _is_there(recorder, parameter):
        return parameter
    data = _copied(parameter, wanted)
    if parameter.grad is not None and not _is_there(recorder, parameter.grad):
        gradient = _copied(parameter.grad, wanted)
    else:
        gradient = parameter.grad
    if parameter.is_meta and not _is_made_of_others(parameter):
        parameter.data = data
    elif not swap_data(parameter, data):
        parameter = Parameter(data, parameter.requires_grad)
    if gradient is not parameter.grad:
        parameter.grad = gradient
    return parameter


def swap_data(tensor: Any, data: Any) -> bool:
    """Give a tensor the memory of another device; the object stays, since optimizers and programs hold it.

    Return False where C++ holds the tensor too, such as a live graph.
    """
    new = data.detach().requires_grad_(tensor.requires_grad)
    if isinstance(tensor, Parameter):
        new = Parameter(data.detach(), tensor.requires_grad)
    if _is_made_of_others(tensor) and type(new) is not type(tensor):
        return False
    hooks = {name: getattr(tensor, name) for name in _HOOKS if getattr(tensor, name, None)}
    gradient = tensor.grad if tensor.is_leaf else None
    if gradient is not None:
        # Nothing else may hold the gradient while it moves with its weight.
        tensor.grad = None
    try:
        torch._C._swap_tensor_impl(tensor, new)
    except RuntimeError:
        if gradient is not None:
            tensor.grad = gradient
        return False
    if _is_made_of_others(tensor):
        tensor.__dict__, new.__dict__ = new.__dict__, tensor.__dict__
    for name, registered in hooks.items():
        setattr(tensor, name, registered)
    if gradient is not None and _on_one_side(gradient, tensor):
        tensor.grad = gradient
    return True


def _on_one_side(gradient: Any, tensor: Any) -> bool:
    """Move a gradient to the side of its weight; torch cannot hold one on another device."""
    if gradient.is_meta == tensor.is_meta:
        return True
    with torch.no_grad():
        return swap_data(gradient, torch.ops.aten._to_copy.default(gradient.detach(), device=tensor.detach().device))


def _copied(tensor: Any, wanted: MoveTo) -> Any:
    if not tensor.is_meta or not _is_made_of_others(tensor):
        return wanted.copy(tensor)
    # Its parts are on the device already.
    names, context = tensor.__tensor_flatten__()
    parts = {name: _copied(getattr(tensor, name), wanted) for name in names}
    return type(tensor).__tensor_unflatten__(parts, context, tensor.size(), tensor.stride())


def _is_made_of_others(tensor: torch.Tensor) -> bool:
    return bool(is_traceable_wrapper_subclass(tensor))


def _is_there(recorder: AllocationRecorder, tensor: torch.Tensor) -> bool:
    return tensor.is_meta and recorder.ledger.allocation_of(tensor.untyped_storage()) is not None
