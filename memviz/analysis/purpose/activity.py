"""Activity of a program when a stack was taken: building a model, a forward, a backward, an optimizer step.

Only frames that can mean one thing count (`_SIGNS`). A function that merely is called `forward` or `__init__`
says little; what counts is who called it: `_call_impl` of torch's modules, `wrapper` of torch's optimizers.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from memviz.analysis.cache import cached
from memviz.analysis.callstacks.frames import (
    LAST_PYTHON_KIND,
    FrameKind,
    first_in_stack,
    frame_kinds,
    last_in_stack,
    only_places,
    path_of,
)
from memviz.trace.distinct import distinct, is_among
from memviz.trace.model import Bools, Bytes1, Ints4, Ints8, Trace


class Activity(IntEnum):
    NOTHING = 0
    """Nothing in the stack says it."""
    FORWARD = 1
    BACKWARD = 2
    STEP = 3
    BUILD = 4
    """A module made, moved or loaded."""
    BUILD_OPTIMIZER = 5


@dataclass(frozen=True)
class Sign:
    doing: Activity
    path: str
    """A part of the path."""
    functions: frozenset[str] = frozenset()
    """Any function where empty."""


_MODULE_MOVES = frozenset(
    {
        *("to", "_apply", "convert", "cuda", "half", "bfloat16", "float", "double", "to_empty"),
        *("load_state_dict", "_load_from_state_dict"),
    }
)
_CALL_FILE, _CALLS = "/torch/nn/modules/module.py", frozenset({"_call_impl", "_wrapped_call_impl"})
_SIGNS = (
    Sign(Activity.BUILD, "/torch/nn/modules/module.py", _MODULE_MOVES),
    Sign(Activity.BUILD, "/torch/nn/modules/", frozenset({"__init__", "reset_parameters"})),
    Sign(Activity.BUILD, "/torch/nn/init.py"),
    Sign(Activity.BACKWARD, "/torch/autograd/__init__.py"),
    Sign(Activity.BACKWARD, "/torch/_tensor.py", frozenset({"backward"})),
    Sign(
        Activity.BACKWARD,
        "/torch/utils/checkpoint.py",
        frozenset({"backward", "unpack_hook", "unpack_hook_with_error_cb", "recompute_fn"}),
    ),
    Sign(Activity.STEP, "/torch/optim/optimizer.py", frozenset({"wrapper"})),
    Sign(Activity.STEP, "/torch/optim/", frozenset({"step"})),
    Sign(Activity.BUILD_OPTIMIZER, "/torch/optim/", frozenset({"__init__", "load_state_dict"})),
)
_NATIVE_SIGNS = {FrameKind.NODE: Activity.BACKWARD, FrameKind.ENGINE: Activity.BACKWARD}
_WORKSPACE_NAMES = ("at::cuda::getNewWorkspace", "at::cuda::getCurrentCUDABlas", "at::cuda::getCUDABlasLtWorkspace")
_CAST_NAMES = ("at::autocast::cached_cast",)
_ACCUMULATE = "torch::autograd::AccumulateGrad::"


@dataclass(frozen=True, eq=False)
class StackSigns:
    """Per stack, and one more at the end, so that NO_STACK (-1) finds `NOTHING`."""

    doing: Bytes1
    recomputes: Bools
    """A forward inside a backward: activation checkpointing makes again what it had let go."""
    workspace: Bools
    casts: Bools
    """Autocast copies an operator's argument into another precision."""
    accumulates: Bools
    """Autograd stores or adds up the gradient of a leaf."""
    zero_grad: Bools
    """A call that lets gradients go."""
    sees_cpp: bool
    sees_engine: bool
    """Stacks hold C++ frames, so no allocation of a backward goes unmarked."""
    sees_nodes: bool
    """Blocks that autograd frees have a stack that shows it."""


@cached
def stack_signs(trace: Trace) -> StackSigns:
    stacks, kinds, signs = trace.stacks, frame_kinds(trace), _frame_signs(trace)
    first = first_in_stack(stacks, signs != Activity.NOTHING)
    doing = np.where(first >= 0, _at(signs[stacks.indices], first), Activity.NOTHING).astype(np.uint8)
    called_by = last_in_stack(stacks, signs == Activity.BACKWARD)
    backward = called_by >= 0
    # Compiled code bears the names of what it was compiled from, in its backward too: only torch's own calls count.
    forward = first_in_stack(stacks, module_calls(trace).by_torch)
    recomputes = (forward >= 0) & (forward < called_by)
    doing[backward] = Activity.BACKWARD
    silent = doing == Activity.NOTHING
    doing[silent] = _built_by_user(trace, signs)[silent]
    return StackSigns(
        doing=np.append(doing, np.uint8(Activity.NOTHING)),
        recomputes=np.append(recomputes, False),
        workspace=np.append(first_in_stack(stacks, _named(trace, _WORKSPACE_NAMES)) >= 0, False),
        casts=np.append(first_in_stack(stacks, _named(trace, _CAST_NAMES)) >= 0, False),
        accumulates=np.append(first_in_stack(stacks, _named(trace, (_ACCUMULATE, f"void {_ACCUMULATE}"))) >= 0, False),
        zero_grad=np.append(first_in_stack(stacks, _named_exactly(trace, "zero_grad")) >= 0, False),
        sees_cpp=bool((kinds > LAST_PYTHON_KIND).any()),
        sees_engine=bool((kinds == FrameKind.ENGINE).any()),
        sees_nodes=bool((kinds == FrameKind.NODE).any()),
    )


