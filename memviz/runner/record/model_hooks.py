"""Hooks on a model and its optimizer that log phases, modules and what each tensor is.

Tensors are recognised by their addresses: parameters, gradients, optimizer state, inputs and outputs. A hook that
returns nothing changes no value, and looking costs nothing on the device.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Variable
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from memviz.runner.record.log import Log
from memviz.trace.model import Category, Phase

Paths = Mapping[int, str]
"""A parameter's module, by the parameter's id."""


def see(log: Log, tensors: Iterable[tuple[Tensor, str]], category: Category, kind: str) -> None:
    """Log tensors, each with the path of its module."""
    counts = log.counts()
    for tensor, path in tensors:
        for address in addresses(tensor, kind):
            log.see(address, category, path, counts)


def see_model(log: Log, model: nn.Module, kind: str, prefix: str = "") -> None:
    weights = (
        (tensor, path)
        for path, module in model.named_modules(prefix=prefix)
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False))
    )
    see(log, weights, Category.PARAMETER, kind)


def see_gradients(log: Log, model: nn.Module, kind: str, prefix: str = "") -> None:
    gradients = (
        (parameter.grad, path)
        for path, module in model.named_modules(prefix=prefix)
        for parameter in module.parameters(recurse=False)
        if parameter.grad is not None
    )
    see(log, gradients, Category.GRADIENT, kind)


def see_optimizer(log: Log, optimizer: Optimizer, kind: str, paths: Paths) -> None:
    """Log the optimizer states of each parameter under the parameter's module."""
    states = (
        (tensor, paths.get(id(parameter), ""))
        for parameter, state in list(optimizer.state.items())
        for tensor in tensors_in(state)
    )
    see(log, states, Category.OPTIMIZER_STATE, kind)


def see_values(log: Log, values: Any, category: Category, kind: str) -> None:
    see(log, ((tensor, "") for tensor in tensors_in(values)), category, kind)


def paths_of(model: nn.Module, prefix: str = "") -> dict[int, str]:
    modules = model.named_modules(prefix=prefix)
    return {id(parameter): path for path, module in modules for parameter in module.parameters(recurse=False)}


def see_everything_alive(log: Log, kind: str) -> None:
    """Log every model and optimizer that Python holds, for a program that named none."""
    # By their types: `isinstance` reads `__class__` and may run code of the program.
    every = gc.get_objects()
    modules: list[nn.Module] = [thing for thing in every if issubclass(type(thing), nn.Module)]
    optimizers: list[Optimizer] = [thing for thing in every if issubclass(type(thing), Optimizer)]
    inside = {id(child) for module in modules for child in module.children()}
    outermost = [module for module in modules if id(module) not in inside]
    models = [model for model in outermost if next(model.parameters(), None) is not None]
    paths: dict[int, str] = {}
    for model in models:
        prefix = "" if len(models) == 1 else type(model).__name__
        see_model(log, model, kind, prefix)
        see_gradients(log, model, kind, prefix)
        paths.update(paths_of(model, prefix))
    for optimizer in optimizers:
        see_optimizer(log, optimizer, kind, paths)


def addresses(tensor: Tensor, kind: str) -> Iterator[int]:
    """Yield the addresses of a tensor's storages, also of those inside quantized or sharded subclasses."""
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
        for item in list(value.values()):
            yield from tensors_in(item, depth - 1)
    elif depth and isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item, depth - 1)


