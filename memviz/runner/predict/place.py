"""`model.to(device)`: new memory for each tensor of a model, in torch's own order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import Parameter
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from memviz.runner.predict.recorder import Recorder
from memviz.trace.model import Category


def place_model(recorder: Recorder, model: nn.Module, device: torch.device) -> nn.Module:
    """A tensor that is on the device already stays, as `.to` leaves it; so tied weights stay tied."""
    names = {id(module): path for path, module in model.named_modules()}
    recorder.where.name_modules(model)
    replaced: dict[int, Parameter] = {}
    recorder.placed = Category.PARAMETER
    try:
        with torch.no_grad():
            for module in _children_first(model):
                _place_own(recorder, module, names[id(module)], device, replaced)
    finally:
        recorder.placed = None
    return model


def _children_first(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        yield from _children_first(child)
    yield module


def _place_own(
    recorder: Recorder, module: nn.Module, path: str, device: torch.device, replaced: dict[int, Parameter]
) -> None:
    with recorder.where.inside(module):
        for name, parameter in module._parameters.items():
            if parameter is not None:
                placed = _placed_parameter(recorder, parameter, device, replaced)
                module._parameters[name] = placed
                recorder.where.own(placed, path)
                recorder.watch(placed)
        for name, buffer in module._buffers.items():
            if buffer is not None and not _is_there(recorder, buffer):
                module._buffers[name] = _copied(buffer, device)


def _placed_parameter(
    recorder: Recorder, parameter: Parameter, device: torch.device, replaced: dict[int, Parameter]
) -> Parameter:
    if _is_there(recorder, parameter):
        return parameter
    if id(parameter) in replaced:
        return replaced[id(parameter)]
    data = _copied(parameter, device)
    if parameter.is_meta and not _is_made_of_others(parameter):
        parameter.data = data
        placed = parameter
    else:
        # Neither can become what `data` is by taking it over; on a card the object would stay the same.
        placed = replaced[id(parameter)] = Parameter(data, parameter.requires_grad)
    if parameter.grad is not None and not _is_there(recorder, parameter.grad):
        placed.grad = _copied(parameter.grad, device)
    return placed


def _copied(tensor: Any, device: torch.device) -> Any:
    if not tensor.is_meta or not _is_made_of_others(tensor):
        return torch.ops.aten._to_copy.default(tensor.detach(), device=device)
    # It would find its parts on the device already.
    names, context = tensor.__tensor_flatten__()
    parts = {name: _copied(getattr(tensor, name), device) for name in names}
    return type(tensor).__tensor_unflatten__(parts, context, tensor.size(), tensor.stride())


def _is_made_of_others(tensor: torch.Tensor) -> bool:
    return bool(is_traceable_wrapper_subclass(tensor))


def _is_there(recorder: Recorder, tensor: torch.Tensor) -> bool:
    return tensor.is_meta and recorder.ledger.knows(tensor.untyped_storage()) is not None
