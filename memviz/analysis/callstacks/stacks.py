"""Allocations as a tree of their stacks, for flame and icicle charts.

A node's bytes are its own (stacks that end there) plus its children's, to the byte, however the tree is folded
or pruned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from memviz.analysis.callstacks.folding import folded
from memviz.analysis.callstacks.frames import DEFAULT_RULE, SiteRule
from memviz.analysis.callstacks.sites import NO_SITE, site_of_frame
from memviz.analysis.lifetimes import lifetimes
from memviz.analysis.sums import sum_by
from memviz.trace.model import Columns, DeviceTrace, Ints4, Ints8, Stacks, Trace

ROOT = -1
OTHER = -2
NO_FRAMES = -3
_NAMES = {ROOT: "all", OTHER: "(other)", NO_FRAMES: NO_SITE.label}


@dataclass(frozen=True, eq=False)
class StackTree(Columns):
    """Row 0 is the root; then level by level, siblings by bytes, largest first, OTHER last."""

    parent: Ints4
    """Row of the caller (of the callee where inverted); -1 for the root."""
    frame: Ints4
    """Into `trace.stacks.frames`, or ROOT, OTHER (what was pruned below its parent) or NO_FRAMES."""
    bytes: Ints8
    self_bytes: Ints8
    count: Ints8
    """Allocations."""


@dataclass(frozen=True)
class TreeOptions:
    fold: bool = True
    """Only the user's frames, and the first library frame that they call."""
    inverted: bool = False
    """From the allocation outwards instead of from the program's start inwards."""
    most_nodes: int | None = None
    """The smallest are pruned into one OTHER below each parent, which counts as a node too."""
    rule: SiteRule = DEFAULT_RULE


DEFAULT_TREE = TreeOptions()


def frame_name(trace: Trace, frame: int) -> str:
    """The function, in C++ without its parameters."""
    return _NAMES[frame] if frame < 0 else site_of_frame(trace, frame).function


def stack_tree(trace: Trace, device: DeviceTrace, rows: Ints8, options: TreeOptions = DEFAULT_TREE) -> StackTree:
    """`rows` are rows of `lifetimes`."""
    all_rows = lifetimes(device)
    stacks = folded(trace, options.rule) if options.fold else trace.stacks
    number = all_rows.stack[rows] + 1
    sizes = sum_by(number, all_rows.size[rows], len(stacks) + 1)
    counts = np.bincount(number, minlength=len(stacks) + 1)
    used = np.flatnonzero(counts[1:])
    tree = _grown(_paths(stacks, used, options), sizes[used + 1], counts[used + 1])
    if counts[0]:
        tree = _with_child(tree, NO_FRAMES, int(sizes[0]), int(counts[0]))
    if options.most_nodes is not None:
        tree = _pruned(_ordered(tree), options.most_nodes)
    return _ordered(tree)


@dataclass(frozen=True)
class _Paths:
    """Frames of some stacks, each from the root on, one after the other."""

    frames: Ints4
    begins: Ints8
    lengths: Ints8


def _paths(stacks: Stacks, used: Ints8, options: TreeOptions) -> _Paths:
    lengths = np.diff(stacks.offsets)[used]
    begins = np.cumsum(lengths) - lengths
    within = np.arange(lengths.sum()) - np.repeat(begins, lengths)
    step = within if options.inverted else np.repeat(lengths, lengths) - 1 - within
    return _Paths(stacks.indices[np.repeat(stacks.offsets[used], lengths) + step], begins, lengths)


