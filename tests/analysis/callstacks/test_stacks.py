"""Allocations as a tree of their stacks."""

from __future__ import annotations

import random
import tracemalloc

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from memviz.analysis.callstacks.stack_tree import OTHER, StackTree, TreeOptions, frame_name, stack_tree
from memviz.analysis.lifetimes import lifetimes
from memviz.trace.model import Trace
from tests.traces import alloc, frame, trace_of

SITE = "/home/u/.venv/lib/python3.12/site-packages"
MALLOC = frame("c10::cuda::malloc(long)", "CUDACachingAllocator.cpp", 0)
CAT = frame("cat", f"{SITE}/torch/functional.py", 5)
EINSUM = frame("einsum", f"{SITE}/einops/einops.py", 9)
MAIN, TRAIN, MODEL = frame("main", "train.py", 1), frame("train", "train.py", 2), frame("forward", "model.py", 3)
NODE = frame("torch::autograd::generated::MulBackward0::apply(int)", "??", 0)


def tree_of(trace: Trace, **options) -> StackTree:
    device = trace.devices[0]
    return stack_tree(trace, device, np.arange(len(lifetimes(device))), TreeOptions(**options))


def drawn(trace: Trace, tree: StackTree) -> list[tuple[str, str, int, int, int]]:
    """Name, parent's name, bytes, own bytes and allocations of each node."""
    names = [frame_name(trace, int(code)) for code in tree.frame]
    parents = ["" if parent < 0 else names[parent] for parent in tree.parent]
    return list(zip(names, parents, tree.bytes.tolist(), tree.self_bytes.tolist(), tree.count.tolist(), strict=True))


def three_stacks() -> Trace:
    return trace_of(
        [
            alloc(1, 10, frames=[MALLOC, CAT, EINSUM, MODEL, TRAIN, MAIN]),
            alloc(2, 30, frames=[MALLOC, TRAIN, MAIN]),
            alloc(3, 5, frames=[MALLOC, NODE]),
            alloc(4, 1),
        ]
    )


def test_the_outermost_frame_is_at_the_root_and_library_frames_fold():
    trace = three_stacks()
    assert drawn(trace, tree_of(trace)) == [
        ("all", "", 46, 0, 4),
        ("main", "all", 40, 0, 2),
        ("MulBackward0 (backward)", "all", 5, 5, 1),
        ("no stack recorded", "all", 1, 1, 1),
        ("train", "main", 40, 30, 2),
        ("forward", "train", 10, 0, 1),
        ("einsum", "forward", 10, 10, 1),
    ]


def test_unfolded_every_frame_is_a_node():
    trace = three_stacks()
    found = drawn(trace, tree_of(trace, fold=False))
    assert [name for name, *_ in found].count("c10::cuda::malloc") == 3
    assert ("cat", "einsum", 10, 0, 1) in found


def test_inverted_the_allocation_is_at_the_root():
    trace = trace_of([alloc(1, 10, frames=[MODEL, MAIN]), alloc(2, 30, frames=[MODEL, TRAIN])])
    assert drawn(trace, tree_of(trace, inverted=True)) == [
        ("all", "", 40, 0, 2),
        ("forward", "all", 40, 0, 2),
        ("train", "forward", 30, 30, 1),
        ("main", "forward", 10, 10, 1),
    ]


def test_a_function_that_calls_itself_stays_a_chain():
    trace = trace_of([alloc(1, 10, frames=[MODEL, MODEL, MAIN])])
    assert [name for name, *_ in drawn(trace, tree_of(trace))] == ["all", "main", "forward", "forward"]


def test_what_is_pruned_lies_in_one_other_below_its_parent():
    stacks = [[frame(f"f{i}", "a.py", i), MAIN] for i in range(5)]
    trace = trace_of([alloc(i, 10 - i, frames=frames) for i, frames in enumerate(stacks)])
    assert drawn(trace, tree_of(trace, most_nodes=4)) == [
        ("all", "", 40, 0, 5),
        ("main", "all", 40, 0, 5),
        ("f0", "main", 10, 10, 1),
        ("(other)", "main", 30, 30, 4),
    ]


def test_a_bound_that_holds_all_prunes_nothing():
    trace = three_stacks()
    assert tree_of(trace, most_nodes=7) == tree_of(trace)


def test_no_rows_are_a_root_alone():
    trace = three_stacks()
    nothing = stack_tree(trace, trace.devices[0], np.zeros(0, dtype=np.int64))
    assert drawn(trace, nothing) == [("all", "", 0, 0, 0)]


