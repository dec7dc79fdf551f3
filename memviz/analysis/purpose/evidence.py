"""Evidence of each allocation's purpose: the activity that made it, and the activity at its free.

"Outlives" and "freed before" compare the end of an allocation with an event at which another activity is seen. NEVER
means not seen in the trace: nothing outlives it, and every allocation with a free was freed before it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from memviz.analysis.annotations import Intervals, annotated, optimizer_steps
from memviz.analysis.cache import cached
from memviz.analysis.callstacks.sites import LAST_PYTHON_KIND, first_in_stack, frame_kinds, path_of
from memviz.analysis.lifetimes import BEFORE, Lifetimes, lifetimes
from memviz.analysis.purpose.activity import Activity, call_over, freed_outside_call, stack_signs
from memviz.analysis.purpose.phases import Passes, activity_of_allocs, activity_of_rows, forward_passes
from memviz.analysis.sums import sum_by
from memviz.trace.intern import distinct, is_among
from memviz.trace.model import DEFAULT_POOL, NO_STACK, Action, Bools, Bytes1, Category, DeviceTrace, Ints4, Ints8, Trace
from memviz.trace.reserved import CUBLAS_WORKSPACE_BYTES, HOPPER_WORKSPACE_BYTES

# Names of functions and files, where people agree on names. A name alone proves nothing, so a purpose inferred from
# one is only probable. The innermost telling name counts: a cache that is set up while weights are loaded is a cache.


@dataclass(frozen=True)
class Name:
    category: Category
    functions: re.Pattern[str] | None = None
    """Searched in the function's name."""
    files: re.Pattern[str] | None = None
    """Searched in the path."""


def _regex(text: str) -> re.Pattern[str]:
    return re.compile(text, re.IGNORECASE)


NAMES = (
    Name(Category.KV_CACHE, _regex(r"kv_?cache|key_value_cache|init_cache|cache_one_gpu|update_cache|append_kv")),
    Name(
        Category.KV_CACHE,
        _regex(r"update|append|get_seq|__init__|lazy_init|crop|reorder"),
        _regex(r"/(cache_utils|kv_?cache)"),
    ),
    Name(Category.GRAPH_POOL, None, _regex(r"/torch/cuda/graphs\.py$|/cudagraph_trees\.py$")),
    Name(
        Category.COLLECTIVE,
        _regex(
            r"all_gather|reduce_scatter|all_reduce|all_to_all|^broadcast|_unshard$|^unshard$|^wait_for_unshard|foreach_reduce"
        ),
        _regex(r"/torch/distributed/|/deepspeed/|/megatron/|/fairscale/|/apex/"),
    ),
    Name(Category.GRADIENT, _regex(r"^__init__$|allocate"), _regex(r"/param_and_grad_buffer\.py$")),
    Name(
        Category.OPTIMIZER_STATE,
        _regex(r"__init__|init_|build|setup|create|get_|load"),
        _regex(r"/optim/|/optimizers?/|/optimizers?\.py$|_optimizer\.py$|/adamw?\.py$|/bitsandbytes/optim"),
    ),
    Name(Category.OPTIMIZER_STATE, _regex(r"init_(optimizer_)?states?$|exp_avg|initialize_optimizer_states")),
    Name(
        Category.INPUT,
        _regex(
            r"collate|get_batch|next_batch|prepare_input|_prepare_batch|batch_to|send_to_device|to_device|"
            r"recursive_to|move_to|pin_memory|load_batch|make_batch|random_batch"
        ),
    ),
    Name(
        Category.INPUT,
        _regex(r"^apply$|^to$|^cuda$|recursive_apply|__next__|__iter__|__getitem__"),
        _regex(r"/data/|/dataloader|/dataset|/batch"),
    ),
    Name(
        Category.PARAMETER,
        _regex(
            r"load_(model|weight|weights|state|state_dict|file|checkpoint|pretrained|tensors?)|from_pretrained|"
            r"create_(weights|module|params)|init_(weight|weights|all_weights|params)|set_module_tensor_to_device|"
            r"materiali[sz]e|reset_parameters|get_model$|build_model|model_provider|dispatch_model|quantize_weights?"
        ),
    ),
    Name(Category.PARAMETER, _regex("get_tensor|load"), _regex(r"/safetensors/")),
)
_COLLECTIVES = ("c10d::", "void c10d::")
"""C++ by which torch lets processes exchange tensors."""


