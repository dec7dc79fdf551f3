"""Allocations as a tree of their stacks, for flame and icicle charts.

A node's bytes are its own (stacks that end there) plus its children's, to the byte, however the tree is folded
or pruned.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from memviz.analysis.callstacks.folding import folded
from memviz.analysis.callstacks.frames import DEFAULT_RULE, SiteRule
from memviz.analysis.callstacks.largest_nodes import WeighedStacks, largest_nodes
from memviz.analysis.callstacks.sites import NO_SITE, site_of_frame
from memviz.analysis.callstacks.tree import NO_FRAMES, OTHER, ROOT, StackTree, tree_of
from memviz.analysis.lifetimes import lifetimes
from memviz.analysis.sums import sum_by
from memviz.trace.model import DeviceTrace, Ints8, Trace

_NAMES = {ROOT: "all", OTHER: "(other)", NO_FRAMES: NO_SITE.label}


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


def stack_tree(
    trace: Trace,
    device: DeviceTrace,
    rows: Ints8,
    options: TreeOptions = DEFAULT_TREE,
    *,
    weight: Ints8 | None = None,
) -> StackTree:
    """`rows` are rows of `lifetimes`; `weight` is what they count for, unless that is their bytes."""
    all_rows = lifetimes(device)
    stacks = folded(trace, options.rule) if options.fold else trace.stacks
    number = all_rows.stack[rows] + 1
    sizes = sum_by(number, all_rows.size[rows] if weight is None else weight, len(stacks) + 1)
    counts = np.bincount(number, minlength=len(stacks) + 1)
    used = np.flatnonzero(counts[1:])
    weighed = WeighedStacks(
        stacks, used, sizes[used + 1], counts[used + 1], (int(sizes[0]), int(counts[0])), options.inverted
    )
    return _whole(weighed) if options.most_nodes is None else largest_nodes(weighed, options.most_nodes)


def _whole(weighed: WeighedStacks) -> StackTree:
    """The trie of the stacks, one level at a time."""
    parents, frames = [np.array([-1])], [np.array([ROOT])]
    lengths, width = weighed.lengths, len(weighed.stacks.frames)
    at = np.zeros(len(lengths), dtype=np.int64)
    made = 1
    for depth in range(int(lengths.max(initial=0))):
        deeper = np.flatnonzero(lengths > depth)
        keys, node = np.unique(at[deeper] * width + weighed.frames(deeper, depth), return_inverse=True)
        parents.append(keys // width)
        frames.append(keys % width)
        at[deeper] = made + node
        made += len(keys)
    own, count = sum_by(at, weighed.bytes, made), sum_by(at, weighed.counts, made)
    total = own.copy()
    last = made
    for level in range(len(parents) - 1, 0, -1):
        # The parents of one level are the nodes of the one before it.
        parent, above = parents[level], len(parents[level - 1])
        first = last - len(parent)
        for column in (total, count):
            column[first - above : first] += sum_by(parent - (first - above), column[first:last], above)
        last = first
    return _with_silent(
        weighed, tree_of(np.concatenate(parents), np.concatenate(frames), bytes=total, self_bytes=own, count=count)
    )


def _with_silent(weighed: WeighedStacks, tree: StackTree) -> StackTree:
    """One more child of the root, where there is something without a stack."""
    size, count = weighed.silent
    if not count:
        return tree
    total, counts = tree.bytes.copy(), tree.count.copy()
    total[0] += size
    counts[0] += count
    return tree_of(
        np.append(tree.parent, 0),
        np.append(tree.frame, NO_FRAMES),
        bytes=np.append(total, size),
        self_bytes=np.append(tree.self_bytes, size),
        count=np.append(counts, count),
    )
