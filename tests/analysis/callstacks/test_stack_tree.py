"""Allocations as a tree of their stacks."""

import random
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memviz.analysis.callstacks.stack_tree import OTHER, StackTree, fold_plumbing, frame_name, stack_tree
from memviz.analysis.lifetimes import lifetimes
from memviz.trace.model import Trace
from tests.traces import alloc, frame, trace_of

SITE = "/home/u/.venv/lib/python3.12/site-packages"
MALLOC = frame("c10::cuda::malloc(long)", "CUDACachingAllocator.cpp", 0)
CAT = frame("cat", f"{SITE}/torch/functional.py", 5)
EINSUM = frame("einsum", f"{SITE}/einops/einops.py", 9)
MAIN, TRAIN, MODEL = frame("main", "train.py", 1), frame("train", "train.py", 2), frame("forward", "model.py", 3)
NODE = frame("torch::autograd::generated::MulBackward0::apply(int)", "??", 0)
NATIVE = frame("at::_ops::mm::call(int)", "??", 0)
LINEAR = frame("linear", f"{SITE}/torch/nn/modules/linear.py")
CALL = frame("_call_impl", f"{SITE}/torch/nn/modules/module.py")


def tree_of(trace: Trace, most_nodes: int = 10_000) -> StackTree:
    device = trace.devices[0]
    return stack_tree(trace, device, np.arange(len(lifetimes(device))), most_nodes=most_nodes)


def rows_of(trace: Trace, tree: StackTree) -> list[tuple[str, str, int, int, int]]:
    """Name, parent's name, bytes, own bytes and allocations of each node."""
    names = [frame_name(trace, int(code)) for code in tree.frame]
    parents = ["" if parent < 0 else names[parent] for parent in tree.parent]
    return list(zip(names, parents, tree.bytes.tolist(), tree.self_bytes.tolist(), tree.count.tolist(), strict=True))


@pytest.mark.parametrize(
    ("frames", "folded"),
    [
        ([NATIVE, CAT, LINEAR, CALL, MODEL, CALL, MAIN], ["linear", "forward", "main"]),
        ([NATIVE, MODEL, MAIN], ["forward", "main"]),
        ([NATIVE, MODEL, EINSUM, CALL, MAIN], ["forward", "main"]),
        ([NATIVE, EINSUM, EINSUM, LINEAR], ["einsum"]),
        ([NATIVE, NATIVE], ["at::_ops::mm::call(int)"]),
    ],
)
def test_folding_keeps_the_users_frames_and_the_first_they_called(frames, folded):
    trace = trace_of([alloc(1, 1, frames=frames)])
    names = trace.stacks.frames.name
    assert [trace.strings[names[number]] for number in fold_plumbing(trace).of(0)] == folded


def test_the_outermost_frame_is_at_the_root_and_library_frames_fold():
    trace = trace_of(
        [
            alloc(1, 10, frames=[MALLOC, CAT, EINSUM, MODEL, TRAIN, MAIN]),
            alloc(2, 30, frames=[MALLOC, TRAIN, MAIN]),
            alloc(3, 5, frames=[MALLOC, NODE]),
            alloc(4, 1),
        ]
    )
    assert rows_of(trace, tree_of(trace, 7)) == [
        ("all", "", 46, 0, 4),
        ("main", "all", 40, 0, 2),
        ("MulBackward0 (backward)", "all", 5, 5, 1),
        ("no stack recorded", "all", 1, 1, 1),
        ("train", "main", 40, 30, 2),
        ("forward", "train", 10, 0, 1),
        ("einsum", "forward", 10, 10, 1),
    ]


def test_a_function_that_calls_itself_stays_a_chain():
    trace = trace_of([alloc(1, 10, frames=[MODEL, MODEL, MAIN])])
    assert [name for name, *_ in rows_of(trace, tree_of(trace))] == ["all", "main", "forward", "forward"]


