"""`model.to(device)`: new memory for each tensor of a model, in torch's own order."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn
from torch.nn import Parameter

from memviz.runner.pretend.recorder import Recorder
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
    if parameter.is_meta:
        parameter.data = data
        placed = parameter
    else:
        # Tensors of the host cannot become tensors without data; on a card the object would stay the same.
        placed = replaced[id(parameter)] = Parameter(data, parameter.requires_grad)
    if parameter.grad is not None and not _is_there(recorder, parameter.grad):
        placed.grad = _copied(parameter.grad, device)
    return placed


def _copied(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    copy: torch.Tensor = torch.ops.aten._to_copy.default(tensor.detach(), device=device)
    return copy


def _is_there(recorder: Recorder, tensor: torch.Tensor) -> bool:
    return tensor.is_meta and recorder.ledger.knows(tensor.untyped_storage()) is not None
