"""Activity of a program by its stacks (building, forward, backward, optimizer step), and how long a call goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import wraps

import numpy as np

from memviz.analysis.cache import cached
from memviz.analysis.callstacks.sites import (
    LAST_PYTHON_KIND,
    FrameKind,
    first_in_stack,
    first_place,
    frame_kinds,
    is_in_stack,
    last_in_stack,
    last_place,
    only_places,
    path_of,
)
from memviz.trace.intern import distinct, is_among
from memviz.trace.model import NO_STACK, Bools, Bytes1, Ints4, Ints8, Stacks, Trace

# Activity of a program when a stack was taken: building a model, a forward, a backward, an optimizer step.
#
# Only unambiguous frames count (`_SIGNS`). The name `forward` or `__init__` alone is weak evidence; what counts is the
# caller: `_call_impl` of torch's modules, `wrapper` of torch's optimizers.


class Activity(IntEnum):
    NOTHING = 0
    """The stack shows no activity."""
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
_CALL_FILE, _CALLS = "/torch/nn/modules/module.py", ("_call_impl", "_wrapped_call_impl")
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
    """A forward inside a backward: gradient checkpointing recomputes activations."""
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
    doing = np.where(first >= 0, _values_at(signs[stacks.indices], first), Activity.NOTHING).astype(np.uint8)
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
        workspace=is_in_stack(stacks, _frames_by_prefix(trace, _WORKSPACE_NAMES)),
        casts=is_in_stack(stacks, _frames_by_prefix(trace, _CAST_NAMES)),
        accumulates=is_in_stack(stacks, _frames_by_prefix(trace, (_ACCUMULATE, f"void {_ACCUMULATE}"))),
        zero_grad=is_in_stack(stacks, _frames_by_name(trace, "zero_grad")),
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
    files = trace.stacks.frames.filename
    hit = [code for code in distinct(files) if _CALL_FILE in path_of(trace.strings[code])]
    by_torch = is_among(files, hit) & _frames_by_name(trace, *_CALLS)
    return ModuleCalls(by_torch, _frames_by_name(trace, "forward") & (frame_kinds(trace) <= FrameKind.LIBRARY))


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

    A file is of modules if torch calls a `forward` in it as a module's anywhere in the trace, of optimizers if torch
    calls a `step` in it as an optimizer's. A file that is both is ignored.
    """
    frames = trace.stacks.frames
    modules = _files_called(trace, "forward", module_calls(trace).by_torch)
    optimizers = _files_called(trace, "step", signs == Activity.STEP)
    of_frame = np.zeros(len(frames), dtype=np.uint8)
    init = _frames_by_name(trace, "__init__")
    of_frame[init & is_among(frames.filename, np.setdiff1d(modules, optimizers, assume_unique=True))] = Activity.BUILD
    of_frame[init & is_among(frames.filename, np.setdiff1d(optimizers, modules, assume_unique=True))] = (
        Activity.BUILD_OPTIMIZER
    )
    first = first_in_stack(trace.stacks, of_frame != Activity.NOTHING)
    return np.where(first >= 0, _values_at(of_frame[trace.stacks.indices], first), Activity.NOTHING).astype(np.uint8)


def _files_called(trace: Trace, function: str, caller: Bools) -> Ints4:
    """Files in which a function of this name is called straight by one of these frames, decorators aside."""
    kinds = frame_kinds(trace)
    spoken = (kinds < LAST_PYTHON_KIND) | caller
    python = only_places(trace.stacks, spoken[trace.stacks.indices])
    called, by = python.indices[:-1], python.indices[1:]
    same_stack = np.ones(len(called), dtype=np.bool_)
    ends = python.offsets[1:-1]
    same_stack[ends[(ends > 0) & (ends <= len(called))] - 1] = False
    hit = same_stack & caller[by] & _frames_by_name(trace, function)[called] & (kinds[called] != FrameKind.TORCH)
    return distinct(trace.stacks.frames.filename[called[hit]])


def _frames_by_prefix(trace: Trace, starts: tuple[str, ...]) -> Bools:
    names = trace.stacks.frames.name
    return is_among(names, [code for code in distinct(names) if trace.strings[code].startswith(starts)])


def _frames_by_name(trace: Trace, *functions: str) -> Bools:
    names = trace.stacks.frames.name
    return is_among(names, [code for code in distinct(names) if trace.strings[code] in functions])