@dataclass(frozen=True, eq=False)
class ModuleCalls:
    by_torch: Bools
    """Frames by which torch calls a module."""
    bodies: Bools
    """Frames of functions called `forward` outside of torch: programs also call `model.forward(x)` directly."""


@cached
def module_calls(trace: Trace) -> ModuleCalls:
    by_torch = np.zeros(len(trace.stacks.frames), dtype=np.bool_)
    for frame in _frames_of(trace, _CALL_FILE):
        by_torch[frame] = trace.strings[trace.stacks.frames.name[frame]] in _CALLS
    return ModuleCalls(by_torch, _named_exactly(trace, "forward") & (frame_kinds(trace) <= FrameKind.LIBRARY))


def _frames_of(trace: Trace, part: str) -> Ints8:
    files = trace.stacks.frames.filename
    hit = [code for code in distinct(files) if part in path_of(trace.strings[code])]
    return np.flatnonzero(is_among(files, hit))


def _frame_signs(trace: Trace) -> Bytes1:
    frames, strings, kinds = trace.stacks.frames, trace.strings, frame_kinds(trace)
    signs = np.zeros(len(frames), dtype=np.uint8)
    calls = module_calls(trace)
    for kind, doing in _NATIVE_SIGNS.items():
        signs[kinds == kind] = doing
    for filename in distinct(frames.filename):
        path = path_of(strings[filename])
        of_file = [sign for sign in _SIGNS if sign.path in path]
        for frame in np.flatnonzero(frames.filename == filename) if of_file else ():
            name = strings[frames.name[frame]]
            signs[frame] = next((s.doing for s in of_file if not s.functions or name in s.functions), Activity.NOTHING)
    signs[calls.by_torch | calls.bodies] = Activity.FORWARD
    return signs


def _built_by_user(trace: Trace, signs: Bytes1) -> Bytes1:
    """BUILD or BUILD_OPTIMIZER for stacks below an `__init__` in a file of modules, or in one of optimizers.

    A file is of modules if torch calls a `forward` of it as a module's elsewhere in the trace, of optimizers if
    torch calls a `step` of it as an optimizer's. A file that is both says nothing.
    """
    frames = trace.stacks.frames
    modules = _files_called(trace, "forward", module_calls(trace).by_torch)
    optimizers = _files_called(trace, "step", signs == Activity.STEP)
    of_frame = np.zeros(len(frames), dtype=np.uint8)
    init = _named_exactly(trace, "__init__")
    of_frame[init & is_among(frames.filename, np.setdiff1d(modules, optimizers, assume_unique=True))] = Activity.BUILD
    of_frame[init & is_among(frames.filename, np.setdiff1d(optimizers, modules, assume_unique=True))] = (
        Activity.BUILD_OPTIMIZER
    )
    first = first_in_stack(trace.stacks, of_frame != Activity.NOTHING)
    return np.where(first >= 0, _at(of_frame[trace.stacks.indices], first), Activity.NOTHING).astype(np.uint8)


def _files_called(trace: Trace, function: str, caller: Bools) -> Ints4:
    """Files in which a function of this name is called straight by one of these frames, decorators aside."""
    kinds = frame_kinds(trace)
    spoken = (kinds < LAST_PYTHON_KIND) | caller
    python = only_places(trace.stacks, spoken[trace.stacks.indices])
    called, by = python.indices[:-1], python.indices[1:]
    same_stack = np.ones(len(called), dtype=np.bool_)
    ends = python.offsets[1:-1]
    same_stack[ends[(ends > 0) & (ends <= len(called))] - 1] = False
    hit = same_stack & caller[by] & _named_exactly(trace, function)[called] & (kinds[called] != FrameKind.TORCH)
    return distinct(trace.stacks.frames.filename[called[hit]])


def _named(trace: Trace, starts: tuple[str, ...]) -> Bools:
    names = trace.stacks.frames.name
    hit = {int(code) for code in distinct(names) if trace.strings[code].startswith(starts)}
    return is_among(names, list(hit))


def _named_exactly(trace: Trace, function: str) -> Bools:
    names = trace.stacks.frames.name
    return is_among(names, [code for code in distinct(names) if trace.strings[code] == function])


def _at(values: Bytes1, place: Ints8) -> Bytes1:
    """`values[place]`; where the place is -1 any value does, but there must be one."""
    return values[place] if len(values) else np.zeros(len(place), dtype=np.uint8)
