"""Hooks on a model and its optimizer that write a log: phases, modules, and what each tensor is.

A hook that returns nothing changes no value. While torch compiles a model they keep out of its way, so a compiled
region shows as one piece.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Variable
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from memviz.runner.record.log import Log
from memviz.runner.record.tensor_labels import (
    paths_of,
    see_all,
    see_gradients,
    see_model,
    see_optimizer,
    tensors_in,
)
from memviz.trace.model import Category, Phase


class Watch:
    """`follow_phases` where nobody else says when a forward, a backward and a step begin; `failed` hears of an error
    in a module before any other part of the program does."""

    def __init__(
        self, log: Log, kind: str, *, follow_phases: bool, failed: Callable[[BaseException], None] | None = None
    ) -> None:
        self.log = log
        self.kind = kind
        self.follow_phases = follow_phases
        self.failed = failed
        self.models: list[nn.Module] = []
        self.optimizers: list[Optimizer] = []
        self._hooked: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._handles: list[RemovableHandle] = []

    def model(self, model: nn.Module) -> None:
        self.models.append(model)
        see_model(self.log, model, self.kind)
        self.refresh()
        if self.follow_phases:
            self._keep(model.register_forward_pre_hook(self._forward_begins, with_kwargs=True, prepend=True))
            self._keep(model.register_forward_hook(self._forward_ends, always_call=True))

    def optimizer(self, optimizer: Optimizer) -> None:
        self.optimizers.append(optimizer)
        self._keep(optimizer.register_step_pre_hook(lambda *_: self._step_begins()))
        self._keep(optimizer.register_step_post_hook(lambda *_: self._step_ends()))

    def every_optimizer(self) -> None:
        """Of this process, as soon as it takes its first step."""

        def before(optimizer: Optimizer, *_: Any) -> None:
            if all(optimizer is not each for each in self.optimizers):
                self.optimizers.append(optimizer)
            self._step_begins()

        self._keep(register_optimizer_step_pre_hook(before))
        self._keep(register_optimizer_step_post_hook(lambda *_: self._step_ends()))

    def refresh(self) -> None:
        """Also for modules that took another's place in the meantime."""
        for model in self.models:
            for path, module in model.named_modules():
                if module not in self._hooked:
                    self._hooked.add(module)
                    self._hook(module, path)

    def see_gradients(self) -> None:
        for model in self.models:
            see_gradients(self.log, model, self.kind)

    def see_all(self) -> None:
        """What is there now."""
        paths: dict[int, str] = {}
        for model in self.models:
            see_model(self.log, model, self.kind)
            paths.update(paths_of(model))
        self.see_gradients()
        for optimizer in self.optimizers:
            see_optimizer(self.log, optimizer, self.kind, paths)

    def close(self) -> None:
        """Takes its hooks away and lets go of all it watched: whoever measures next must find the memory free."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._hooked.clear()
        self.models.clear()
        self.optimizers.clear()

    def _keep(self, handle: RemovableHandle) -> None:
        self._handles.append(handle)

    def _hook(self, module: nn.Module, path: str) -> None:
        def enters(*_: Any) -> None:
            if not torch.compiler.is_compiling():
                self.log.enter(path)

        def leaves(_module: nn.Module, _arguments: Any, output: Any) -> None:
            if torch.compiler.is_compiling():
                return
            if output is None:
                self._hear_of_errors()
            self.log.leave()

        if path:
            self._keep(module.register_forward_pre_hook(enters))
            self._keep(module.register_forward_hook(leaves, always_call=True))

    def _hear_of_errors(self) -> None:
        """Torch calls such a hook without an output while the module's error is on its way."""
        error = sys.exc_info()[1]
        if error is not None and self.failed is not None:
            self.failed(error)

    def _forward_begins(self, _module: nn.Module, arguments: Any, named: Any) -> None:
        if torch.compiler.is_compiling():
            return
        see_all(self.log, (arguments, named), Category.INPUT, self.kind)
        if self.log.phase != Phase.BACKWARD:
            self.log.begin("forward", Phase.FORWARD)

    def _forward_ends(self, _module: nn.Module, _arguments: Any, output: Any) -> None:
        if torch.compiler.is_compiling() or self.log.phase != Phase.FORWARD:
            return
        see_all(self.log, output, Category.OUTPUT, self.kind)
        self.log.end("forward")
        on_backward(output, self._backward_begins)

    def _backward_begins(self) -> None:
        """In autograd's own thread, with the first gradient that reaches the model."""
        if self.log.phase != Phase.BACKWARD:
            self.log.begin("backward", Phase.BACKWARD)
            Variable._execution_engine.queue_callback(self._backward_ends)

    def _backward_ends(self) -> None:
        self.see_gradients()
        self.log.end("backward")

    def _step_begins(self) -> None:
        self.see_gradients()
        if self.follow_phases:
            self.log.begin("optimizer step", Phase.STEP)

    def _step_ends(self) -> None:
        if self.follow_phases:
            self.log.end("optimizer step")
        self.see_all()


def on_backward(output: Any, call: Callable[[], None]) -> None:
    """Calls as soon as a gradient reaches any of the tensors in there."""

    def hook(_gradient: Tensor) -> None:
        call()

    for tensor in tensors_in(output):
        if tensor.requires_grad:
            tensor.register_hook(hook)  # type: ignore[no-untyped-call]