def _values_at(values: Bytes1, place: Ints8) -> Bytes1:
    """`values[place]`, with an arbitrary value where the place is -1; zeros without values."""
    return values[place] if len(values) else np.zeros(len(place), dtype=np.uint8)


# End of the function call that made an allocation, as far as later stacks show it.
#
# A stack shows, from the outermost frame in, which calls are open. Of two stacks one after the other, the calls of
# their common beginning go on, and so does that of the frame behind it if only its line moved down. A line that moved
# up is a loop or a new call of the same function: both count as a new call, so that a call may seem shorter than it
# was and never longer.

_MIX, _BASE = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)
_LARGEST_TABLE = 1 << 22
"""Limit in pairs. Larger tables are sorted instead."""
_NEVER_OPEN = np.iinfo(np.int16).max
"""A depth that no stack has: a call there is over with the next allocation."""


def _once_a_pair(
    compute: Callable[[PythonStacks, Ints4, Ints4], Ints8],
) -> Callable[[PythonStacks, Ints4, Ints4], Ints4]:
    """Compute each distinct pair of stacks once: there are far fewer pairs than events."""

    @wraps(compute)
    def of_pairs(stacks: PythonStacks, one: Ints4, other: Ints4) -> Ints4:
        if not len(one):
            return np.zeros(0, dtype=np.int32)
        width = int(max(one.max(), other.max())) + 1
        pair = one.astype(np.int64) * width + other
        is_table = width * width <= _LARGEST_TABLE
        if is_table:
            occurs = np.zeros(width * width, dtype=np.bool_)
            occurs[pair] = True
            pairs = np.flatnonzero(occurs)
        else:
            pairs, pair = np.unique(pair, return_inverse=True)
        computed = compute(stacks, (pairs // width).astype(np.int32), (pairs % width).astype(np.int32))
        if not is_table:
            return np.asarray(computed.astype(np.int32)[pair])
        table = np.zeros(width * width, dtype=np.int32)
        table[pairs] = computed
        return np.asarray(table[pair])

    return of_pairs


class PythonStacks:
    """The Python frames of each stack, outermost first."""

    def __init__(self, trace: Trace) -> None:
        kinds = frame_kinds(trace)
        stacks = only_places(trace.stacks, (kinds <= LAST_PYTHON_KIND)[trace.stacks.indices])
        self.offsets = stacks.offsets
        self.length = np.diff(stacks.offsets)
        place = np.arange(len(stacks.indices))
        first = np.repeat(stacks.offsets[:-1], self.length)
        mirrored = np.repeat(stacks.offsets[1:], self.length) - 1 - (place - first)
        self.frame = stacks.indices[mirrored]
        self._sums = _running_hash(self.frame, place - first)
        frames = trace.stacks.frames
        self._line = frames.line
        self._filename = frames.filename
        self._function = np.unique(frames.filename.astype(np.int64) << 32 | frames.name, return_inverse=True)[1]
        depth_of = self.length - 1
        every = np.arange(len(self.length))
        stack_keys = np.column_stack([self.prefix(every, self.length).view(np.int64), self.length])
        self._python = np.unique(stack_keys, axis=0, return_inverse=True)[1].ravel().astype(np.int32)
        """Equal numbers for equal Python frames, ignoring C++ frames."""
        self.module_depth, self.model_depth = self._module_depths(stacks, module_calls(trace), depth_of)
        """Depth of the innermost and of the outermost module call, -1 for none. The module's function is one deeper."""
        self.site_depth = self._site_depths(trace, first_in_stack(stacks, kinds == FrameKind.USER), depth_of)
        own_or_library = (kinds == FrameKind.USER) | (kinds == FrameKind.LIBRARY)
        self.code_depth = self._site_depths(trace, first_in_stack(stacks, own_or_library), depth_of)
        """Depth of the innermost function outside torch."""

    def _module_depths(self, stacks: Stacks, calls: ModuleCalls, depth_of: Ints8) -> tuple[Ints8, Ints8]:
        by_torch = calls.by_torch[stacks.indices]
        # Torch calls a module by two functions, one in the other: the inner one counts.
        inner = by_torch & ~np.append(False, by_torch[:-1])
        bodies = calls.bodies[stacks.indices]

        def depth(places: Ints8) -> Ints8:
            return _depth(places, stacks.offsets, depth_of)

        def before(body: Ints8) -> Ints8:
            return np.maximum(body - 1, -1)

        none = last_place(stacks, by_torch) < 0
        innermost = np.where(none, before(depth(first_place(stacks, bodies))), depth(first_place(stacks, inner)))
        # `model.forward(x)` is a call of the model, though torch has no part in it.
        outermost = _least_depth(depth(last_place(stacks, inner)), before(depth(last_place(stacks, bodies))))
        place_depth = np.repeat(depth_of, self.length) - (
            np.arange(len(by_torch)) - np.repeat(stacks.offsets[:-1], self.length)
        )
        outer = np.repeat(outermost, self.length)
        next_call = depth(last_place(stacks, by_torch & (place_depth > outer)))
        # Decorators may be between the call and the model's own function, which is the outermost body.
        own_body = depth(last_place(stacks, bodies))
        own_body = np.where((next_call >= 0) & (own_body > next_call), outermost, own_body)
        deeper = bodies & (place_depth > np.repeat(np.maximum(own_body, outermost), self.length))
        next_call = _least_depth(next_call, depth(last_place(stacks, deeper)))
        self.own_until = np.where(next_call >= 0, next_call, self.length)
        """Depth where the outermost module's own functions end, and another module is called."""
        return innermost, outermost

    def _site_depths(self, trace: Trace, user: Ints8, depth_of: Ints8) -> Ints8:
        """Return the depth of the function that a user would call theirs. The main program is no call that ends."""
        depth = _depth(user, self.offsets, depth_of)
        has_depth = np.flatnonzero(depth >= 0)
        frame = self.frame[self.offsets[has_depth] + depth[has_depth]]
        depth[has_depth[_frames_by_name(trace, "<module>")[frame]]] = _NEVER_OPEN
        depth[depth < 0] = _NEVER_OPEN
        return depth

    def same_beginning(self, one: Ints4, other: Ints4) -> Ints8:
        """How many frames two stacks have in common, from the outermost in."""
        low, high = np.zeros(len(one), dtype=np.int64), np.minimum(self.length[one], self.length[other])
        while (low < high).any():
            middle = (low + high + 1) // 2
            same = self.prefix(one, middle) == self.prefix(other, middle)
            low, high = np.where(same, middle, low), np.where(same, high, middle - 1)
        return low

    def prefix(self, stack: Ints4 | Ints8, depth: Ints8) -> np.ndarray:
        """Hash of the outermost `depth` frames of each stack."""
        first = self.offsets[stack]
        return np.asarray(self._sums[first + depth] - self._sums[first])

    @_once_a_pair
    def calls_that_go_on(self, one: Ints4, other: Ints4) -> Ints8:
        """How many calls, from the outermost in, go on from each of these stacks to the other, which comes later."""
        same = self.same_beginning(one, other)
        inside = np.flatnonzero((same < self.length[one]) & (same < self.length[other]))
        at_one, at_other = (self.frame[self.offsets[stack[inside]] + same[inside]] for stack in (one, other))
        same_function = self._function[at_one] == self._function[at_other]
        same[inside] += same_function & (self._line[at_other] > self._line[at_one])
        return same

    def is_repeated(self, stack: Ints4) -> Bools:
        """True for each stack but the last if the next has the same Python frames and repeats the line.

        One line may allocate several times, also by the same operator. If all are equally frequent, it is a loop.
        """
        python = self._python[stack]
        same = python[1:] == python[:-1]
        run = np.cumsum(np.append(True, ~same), dtype=np.int32) - 1
        inside = np.flatnonzero(np.append(same, False) | np.append(False, same))
        keys = run[inside].astype(np.int64) * (int(stack.max(initial=0)) + 1) + stack[inside]
        _, first, key_of, count = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
        fewest = np.full(int(run[-1]) + 1, len(stack), dtype=np.int32)
        most = np.zeros(len(fewest), dtype=np.int32)
        np.minimum.at(fewest, run[inside], count[key_of])
        np.maximum.at(most, run[inside], count[key_of])
        again = np.zeros(len(stack), dtype=np.bool_)
        again[np.delete(inside, first)] = True
        return np.asarray(same & (again & (fewest == most)[run])[1:])

    @_once_a_pair
    def model_called_again(self, one: Ints4, other: Ints4) -> Ints8:
        """Depth at which a line of the outermost module's own functions moved up: a loop or a new call. -1 for none."""
        same = self.same_beginning(one, other)
        own = (same > self.model_depth[other]) & (same < np.minimum(self.own_until[other], self.length[one]))
        depth = np.minimum(same, np.minimum(self.length[one], self.length[other]) - 1)
        return np.where(own & (self.line_at(other, depth) < self.line_at(one, depth)), depth, -1)

    def line_at(self, stack: Ints4, depth: Ints4 | Ints8) -> Ints4:
        place = self.offsets[stack] + np.minimum(depth, self.length[stack] - 1)
        return np.asarray(self._line[self.frame[place]], dtype=np.int32)

    def model_files(self, stack: Ints4) -> Ints4:
        """The files of the outermost modules' functions, as numbers of strings."""
        depth = np.minimum(self.model_depth[stack] + 1, self.length[stack] - 1)
        return np.asarray(self._filename[self.frame[self.offsets[stack] + depth]])

    @property
    def call_depth(self) -> Ints8:
        """Depth of the call that counts as the maker: the innermost module's function, else the user's."""
        depth = np.where(self.module_depth >= 0, self.module_depth + 1, self.site_depth)
        return np.where(depth == _NEVER_OPEN, depth, np.minimum(depth, self.length - 1))


python_stacks = cached(PythonStacks)


def call_over(trace: Trace, allocs: Ints4 | Ints8, stack: Ints4, never: int, depths: Ints8 | None = None) -> Ints4:
    """Per alloc (an event, with its stack): the first later alloc that shows its call to be over, or `never`.

    The call is that of the innermost module; outside of modules that of the user's own function. `depths` selects
    another call per stack of the trace, counted from the outermost.
    """
    stacks = python_stacks(trace)
    depths = stacks.call_depth if depths is None else depths
    over = np.full(len(allocs), never, dtype=np.int32)
    seen = np.flatnonzero(stack != NO_STACK).astype(np.int32)
    if not len(seen):
        return over
    of_seen = stack[seen]
    is_repeated = stacks.is_repeated(of_seen)
    # Small numbers are compared faster, and no stack is that deep.
    go_on = np.minimum(stacks.calls_that_go_on(of_seen[:-1], of_seen[1:]), _NEVER_OPEN).astype(np.int16) - is_repeated
    depth = np.minimum(depths, _NEVER_OPEN).astype(np.int16)[of_seen]
    later = np.append(allocs[seen[1:]], never).astype(np.int32)
    for wanted in distinct(depth).tolist():
        rows = np.flatnonzero(depth == wanted).astype(np.int32)
        ends = np.append(np.flatnonzero(go_on <= wanted), len(seen) - 1).astype(np.int32)
        over[seen[rows]] = later[ends][np.searchsorted(ends, rows)]
    return over


def freed_outside_call(trace: Trace, alloc_stack: Ints4, free_stack: Ints4) -> Bools:
    """True per allocation whose free's stack shows that the call that made it is over.

    A local that is freed as its function returns has the caller's line as stack. False without stacks.
    """
    stacks = python_stacks(trace)
    outside = np.zeros(len(alloc_stack), dtype=np.bool_)
    both = np.flatnonzero((alloc_stack != NO_STACK) & (free_stack != NO_STACK))
    depth = stacks.call_depth[alloc_stack[both]]
    go_on = stacks.calls_that_go_on(alloc_stack[both], free_stack[both])
    returns = (go_on == depth) & (stacks.length[free_stack[both]] == depth)
    outside[both] = (go_on <= depth) & ~returns
    return outside


def _running_hash(frame: Ints4, depth: Ints8) -> np.ndarray:
    """Running sums of frames weighted by depth, modulo 2**64: a difference is the hash of a stretch."""
    salt = (frame.astype(np.uint64) + np.uint64(1)) * _MIX
    salt ^= salt >> np.uint64(29)
    powers = np.cumprod(np.full(int(depth.max(initial=0)) + 1, _BASE, dtype=np.uint64), dtype=np.uint64)
    return np.concatenate([np.zeros(1, np.uint64), np.cumsum(salt * powers[depth], dtype=np.uint64)])


def _least_depth(one: Ints8, other: Ints8) -> Ints8:
    """The outer one of two depths, of which either may be -1 for none."""
    return np.where((one < 0) | (other < 0), np.maximum(one, other), np.minimum(one, other))


def _depth(place: Ints8, offsets: Ints8, innermost: Ints8) -> Ints8:
    """Places count from the innermost frame, depths from the outermost."""
    return np.where(place >= 0, innermost - (place - offsets[:-1]), -1)
