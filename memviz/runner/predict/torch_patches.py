"""Patches of torch while a predicted device is in use: modules, optimizers, storages, torch.compile and phases.

At the end of a phase, cycles of objects are collected: Python would have done so by then, at a time that no
prediction can follow, and most of what a step leaves behind is young.
"""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from memviz.runner.predict.allocation_recorder import AllocationRecorder
from memviz.runner.predict.assumptions import Assumptions
from memviz.runner.predict.program_position import NO_TASK, ProgramPosition
from memviz.trace.model import Stage

_NOT_COMPILED = (
    "torch.compile is not predicted: what it would compile ran as it stands, operator by operator. Compiled code keeps "
    "less between its operators, so this peak is that of the model without it."
)
_NO_GRAPHS = (
    'Code compiled with mode="reduce-overhead" or "max-autotune" runs in CUDA graphs, whose memory stays in a pool of '
    "its own between runs: that is not predicted, and may take more than the model without it."
)
_WITH_GRAPHS = ("reduce-overhead", "max-autotune")
_NO_FAST_PATH = (
    "The fused kernels of nn.TransformerEncoder for inference are not predicted: its layers run operator by operator."
)
_COMPILED = "OptimizedModule"
"""The class of what torch.compile makes of a module; to import it takes seconds."""
_FLEX = "torch.nn.attention.flex_attention.flex_attention"
_NOTHING = object()


class Patches:
    """Attributes of torch replaced, and how to put them back."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def replace(self, owner: Any, name: str, value: Any) -> Any:
        """Replace an attribute and return its old value; None if this release of torch lacks it."""
        before = vars(owner).get(name)
        if before is None:
            return None
        self._undo.append(lambda: setattr(owner, name, before))
        setattr(owner, name, value)
        return before

    def give(self, owner: Any, name: str, value: Any) -> None:
        """In front of what the owner inherits."""
        self._undo.append(lambda: delattr(owner, name))
        setattr(owner, name, value)

    def put(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute that this build of torch may lack."""
        before = vars(owner).get(name, _NOTHING)
        if before is _NOTHING:
            self.give(owner, name, value)
        else:
            self._undo.append(lambda: setattr(owner, name, before))
            setattr(owner, name, value)

    def call_back(self, undo: Callable[[], None]) -> None:
        self._undo.append(undo)

    def undo(self) -> None:
        while self._undo:
            self._undo.pop()()


@contextmanager
def followed_by(recorder: AllocationRecorder) -> Iterator[None]:
    """The recorder is told of modules, of optimizers and of storages that are resized by themselves."""
    patches = Patches()
    try:
        _follow_modules(patches, recorder)
        _follow_optimizers(patches, recorder)
        _follow_resizing(patches, recorder)
        patches.replace(torch.backends.mha, "get_fastpath_enabled", lambda: _no_fast_path(recorder.assumptions))
        yield
    finally:
        patches.undo()


def _no_fast_path(assumptions: Assumptions) -> bool:
    if not torch.is_grad_enabled():
        assumptions.say(_NO_FAST_PATH)
    return False


def _follow_modules(patches: Patches, recorder: AllocationRecorder) -> None:
    position = recorder.position
    before = nn.Module.__call__

    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        recorder.module_called(self)
        if type(self).__name__ == _COMPILED or self._compiled_call_impl is not None:
            recorder.assumptions.say(_NOT_COMPILED)
        recorder.assumptions.module_called(self)
        with position.inside(self):
            out = before(self, *args, **kwargs)
        if not position.modules:
            recorder.model_returned(out)
        return out

    patches.replace(nn.Module, "__call__", call)


def _follow_optimizers(patches: Patches, recorder: AllocationRecorder) -> None:
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    position = recorder.position

    def begins(optimizer: Any, args: Any, kwargs: Any) -> None:
        position.here.steps += 1

    def ends(optimizer: Any, args: Any, kwargs: Any) -> None:
        position.here.steps -= 1
        recorder.optimizer_stepped(optimizer)

    patches.call_back(register_optimizer_step_pre_hook(begins).remove)
    patches.call_back(register_optimizer_step_post_hook(ends).remove)
    names = ("_get_foreach_kernels_supported_devices", "_get_fused_kernels_supported_devices")
    for path in ("torch.optim.optimizer", "torch.utils._foreach_utils", "torch.optim.swa_utils"):
        module = importlib.import_module(path)
        for name in names:
            supported = vars(module).get(name)
            if supported is not None:
                patches.replace(module, name, _with_our_device(supported))


def _with_our_device(supported: Callable[[], list[str]]) -> Callable[[], list[str]]:
    return lambda: [*supported(), "meta"]


def _follow_resizing(patches: Patches, recorder: AllocationRecorder) -> None:
    """Follow the resizing of a storage itself, by which programs keep a tensor and free its memory."""
    resize: Any = torch.UntypedStorage.resize_

    def resized(self: torch.UntypedStorage, size: int) -> Any:
        result = resize(self, size)
        if self.device.type == "meta":
            recorder.resized(self, "resize_")
        return result

    patches.give(torch.UntypedStorage, "resize_", resized)


@contextmanager
def nothing_compiled(assumptions: Assumptions) -> Iterator[None]:
    """Run what torch.compile would compile uncompiled, and say so in the run."""

    def compile(model: Any = None, **kwargs: Any) -> Any:
        if model is None:
            return lambda function: compile(function, **kwargs)
        if f"{getattr(model, '__module__', '')}.{getattr(model, '__qualname__', '')}".startswith(_FLEX):
            # Predicted as its compiled kernels take memory; uncompiled it compiles a function of its own.
            return model
        graphs = (_NO_GRAPHS,) if kwargs.get("mode") in _WITH_GRAPHS else ()
        return assumptions.when_called(model, _NOT_COMPILED, *graphs)

    def compile_in_place(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        compile(self, **kwargs)

    patches = Patches()
    try:
        patches.replace(torch, "compile", compile)
        patches.replace(nn.Module, "compile", compile_in_place)
        # There are no graphs between whose replays memory could be handed on.
        patches.replace(torch.compiler, "cudagraph_mark_step_begin", lambda: None)
        with ExitStack() as stack:
            if "torch._dynamo" in sys.modules:
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            yield
    finally:
        patches.undo()


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
        _follow_forward(patches, phases, position)
        _follow_backward(patches, phases)
        _follow_steps(patches, phases)
        yield
    finally:
        patches.undo()


def _follow_forward(patches: Patches, phases: ProgramPhases, position: ProgramPosition) -> None:
    """Record the forward phase of outermost modules with weights; a loss has none."""
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


def _follow_backward(patches: Patches, phases: ProgramPhases) -> None:
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


def _follow_steps(patches: Patches, phases: ProgramPhases) -> None:
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    def begins(*_: Any) -> None:
        phases.begin(_STEP)

    def ends(*_: Any) -> None:
        if phases.is_in(_STEP):
            phases.end()

    patches.call_back(register_optimizer_step_pre_hook(begins).remove)
    patches.call_back(register_optimizer_step_post_hook(ends).remove)