@cached
def categories_by_name(trace: Trace) -> Bytes1:
    """A Category per stack, and one more at the end for NO_STACK; UNKNOWN where no name matches."""
    frames, strings, stacks = trace.stacks.frames, trace.strings, trace.stacks
    python = np.flatnonzero(frame_kinds(trace) <= LAST_PYTHON_KIND)
    of_frame = np.full(len(frames), Category.UNKNOWN, dtype=np.uint8)
    pairs, pair_of = np.unique(
        frames.filename[python].astype(np.int64) << 32 | frames.name[python], return_inverse=True
    )
    of_pair = [_meaning(strings[pair & 0xFFFFFFFF], path_of(strings[pair >> 32])) for pair in pairs.tolist()]
    of_frame[python] = np.array(of_pair, dtype=np.uint8)[pair_of]
    collective = [int(code) for code in distinct(frames.name) if strings[code].startswith(_COLLECTIVES)]
    of_frame[is_among(frames.name, collective)] = Category.COLLECTIVE
    place = first_in_stack(stacks, of_frame != Category.UNKNOWN)
    return np.append(
        np.where(place >= 0, np.append(of_frame[stacks.indices], 0)[place], Category.UNKNOWN), Category.UNKNOWN
    ).astype(np.uint8)


def _meaning(function: str, path: str) -> Category:
    for name in NAMES:
        fits = name.functions is None or name.functions.search(function)
        if fits and (name.files is None or name.files.search(path)):
            return name.category
    return Category.UNKNOWN


# Optimizers written by hand make new tensors each step and drop the old ones. `p.data = p.data - update` frees the old
# parameter at one place, and `m = beta * m + ...` the old state at another. Frees have stacks of their own where
# `context="all"` was recorded. So a block freed at the place where the first parameters were freed is a parameter too,
# and so are all others made at the same place.


def freed_like(device: DeviceTrace, category: Bytes1, first: Ints8, rows: Ints8) -> Bytes1:
    """Category for each of `rows`: that of the `first` ones freed where blocks of the row's stack are freed.

    UNKNOWN if there is none, or if they disagree.
    """
    stack, freed_at = lifetimes(device).stack, stack_of_frees(device)
    of_free = agreed(freed_at[first], category[first], freed_at[rows])
    return agreed(stack[rows], of_free, stack[rows])


def agreed(keys: Ints4, category: Bytes1, wanted: Ints4) -> Bytes1:
    """The only category of each wanted key; UNKNOWN if it has none or several."""
    seen = (keys >= 0) & (category != Category.UNKNOWN)
    size = int(max(keys.max(initial=0), wanted.max(initial=0))) + 1
    lowest = np.full(size, len(Category), dtype=np.uint8)
    highest = np.full(size, Category.UNKNOWN, dtype=np.uint8)
    np.minimum.at(lowest, keys[seen], category[seen])
    np.maximum.at(highest, keys[seen], category[seen])
    one = (lowest[wanted] == highest[wanted]) & (wanted >= 0)
    return np.where(one, highest[wanted], Category.UNKNOWN).astype(np.uint8)


def stack_of_frees(device: DeviceTrace) -> Ints4:
    """The stack of each row's free. With `context="alloc"` a free only repeats its alloc's, and counts for nothing."""
    rows, count = lifetimes(device), len(device.events)
    has_request = (rows.free_requested >= 0) & (rows.free_requested < count)
    stacks_of_frees = np.full(len(rows), NO_STACK, dtype=np.int32)
    stacks_of_frees[has_request] = device.events.stack[rows.free_requested[has_request]]
    has_stacks = (stacks_of_frees != NO_STACK) & (rows.stack != NO_STACK)
    if (stacks_of_frees[has_stacks] == rows.stack[has_stacks]).all():
        stacks_of_frees[:] = NO_STACK
    return stacks_of_frees