def test_pruned_nodes_lie_in_one_other_below_their_parent_which_comes_last():
    stacks = [[frame(f"f{i}", "a.py", i), MAIN] for i in range(5)]
    trace = trace_of([alloc(i, 10 - i, frames=frames) for i, frames in enumerate(stacks)])
    assert rows_of(trace, tree_of(trace, most_nodes=4)) == [
        ("all", "", 40, 0, 5),
        ("main", "all", 40, 0, 5),
        ("f0", "main", 10, 10, 1),
        ("(other)", "main", 30, 30, 4),
    ]


def test_no_rows_are_a_root_alone():
    trace = trace_of([alloc(1, 10, frames=[MAIN])])
    nothing = stack_tree(trace, trace.devices[0], np.zeros(0, dtype=np.int64))
    assert rows_of(trace, nothing) == [("all", "", 0, 0, 0)]


some_frames = st.lists(st.sampled_from([MALLOC, CAT, EINSUM, MAIN, TRAIN, MODEL, NODE]), max_size=6)
some_allocs = st.lists(st.tuples(st.integers(1, 1000), some_frames), min_size=1, max_size=12)


@given(some_allocs)
def test_own_bytes_are_those_of_the_stacks_that_end_there(allocs):
    trace = trace_of([alloc(i, size, frames=frames) for i, (size, frames) in enumerate(allocs)])
    tree, rows, stacks = tree_of(trace), lifetimes(trace.devices[0]), fold_plumbing(trace)
    of_stacks: dict[tuple[int, ...], int] = {}
    for stack, size in zip(rows.stack.tolist(), rows.size.tolist(), strict=True):
        path = tuple(stacks.of(stack).tolist()[::-1]) if stack >= 0 else (int(tree.frame.min()),)
        of_stacks[path] = of_stacks.get(path, 0) + size
    assert {path_of(tree, node): tree.self_bytes[node] for node in np.flatnonzero(tree.self_bytes)} == of_stacks


def path_of(tree: StackTree, node: int) -> tuple[int, ...]:
    return () if node == 0 else (*path_of(tree, int(tree.parent[node])), int(tree.frame[node]))


def pruned(tree: StackTree, most_nodes: int) -> list[tuple[int, ...]]:
    """The whole tree with its smallest nodes taken out, one after the other."""
    rows = range(len(tree))
    order = sorted(rows, key=lambda row: (-int(tree.bytes[row]), row))
    for many in range(len(tree), 0, -1):
        kept = set(order[:many])
        cut = [row for row in rows if row not in kept and int(tree.parent[row]) in kept]
        if many == 1 or many + len({int(tree.parent[row]) for row in cut}) <= most_nodes:
            break
    found = {
        path_of(tree, row): [int(tree.bytes[row]), int(tree.self_bytes[row]), int(tree.count[row])] for row in kept
    }
    for row in cut:
        other = found.setdefault((*path_of(tree, int(tree.parent[row])), OTHER), [0, 0, 0])
        for i, value in enumerate((tree.bytes[row], tree.bytes[row], tree.count[row])):
            other[i] += int(value)
    return sorted((*where, *values) for where, values in found.items())


@given(some_allocs, st.integers(2, 12))
def test_a_bound_leaves_the_largest_nodes_of_the_whole_tree(allocs, most_nodes):
    trace = trace_of([alloc(i, size % 7 + 1, frames=frames) for i, (size, frames) in enumerate(allocs)])
    whole, found = tree_of(trace), tree_of(trace, most_nodes)
    assert pruned(found, len(found)) == pruned(whole, most_nodes)
    assert len(found) <= most_nodes
    below = np.bincount(found.parent[1:], weights=found.bytes[1:], minlength=len(found))
    assert (found.self_bytes + below == found.bytes).all()
    assert (found.parent[1:] < np.arange(1, len(found))).all()


def test_pruned_nodes_are_never_made():
    luck = random.Random(1)
    frames = [frame(f"f{i}", "a.py", i) for i in range(300)]
    trace = trace_of([alloc(512 * i, 512, frames=luck.choices(frames, k=300)) for i in range(300)])
    tree_of(trace, most_nodes=3)
    tracemalloc.start()
    tree_of(trace, most_nodes=50)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 300 * 300 * 8, "more than one number for a frame of each stack"
