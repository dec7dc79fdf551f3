"""Tensors recognised by where they lie: a model's parameters and gradients, an optimizer's state, what goes in and out.

Looking costs nothing on the device and changes nothing: addresses are read, no tensor is touched.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from memviz.runner.record.log import Log
from memviz.trace.model import Category

Paths = Mapping[int, str]
"""A parameter's module, by the parameter's id."""


def see_model(log: Log, model: nn.Module, kind: str, prefix: str = "") -> None:
    counts = log.counts()
    for path, module in model.named_modules(prefix=prefix):
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            for address in addresses(tensor, kind):
                log.see(address, Category.PARAMETER, path, counts)


def see_gradients(log: Log, model: nn.Module, kind: str, prefix: str = "") -> None:
    counts = log.counts()
    for path, module in model.named_modules(prefix=prefix):
        for parameter in module.parameters(recurse=False):
            if parameter.grad is not None:
                for address in addresses(parameter.grad, kind):
                    log.see(address, Category.GRADIENT, path, counts)


def see_optimizer(log: Log, optimizer: Optimizer, kind: str, paths: Paths) -> None:
    """What it keeps of each parameter, under the parameter's module."""
    counts = log.counts()
    for parameter, state in list(optimizer.state.items()):
        for tensor in tensors_in(state):
            for address in addresses(tensor, kind):
                log.see(address, Category.OPTIMIZER_STATE, paths.get(id(parameter), ""), counts)


def see_all(log: Log, values: Any, category: Category, kind: str) -> None:
    counts = log.counts()
    for tensor in tensors_in(values):
        for address in addresses(tensor, kind):
            log.see(address, category, "", counts)


def paths_of(model: nn.Module, prefix: str = "") -> dict[int, str]:
    named = model.named_modules(prefix=prefix)
    return {id(each): path for path, module in named for each in module.parameters(recurse=False)}


def see_everything_alive(log: Log, kind: str) -> None:
    """Of a program that named nothing: every model and optimizer that Python knows."""
    models, optimizers = _alive()
    paths: dict[int, str] = {}
    for prefix, model in _named(models):
        see_model(log, model, kind, prefix)
        see_gradients(log, model, kind, prefix)
        paths.update(paths_of(model, prefix))
    for optimizer in optimizers:
        see_optimizer(log, optimizer, kind, paths)


def _alive() -> tuple[list[nn.Module], list[Optimizer]]:
    """By type and not by `isinstance`, which asks the object itself and so may run a stranger's code."""
    every = gc.get_objects()
    modules: list[nn.Module] = [each for each in every if issubclass(type(each), nn.Module)]
    optimizers: list[Optimizer] = [each for each in every if issubclass(type(each), Optimizer)]
    inside = {id(child) for each in modules for child in each.children()}
    return [each for each in modules if id(each) not in inside], optimizers


def _named(models: list[nn.Module]) -> Iterator[tuple[str, nn.Module]]:
    """Several models are told apart by their classes; a single one needs no name before its modules' own."""
    holding = [each for each in models if next(each.parameters(), None) is not None]
    for model in holding:
        yield ("" if len(holding) == 1 else type(model).__name__), model


def addresses(tensor: Tensor, kind: str) -> Iterator[int]:
    """Of the storages below it. Subclasses such as quantised or sharded tensors hold others inside."""
    flatten: Callable[[], tuple[list[str], Any]] | None = getattr(tensor, "__tensor_flatten__", None)
    if flatten is not None:
        for name in flatten()[0]:
            yield from addresses(getattr(tensor, name), kind)
    elif tensor.device.type == kind and tensor.layout == torch.strided:
        address = tensor.untyped_storage().data_ptr()
        if address:
            # As a Trace writes them: Intel GPUs hand out addresses of 2**63 and above.
            yield address - (address >> 63 << 64)


def tensors_in(value: Any, depth: int = 8) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif depth and isinstance(value, Mapping):
        for each in list(value.values()):
            yield from tensors_in(each, depth - 1)
    elif depth and isinstance(value, list | tuple):
        for each in value:
            yield from tensors_in(each, depth - 1)