# KV cache: a forward replaces it by a larger one at the same place, again and again. A block that merely outlives its
# forward may be in a list of outputs or an activation that no backward uses, so that is no evidence.

_FEWEST_PASSES = 3
_MOSTLY = 0.75
"""Share of the changes from pass to pass that are growth. The rest are new sequences."""


def cache_stacks(rows: Lifetimes, passes: Passes, pass_of: Ints4, outlives: Bools) -> Bools:
    """Rows that outlive their pass and are freed by a later pass, whose stack allocates larger ones."""
    is_cache = np.zeros(len(rows), dtype=np.bool_)
    left = np.flatnonzero(outlives & (pass_of >= 0))
    if len(left):
        is_replaced = passes.around(np.minimum(rows.end[left], passes.last[-1] + 1)) > pass_of[left]
        grows = _growing_stacks(rows, left, pass_of[left].astype(np.int64))
        # The last ones are still there at the end.
        is_cache[left] = (is_replaced | (rows.end[left] >= passes.last[-1])) & np.isin(rows.stack[left], grows)
    return is_cache


def _growing_stacks(rows: Lifetimes, left: Ints8, pass_of: Ints8) -> Ints8:
    """Stacks that leave more in nearly every pass than in the pass before."""
    width = int(rows.stack.max(initial=0)) + 2
    passes = int(pass_of.max()) + 1
    keys, key_of = np.unique((rows.stack[left].astype(np.int64) + 1) * passes + pass_of, return_inverse=True)
    size = sum_by(key_of, rows.size[left], len(keys))
    stack = keys // passes
    same = stack[1:] == stack[:-1]
    changes = np.bincount(stack[1:][same], minlength=width)
    growth = np.bincount(stack[1:][same & (size[1:] > size[:-1])], minlength=width)
    return np.flatnonzero((changes >= _FEWEST_PASSES - 1) & (growth >= _MOSTLY * changes)) - 1


_MOST_OUTPUTS = 4
"""Outputs per forward. More blocks that stay behind are something else."""
_MOST_HANDLES = 2
_WORK = (Activity.FORWARD, Activity.BACKWARD, Activity.STEP)