class ModelHooks:
    """`follow_phases` if no caller marks forward, backward and step; `failed` is called with an error in a module
    before the program sees it."""

    def __init__(
        self, log: Log, kind: str, *, follow_phases: bool, failed: Callable[[BaseException], None] = lambda error: None
    ) -> None:
        self.log = log
        self.kind = kind
        self.follow_phases = follow_phases
        self.failed = failed
        self.models: list[nn.Module] = []
        self.optimizers: list[Optimizer] = []
        self._at_rest: weakref.WeakKeyDictionary[nn.Module, set[int]] = weakref.WeakKeyDictionary()
        """Addresses of the weights of each module when a phase begins."""
        self._handles: list[RemovableHandle] = []

    def model(self, model: nn.Module) -> None:
        self.models.append(model)
        see_model(self.log, model, self.kind)
        self.refresh()
        if self.follow_phases:
            self._handles += [
                model.register_forward_pre_hook(self._forward_begins, with_kwargs=True, prepend=True),
                model.register_forward_hook(self._forward_ends, always_call=True),
            ]

    def optimizer(self, optimizer: Optimizer) -> None:
        self.optimizers.append(optimizer)
        self._handles += [
            optimizer.register_step_pre_hook(lambda *_: self._step_begins()),
            optimizer.register_step_post_hook(lambda *_: self._step_ends()),
        ]

    def every_optimizer(self) -> None:
        """Watch every optimizer of this process from its first step on."""

        def before(optimizer: Optimizer, *_: Any) -> None:
            if all(optimizer is not other for other in self.optimizers):
                self.optimizers.append(optimizer)
            self._step_begins()

        self._handles.append(register_optimizer_step_pre_hook(before))
        self._handles.append(register_optimizer_step_post_hook(lambda *_: self._step_ends()))

    def refresh(self) -> None:
        """Also for modules that took another's place in the meantime."""
        for model in self.models:
            for path, module in model.named_modules():
                if module not in self._at_rest:
                    self._hook(module, path)
                self._at_rest[module] = self._weights_at(module)

    def _weights_at(self, module: nn.Module) -> set[int]:
        weights = module.parameters(recurse=False)
        return {address for weight in weights for address in addresses(weight, self.kind)}

    def see_gradients(self) -> None:
        for model in self.models:
            see_gradients(self.log, model, self.kind)

    def see_all(self) -> None:
        """Log all weights, gradients and optimizer states that are live now."""
        paths: dict[int, str] = {}
        for model in self.models:
            see_model(self.log, model, self.kind)
            paths.update(paths_of(model))
        self.see_gradients()
        for optimizer in self.optimizers:
            see_optimizer(self.log, optimizer, self.kind, paths)

    def close(self) -> None:
        """Remove the hooks and drop all references, so that the next measurement starts with free memory."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._at_rest.clear()
        self.models.clear()
        self.optimizers.clear()

    def _hook(self, module: nn.Module, path: str) -> None:
        def enters(*_: Any) -> None:
            if torch.compiler.is_compiling():
                return
            self.log.enter(path)
            # An offload brings weights to the device for the call alone.
            for address in self._weights_at(module) - self._at_rest.get(module, set()):
                self.log.see(address, Category.PARAMETER, path, self.log.counts())

        def leaves(_module: nn.Module, _arguments: Any, output: Any) -> None:
            if torch.compiler.is_compiling():
                return
            # Torch calls such a hook without an output while the module's error propagates.
            error = sys.exc_info()[1] if output is None else None
            if error is not None:
                self.failed(error)
            self.log.leave()

        if path:
            self._handles.append(module.register_forward_pre_hook(enters))
            self._handles.append(module.register_forward_hook(leaves, always_call=True))

    def _forward_begins(self, _module: nn.Module, arguments: Any, keywords: Any) -> None:
        if torch.compiler.is_compiling():
            return
        see_values(self.log, (arguments, keywords), Category.INPUT, self.kind)
        if self.log.phase != Phase.BACKWARD:
            self.log.begin("forward", Phase.FORWARD)

    def _forward_ends(self, _module: nn.Module, _arguments: Any, output: Any) -> None:
        if torch.compiler.is_compiling() or self.log.phase != Phase.FORWARD:
            return
        see_values(self.log, output, Category.OUTPUT, self.kind)
        self.log.end("forward")
        for tensor in tensors_in(output):
            if tensor.requires_grad:
                tensor.register_hook(self._backward_begins)  # type: ignore[no-untyped-call]

    def _backward_begins(self, _gradient: Tensor) -> None:
        """In autograd's own thread, with the first gradient that reaches the model."""
        if self.log.phase != Phase.BACKWARD:
            self.log.begin("backward", Phase.BACKWARD)

            def end() -> None:
                self.see_gradients()
                self.log.end("backward")

            Variable._execution_engine.queue_callback(end)

    def _step_begins(self) -> None:
        self.see_gradients()
        if self.follow_phases:
            self.log.begin("optimizer step", Phase.STEP)

    def _step_ends(self) -> None:
        if self.follow_phases:
            self.log.end("optimizer step")
        self.see_all()