some_frames = st.lists(st.sampled_from([MALLOC, CAT, EINSUM, MAIN, TRAIN, MODEL, NODE]), max_size=6)
some_allocs = st.lists(st.tuples(st.integers(1, 1000), some_frames), min_size=1, max_size=12)


@given(some_allocs, st.booleans(), st.booleans(), st.none() | st.integers(2, 12))
def test_a_node_is_its_own_bytes_and_its_childrens(allocs, fold, inverted, most_nodes):
    trace = trace_of([alloc(i, size, frames=frames) for i, (size, frames) in enumerate(allocs)])
    tree = tree_of(trace, fold=fold, inverted=inverted, most_nodes=most_nodes)
    below = np.bincount(tree.parent[1:], weights=tree.bytes[1:], minlength=len(tree))
    assert (tree.self_bytes + below == tree.bytes).all()
    assert (tree.bytes[0], tree.count[0]) == (sum(size for size, _ in allocs), len(allocs))
    assert (tree.parent[1:] < np.arange(1, len(tree))).all()
    assert most_nodes is None or len(tree) <= most_nodes


def pruned(tree: StackTree, most_nodes: int) -> list[tuple[int, ...]]:
    """The whole tree with its smallest nodes taken out, one after the other."""
    rows = range(len(tree))
    order = sorted(rows, key=lambda row: (-int(tree.bytes[row]), row))
    for many in range(len(tree), 0, -1):
        kept = set(order[:many])
        cut = [row for row in rows if row not in kept and int(tree.parent[row]) in kept]
        if many == 1 or many + len({int(tree.parent[row]) for row in cut}) <= most_nodes:
            break

    def path(row: int) -> tuple[int, ...]:
        return () if row == 0 else (*path(int(tree.parent[row])), int(tree.frame[row]))

    found = {path(row): [int(tree.bytes[row]), int(tree.self_bytes[row]), int(tree.count[row])] for row in kept}
    for row in cut:
        other = found.setdefault((*path(int(tree.parent[row])), OTHER), [0, 0, 0])
        for i, value in enumerate((tree.bytes[row], tree.bytes[row], tree.count[row])):
            other[i] += int(value)
    return sorted((*where, *values) for where, values in found.items())


@given(some_allocs, st.booleans(), st.booleans(), st.integers(2, 12))
def test_a_bound_leaves_the_largest_nodes_of_the_whole_tree(allocs, fold, inverted, most_nodes):
    trace = trace_of([alloc(i, size % 7 + 1, frames=frames) for i, (size, frames) in enumerate(allocs)])
    whole = tree_of(trace, fold=fold, inverted=inverted)
    found = tree_of(trace, fold=fold, inverted=inverted, most_nodes=most_nodes)
    assert pruned(found, len(found)) == pruned(whole, most_nodes)


def test_what_is_pruned_was_never_made():
    luck = random.Random(1)
    frames = [frame(f"f{i}", "a.py", i) for i in range(300)]
    trace = trace_of([alloc(512 * i, 512, frames=luck.choices(frames, k=300)) for i in range(300)])
    tree_of(trace, most_nodes=3)
    tracemalloc.start()
    tree_of(trace, most_nodes=50)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 300 * 300 * 8, "more than one number for a frame of each stack"


@given(some_allocs)
def test_unfolded_own_bytes_are_those_of_each_stack(allocs):
    trace = trace_of([alloc(i, size, frames=frames) for i, (size, frames) in enumerate(allocs)])
    tree = tree_of(trace, fold=False)
    paths: dict[tuple[int, ...], int] = {}
    for node in np.flatnonzero(tree.self_bytes):
        at, path = int(node), []
        while at > 0:
            path.append(int(tree.frame[at]))
            at = int(tree.parent[at])
        paths[tuple(path)] = int(tree.self_bytes[node])
    stacks: dict[tuple[int, ...], int] = {}
    rows = lifetimes(trace.devices[0])
    for stack, size in zip(rows.stack.tolist(), rows.size.tolist(), strict=True):
        key = tuple(trace.stacks.of(stack).tolist()) or (tree.frame.min(),)
        stacks[key] = stacks.get(key, 0) + size
    assert paths == stacks


def test_other_comes_last_however_large():
    trace = trace_of([alloc(i, 10, frames=[frame(f"f{i}", "a.py", i)]) for i in range(9)])
    assert tree_of(trace, most_nodes=3).frame[-1] == OTHER