class Evidence:
    """Columns per row of `lifetimes`, computed when a rule first uses them; events take four bytes."""

    def __init__(self, trace: Trace, device: DeviceTrace) -> None:
        self._trace = trace
        self._device = device
        self._rows = lifetimes(device)
        self._count = len(device.events)
        self._never = self._count + 1
        self._signs = stack_signs(trace)
        self._allocs = np.flatnonzero(device.events.action == Action.ALLOC).astype(np.int32)
        self._alloc_doing = activity_of_allocs(trace, device)[self._allocs]
        self._alloc_seen = device.events.stack[self._allocs] != NO_STACK
        self.size, self.address, self.stack = self._rows.size, self._rows.address, self._rows.stack
        self.start, self.end = self._rows.start, self._rows.end

    @cached_property
    def _doing(self) -> Bytes1:
        return activity_of_rows(self._trace, self._device)

    def during(self, doing: Activity) -> Bools:
        return np.asarray(self._doing == doing)

    @property
    def in_forward(self) -> Bools:
        """A forward of the trace made it."""
        return self.during(Activity.FORWARD) & self.begun

    @property
    def in_backward(self) -> Bools:
        return self.during(Activity.BACKWARD)

    @property
    def outside(self) -> Bools:
        """Neither a model nor an optimizer made it."""
        return self.during(Activity.NOTHING)

    @cached_property
    def begun(self) -> Bools:
        """Its alloc is in the trace."""
        return self._rows.start > BEFORE

    @cached_property
    def never_freed(self) -> Bools:
        return np.asarray(self._rows.end == self._count)

    @cached_property
    def no_stack(self) -> Bools:
        return np.asarray(self._rows.stack == NO_STACK)

    @cached_property
    def workspace(self) -> Bools:
        return self._signs.workspace[self._rows.stack]

    @cached_property
    def hopper_workspace(self) -> Bools:
        """Blocks of Hopper's cuBLAS workspace size, for stacks without C++ frames.

        Each cuBLAS handle has one, and the main thread and autograd's have one handle each. Weights of this size come
        in larger numbers, or their gradients are as large.
        """
        of_size = self.size == HOPPER_WORKSPACE_BYTES
        is_alone = np.count_nonzero(of_size) <= _MOST_HANDLES and not (self.size == CUBLAS_WORKSPACE_BYTES).any()
        is_silent = self.no_stack | (not self._signs.sees_cpp)
        return np.asarray(of_size & is_alone & self.never_freed & is_silent)

    @cached_property
    def accumulated(self) -> Bools:
        return self._signs.accumulates[self._rows.stack]

    @cached_property
    def recomputed(self) -> Bools:
        return self._signs.recomputes[self._rows.stack]

    def comes(self, event: Ints4) -> Bools:
        return event < self._never

    def outlives(self, event: Ints4) -> Bools:
        return (self._rows.end >= event) & self.comes(event)

    def freed_before(self, event: Ints4) -> Bools:
        return (self._rows.end < event) & ~self.never_freed

    @cached_property
    def next_work(self) -> Ints4:
        return self._next_alloc_of_stack(self._allocs[is_among(self._alloc_doing, _WORK)])

    @cached_property
    def next_backward(self) -> Ints4:
        return self._next_alloc_of_stack(self._allocs[self._alloc_doing == Activity.BACKWARD])

    @cached_property
    def pass_of(self) -> Ints4:
        """The forward pass that made it, or -1."""
        return forward_passes(self._trace, self._device).around(self._rows.start).astype(np.int32)

    @cached_property
    def outlives_pass(self) -> Bools:
        """Live beyond the pass that made it, and not freed as that pass returns.

        The last alloc of a pass is before its end: a tensor freed as the model's functions return was not saved.
        """
        passes = forward_passes(self._trace, self._device)
        last = np.append(passes.last, self._never)[self.pass_of]
        following = np.append(passes.next, self._never)[self.pass_of]
        at_return = (self.free_doing == Activity.FORWARD) & (self._rows.free_requested < following)
        return np.asarray((self._rows.end > last) & ~at_return)

    @cached_property
    def outlives_backward(self) -> Bools:
        """The few rows of a pass that are live after its backward and not freed by it."""
        by_others = self.free_doing != Activity.BACKWARD
        over = self._rows.end >= self.next_backward_over
        if self._signs.sees_nodes and self.sees_frees:
            over |= ~self.never_freed
        left = (self.backwards >= 1) & (self.pass_of >= 0) & by_others & over & ~self.autocast_weight_copy
        rows = np.flatnonzero(left)
        count = np.bincount(self.pass_of[rows]) if len(rows) else np.zeros(1, dtype=np.int64)
        left[rows] = count[self.pass_of[rows]] <= _MOST_OUTPUTS
        return np.asarray(left)

    @cached_property
    def is_last_of_pass(self) -> Bools:
        """The last that a pass made and that outlives it."""
        left = np.flatnonzero(self.outlives_pass & (self.pass_of >= 0))
        is_last = np.zeros(len(self.size), dtype=np.bool_)
        if len(left):
            # Rows are in order of their start.
            is_last[left[np.append(self.pass_of[left[1:]] != self.pass_of[left[:-1]], True)]] = True
        return is_last

    @cached_property
    def _call_over(self) -> Ints4:
        """The first alloc that shows the call to be over that made it."""
        over = np.full(len(self.start), self._never, dtype=np.int32)
        # Each alloc begins a row, and rows are in the order of their allocs.
        stack = self._device.events.stack[self._allocs]
        over[self.begun] = call_over(self._trace, self._allocs, stack, self._never)
        return over

    @cached_property
    def freed_within_call(self) -> Bools:
        """Freed within the call that made it, as far as stacks show."""
        # The last allocation of a model, freed without a stack, may have been its output.
        last = np.append(forward_passes(self._trace, self._device).last, -1).astype(np.int32)[self.pass_of]
        unclear = (self.start == last) & (self.free_stack == NO_STACK)
        candidates = np.flatnonzero(self.begun & self.freed_before(self._call_over) & ~unclear)
        is_inside = np.zeros(len(self.size), dtype=np.bool_)
        outside = freed_outside_call(self._trace, self.stack[candidates], self.free_stack[candidates])
        is_inside[candidates[~outside]] = True
        return is_inside

    @cached_property
    def autocast_weight_copy(self) -> Bools:
        """Cast by autocast, saved beyond its call, and half as large as a tensor that was live before its forward.

        Autocast casts activations by the same function, but their sources are made within the forward. If a forward
        saves more casts of a size than there were tensors of twice that size, some of them are activations.
        """
        is_copy = self._signs.casts[self.stack] & self.begun & (self.pass_of >= 0) & ~self.freed_within_call
        rows, first = np.flatnonzero(is_copy), forward_passes(self._trace, self._device).first
        pairs, pair_of = np.unique(np.stack([self.size[rows], self.pass_of[rows]]), axis=1, return_inverse=True)
        count = np.bincount(pair_of.ravel(), minlength=pairs.shape[1])
        weight_count = np.zeros(pairs.shape[1], dtype=np.int64)
        for pair, (size, number) in enumerate(pairs.T.tolist()):
            weights = self.size == 2 * size
            weight_count[pair] = np.count_nonzero(self.start[weights] < first[number]) - np.count_nonzero(
                self.end[weights] <= first[number]
            )
        is_copy[rows] = (count <= weight_count)[pair_of.ravel()]
        return is_copy

    @cached_property
    def call_goes_on(self) -> Bools:
        """The stack of its free, or the next alloc after it, shows that the call went on that made it."""
        # The alloc at or after each event, faster than searches in any order.
        first = np.full(self._count + 1, self._never, dtype=np.int32)
        first[self._allocs] = self._allocs
        following = np.minimum.accumulate(first[::-1])[::-1]
        return np.asarray((self.free_stack != NO_STACK) | (following[self.end] < self._call_over))

    @cached_property
    def free_stack(self) -> Ints4:
        return stack_of_frees(self._device)

    @cached_property
    def sees_frees(self) -> bool:
        """Frees were recorded with stacks of their own."""
        return bool((self.free_stack != NO_STACK).any())

    @cached_property
    def free_doing(self) -> Bytes1:
        """Activity when the free was requested: NOTHING where that was recorded without a stack."""
        return self._signs.doing[self.free_stack]

    @cached_property
    def freed_by_zero_grad(self) -> Bools:
        return self._signs.zero_grad[self.free_stack]

    @cached_property
    def freed_outside_backward(self) -> Bools:
        """Blocks freed by user code: a free by the autograd engine has its C++ frames in its stack, or no stack."""
        return np.asarray((self.free_stack != NO_STACK) & (self.free_doing != Activity.BACKWARD))

    @cached_property
    def name(self) -> Bytes1:
        """The Category that a name in its stack speaks of."""
        return categories_by_name(self._trace)[self._rows.stack]

    @cached_property
    def in_private_pool(self) -> Bools:
        is_default = np.array([pool == DEFAULT_POOL for pool in self._trace.pools], dtype=np.bool_)
        return ~is_default[self._rows.pool] if len(is_default) else np.zeros(len(self.size), dtype=np.bool_)

    @cached_property
    def doing_at_free(self) -> Bytes1:
        """Activity by the free's stack; without one, the activity of the last alloc before it."""
        before = np.searchsorted(self._allocs, np.minimum(self._rows.free_requested, self._count)) - 1
        around = np.append(self._alloc_doing, np.uint8(Activity.NOTHING))[before]
        return np.where(self.free_stack == NO_STACK, around, self.free_doing).astype(np.uint8)

    @cached_property
    def retained_between_passes(self) -> Bools:
        passes = forward_passes(self._trace, self._device)
        outlives = (
            self.outlives_pass & ~self.is_last_of_pass & self.during(Activity.FORWARD) & ~self.autocast_weight_copy
        )
        return cache_stacks(self._rows, passes, self.pass_of, outlives & ~self.comes(self.next_backward))

    @cached_property
    def next_alloc(self) -> Ints4:
        return self._next_alloc_of_stack(self._allocs)

    @cached_property
    def next_forward(self) -> Ints4:
        """The next work, if it is a forward and the work before was none."""
        forward = self._alloc_doing == Activity.FORWARD
        next_one = self._next_alloc_of_stack(self._allocs[forward])
        work = np.flatnonzero(is_among(self._alloc_doing, _WORK))
        before = np.searchsorted(self._allocs[work], self.start, side="right") - 1
        goes_on = np.append(forward[work], False)[before]
        return np.where((next_one == self.next_work) & ~goes_on, next_one, np.int32(self._never))

    @cached_property
    def sees_training(self) -> bool:
        return bool(is_among(self._alloc_doing, (Activity.BACKWARD, Activity.STEP)).any())

    @cached_property
    def sees_work(self) -> bool:
        return bool(is_among(self._alloc_doing, _WORK).any())

    @cached_property
    def first_work(self) -> int:
        """The first alloc of a forward, backward or step; `never` where there is none."""
        work = self._allocs[is_among(self._alloc_doing, _WORK)]
        return int(work[0]) if len(work) else self._never

    @cached_property
    def step_over(self) -> Ints4:
        # And the event after each recorded end of an optimizer step.
        ends = self._annotated_steps.end_event[~self._annotated_steps.is_open] + 1
        return self._next_alloc_of_stack(self._allocs[(self._alloc_doing != Activity.STEP) & self._alloc_seen], ends)

    @cached_property
    def backward_over(self) -> Ints4:
        return self._next_alloc_of_stack(self._backward_ends, self._annotated_steps.start_event)

    @cached_property
    def next_backward_over(self) -> Ints4:
        """End of the next backward that begins."""
        ends = np.sort(np.concatenate([self._backward_ends, self._annotated_steps.start_event]))
        return _first_after(self.next_backward, ends, self._never)

    @cached_property
    def backwards(self) -> Ints4:
        """How many backwards began while it was alive."""
        telling = np.flatnonzero(self._shows_backward)
        backward = self._alloc_doing[telling] == Activity.BACKWARD
        begins = self._allocs[telling[backward & ~np.append(False, backward)[:-1]]]
        upto = np.searchsorted(begins, self._rows.end, side="right").astype(np.int32)
        return np.asarray(upto - np.searchsorted(begins, self._rows.start, side="right").astype(np.int32))

    @cached_property
    def _shows_backward(self) -> Bools:
        """Allocs that show whether a backward continues. Without C++ frames a hook's stack may hide its backward."""
        return np.asarray((self._alloc_doing != Activity.NOTHING) | (self._alloc_seen & self._signs.sees_engine))

    @cached_property
    def _backward_ends(self) -> Ints8:
        return np.asarray(self._allocs[self._shows_backward & (self._alloc_doing != Activity.BACKWARD)])

    @cached_property
    def _annotated_steps(self) -> Intervals:
        return annotated(self._device).select(optimizer_steps(self._trace, self._device))

    def _next_alloc_of_stack(self, *events: Ints4 | Ints8) -> Ints4:
        return _first_after(self._rows.start, np.sort(np.concatenate(events)), self._never)


def _first_after(start: Ints4 | Ints8, events: Ints4 | Ints8, never: int) -> Ints4:
    """For each start the first of these (sorted) events behind it, or `never`."""
    return np.append(events, never).astype(np.int32)[np.searchsorted(events, start, side="right")]
