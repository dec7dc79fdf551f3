"""The phases of a program that names none: a model's forward pass, backward, an optimizer's step.

Where one ends, cycles of objects are collected, as Python would have done by then. It does so when it sees fit, which
no prediction can follow; most of what a step leaves behind is young.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from memviz.runner.predict.program_position import NO_TASK, ProgramPosition
from memviz.runner.predict.torch_patches import Patches
from memviz.trace.model import Stage

_STEP = "optimizer step"
_YOUNG = 1
_PHASES_BETWEEN_FULL_COLLECTIONS = 64


class ProgramPhases:
    def __init__(self, mark: Callable[[str, Stage], None], position: ProgramPosition) -> None:
        self._mark = mark
        self._position = position
        self._open = ""
        self._ended = 0

    def is_in(self, name: str) -> bool:
        return self._open == name

    def begin(self, name: str) -> bool:
        """False within another, and where whoever runs the program names its phases."""
        if self._open or self._position.phases or self._position.task != NO_TASK:
            return False
        self._open = name
        self._mark(name, Stage.START)
        return True

    def end(self) -> None:
        if not self._open:
            return
        self._ended += 1
        gc.collect() if self._ended % _PHASES_BETWEEN_FULL_COLLECTIONS == 0 else gc.collect(_YOUNG)
        self._mark(self._open, Stage.END)
        self._open = ""


@contextmanager
def phases_named(phases: ProgramPhases, position: ProgramPosition) -> Iterator[None]:
    patches = Patches()
    try:
        _forward(patches, phases, position)
        _backward(patches, phases)
        _step(patches, phases)
        yield
    finally:
        patches.undo()


def _forward(patches: Patches, phases: ProgramPhases, position: ProgramPosition) -> None:
    """Of outermost modules that have weights; a loss is none."""
    before = nn.Module.__call__

    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if position.modules or next(self.parameters(), None) is None or not phases.begin("forward"):
            return before(self, *args, **kwargs)
        position.here.steps = 0
        try:
            return before(self, *args, **kwargs)
        finally:
            phases.end()

    patches.replace(nn.Module, "__call__", call)


def _backward(patches: Patches, phases: ProgramPhases) -> None:
    for name in ("backward", "grad"):
        patches.replace(torch.autograd, name, _in_backward(getattr(torch.autograd, name), phases))


def _in_backward(run: Callable[..., Any], phases: ProgramPhases) -> Callable[..., Any]:
    def run_in_phase(*args: Any, **kwargs: Any) -> Any:
        if not phases.begin("backward"):
            return run(*args, **kwargs)
        try:
            return run(*args, **kwargs)
        finally:
            phases.end()

    return run_in_phase


def _step(patches: Patches, phases: ProgramPhases) -> None:
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    def begins(*_: Any) -> None:
        phases.begin(_STEP)

    def ends(*_: Any) -> None:
        if phases.is_in(_STEP):
            phases.end()

    patches.call_back(register_optimizer_step_pre_hook(begins).remove)
    patches.call_back(register_optimizer_step_post_hook(ends).remove)