def _grown(paths: _Paths, sizes: Ints8, counts: Ints8) -> StackTree:
    """The trie of the paths, one level at a time."""
    parents, frames = [np.array([-1])], [np.array([ROOT])]
    width = int(paths.frames.max(initial=0)) + 1
    at = np.zeros(len(sizes), dtype=np.int64)
    made = 1
    for depth in range(int(paths.lengths.max(initial=0))):
        deeper = np.flatnonzero(paths.lengths > depth)
        keys, node = np.unique(at[deeper] * width + paths.frames[paths.begins[deeper] + depth], return_inverse=True)
        parents.append(keys // width)
        frames.append(keys % width)
        at[deeper] = made + node
        made += len(keys)
    own, count = sum_by(at, sizes, made), sum_by(at, counts, made)
    total = own.copy()
    last = made
    for level in range(len(parents) - 1, 0, -1):
        # The parents of one level are the nodes of the one before it.
        parent, above = parents[level], len(parents[level - 1])
        first = last - len(parent)
        for column in (total, count):
            column[first - above : first] += sum_by(parent - (first - above), column[first:last], above)
        last = first
    return _tree(np.concatenate(parents), np.concatenate(frames), bytes=total, self_bytes=own, count=count)


def _tree(
    parent: npt.NDArray[Any], frame: npt.NDArray[Any], *, bytes: Ints8, self_bytes: Ints8, count: Ints8
) -> StackTree:
    return StackTree(parent.astype(np.int32), frame.astype(np.int32), bytes, self_bytes, count)


def _with_child(tree: StackTree, frame: int, size: int, count: int) -> StackTree:
    """One more child of the root."""
    total, amount = tree.bytes.copy(), tree.count.copy()
    total[0] += size
    amount[0] += count
    return _tree(
        np.append(tree.parent, 0),
        np.append(tree.frame, frame),
        bytes=np.append(total, size),
        self_bytes=np.append(tree.self_bytes, size),
        count=np.append(amount, count),
    )


def _ordered(tree: StackTree) -> StackTree:
    depth = depths(tree.parent)
    position = np.zeros(len(tree), dtype=np.int64)
    order = [np.zeros(1, dtype=np.int64)]
    made = 1
    for nodes in np.split(np.argsort(depth, kind="stable"), np.cumsum(np.bincount(depth)))[1:-1]:
        keys = (tree.frame[nodes], -tree.bytes[nodes], tree.frame[nodes] == OTHER, position[tree.parent[nodes]])
        nodes = nodes[np.lexsort(keys)]
        position[nodes] = made + np.arange(len(nodes))
        made += len(nodes)
        order.append(nodes)
    rows = np.concatenate(order)
    columns = {name: column[rows] for name, column in tree.columns()}
    columns["parent"] = np.append(-1, position[tree.parent[rows[1:]]]).astype(np.int32)
    return StackTree(**columns)


def depths(parent: Ints4) -> Ints8:
    """By pointer doubling: each round every node looks twice as far up."""
    depth = (parent >= 0).astype(np.int64)
    up = np.maximum(parent, 0).astype(np.int64)
    while up.any():
        depth = depth + depth[up]
        up = up[up]
    return depth


def _pruned(tree: StackTree, most_nodes: int) -> StackTree:
    """The largest nodes. A parent is never smaller than its child and stands before it, so it is kept with it."""
    order = np.argsort(-tree.bytes, kind="stable")
    keep = order[: _how_many(tree, order, most_nodes)]
    kept = np.zeros(len(tree), dtype=np.bool_)
    kept[keep] = True
    rows = np.flatnonzero(kept)
    position = np.cumsum(kept) - 1
    cut = np.flatnonzero(~kept & kept[tree.parent])
    parents, other = np.unique(tree.parent[cut], return_inverse=True)
    size, count = (sum_by(other, column[cut], len(parents)) for column in (tree.bytes, tree.count))
    new_parent = np.concatenate([np.where(rows > 0, position[tree.parent[rows]], -1), position[parents]])
    return _tree(
        new_parent,
        np.concatenate([tree.frame[rows], np.full(len(parents), OTHER)]),
        bytes=np.concatenate([tree.bytes[rows], size]),
        self_bytes=np.concatenate([tree.self_bytes[rows], size]),
        count=np.concatenate([tree.count[rows], count]),
    )


def _how_many(tree: StackTree, order: Ints8, most_nodes: int) -> int:
    """How many nodes, in this order, fit together with the OTHER of each parent that loses a child."""
    has_children = np.zeros(len(tree), dtype=np.int64)
    has_children[tree.parent[1:]] = 1
    rank = np.empty(len(tree), dtype=np.int64)
    rank[order] = np.arange(len(tree))
    last_child = np.zeros(len(tree), dtype=np.int64)
    children = order[order > 0]
    # Of several the last one stays, and ranks rise.
    last_child[tree.parent[children]] = rank[children]
    needed = 1 + has_children[order]
    needed[last_child[last_child > 0]] -= 1
    return max(1, int(np.searchsorted(np.cumsum(needed), most_nodes, side="right")))
