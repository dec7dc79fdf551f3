"""Stacks of allocations as one tree, the program's start at its root, bounded to the largest nodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

import numpy as np
import numpy.typing as npt

from memviz.analysis.cache import cached_on
from memviz.analysis.callstacks.frames import (
    DEFAULT_RULE,
    NOWHERE,
    FrameKind,
    SiteRule,
    first_in_stack,
    frame_kinds,
    last_place,
    only_places,
)
from memviz.analysis.callstacks.sites import NO_SITE, site_of_frame, sites
from memviz.analysis.lifetimes import lifetimes
from memviz.analysis.sums import sum_by
from memviz.trace.model import Bools, Columns, DeviceTrace, Ints4, Ints8, Stacks, Trace

# Folding keeps the user's own frames and the first frame that they call.


def fold_plumbing(trace: Trace, rule: SiteRule) -> Stacks:
    """The same stacks by number. One without any user's frame keeps the frame of its site alone."""
    return cached_on(trace, (fold_plumbing, rule), lambda: only_places(trace.stacks, _kept_places(trace, rule)))


def _kept_places(trace: Trace, rule: SiteRule) -> Bools:
    stacks, of_frame = trace.stacks, frame_kinds(trace, rule)
    kinds = of_frame[stacks.indices]
    lengths = np.diff(stacks.offsets)
    innermost = first_in_stack(stacks, of_frame == FrameKind.USER)
    keep = np.array(kinds == FrameKind.USER)

    # What the user's innermost frame called: the last library frame before it.
    library = (kinds == FrameKind.LIBRARY) | (kinds == FrameKind.TORCH)
    called = library & (np.arange(len(kinds)) < np.repeat(innermost, lengths))

    alone = np.repeat((innermost < 0), lengths) & (stacks.indices == np.repeat(sites(trace, rule).frame[:-1], lengths))
    # A frame may recur in its stack; the site stands once.
    places = np.concatenate([last_place(stacks, called), last_place(stacks, alone)])
    keep[places[places != NOWHERE]] = True
    return keep


ROOT = -1
OTHER = -2
NO_FRAMES = -3


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


def tree_of(
    parent: npt.ArrayLike, frame: npt.ArrayLike, *, bytes: npt.ArrayLike, self_bytes: npt.ArrayLike, count: Any
) -> StackTree:
    """Return the tree of nodes in any order in which parents come before their children."""
    sums = (np.asarray(column, dtype=np.int64) for column in (bytes, self_bytes, count))
    return _ordered(StackTree(np.asarray(parent, dtype=np.int32), np.asarray(frame, dtype=np.int32), *sums))


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
    """Return the depth of each node, by pointer doubling: each round every node looks twice as far up."""
    depth = (parent >= 0).astype(np.int64)
    up = np.maximum(parent, 0).astype(np.int64)
    while up.any():
        depth = depth + depth[up]
        up = up[up]
    return depth


# The largest nodes are found without building the whole tree, because thousands of deep stacks have millions of nodes.
# From the root on, the largest known node is taken next and its children become known. A node is never larger than its
# parent, so nodes come in order of their bytes.

Key = tuple[int, int, "Place", int]
Place = tuple[tuple[int, int], ...]


@dataclass(frozen=True, eq=False)
class WeighedStacks:
    """Frames of some stacks, each from the root on, and what is live of them."""

    stacks: Stacks
    used: Ints8
    bytes: Ints8
    counts: Ints8
    silent: tuple[int, int]
    """Bytes and allocations without a stack."""
    inverted: bool

    @property
    def lengths(self) -> Ints8:
        return np.asarray(np.diff(self.stacks.offsets)[self.used], dtype=np.int64)

    def frames(self, which: Ints8, depth: int) -> Ints4:
        offsets, used = self.stacks.offsets, self.used[which]
        return self.stacks.indices[offsets[used] + depth if self.inverted else offsets[used + 1] - 1 - depth]


@dataclass(eq=False)
class _Node:
    parent: int
    """Row among those taken."""
    frame: int
    depth: int
    members: Ints8
    """Which of the stacks pass through it."""
    bytes: int
    count: int
    place: Place = ()
    """Bytes, negative, and frame of each from the root to this one: the order among equals of one depth."""
    own: int = 0
    children_left: int = 0
    bytes_left: int = 0
    count_left: int = 0
    """Like the two above, the total of the children that are not taken."""


def largest_nodes(weighed: WeighedStacks, most_nodes: int) -> StackTree:
    """Return the largest nodes that fit, counting an OTHER below each parent that loses a child."""
    taken = _taken(weighed, most_nodes)
    pruned = [row for row, node in enumerate(taken) if node.children_left]
    others = [taken[row] for row in pruned]
    return tree_of(
        [*(node.parent for node in taken), *pruned],
        [*(node.frame for node in taken), *(OTHER for _ in pruned)],
        bytes=[*(node.bytes for node in taken), *(node.bytes_left for node in others)],
        self_bytes=[*(node.own for node in taken), *(node.bytes_left for node in others)],
        count=[*(node.count for node in taken), *(node.count_left for node in others)],
    )


def _taken(weighed: WeighedStacks, most_nodes: int) -> list[_Node]:
    lengths, (bytes, count) = weighed.lengths, weighed.silent
    everything = np.arange(len(weighed.used))
    root = _Node(-1, ROOT, 0, everything, int(weighed.bytes.sum()) + bytes, int(weighed.counts.sum()) + count)
    known: list[tuple[Key, _Node]] = [((-root.bytes, 0, (), ROOT), root)]
    taken: list[_Node] = []
    needed = 0
    while known:
        _, node = heappop(known)
        has_children = bool((lengths[node.members] > node.depth).any()) or (node.frame == ROOT and count > 0)
        is_last = node.parent >= 0 and taken[node.parent].children_left == 1
        needed += 1 + has_children - is_last
        if taken and needed > most_nodes:
            break
        _take(node, taken)
        children = list(_children(weighed, lengths, node, len(taken) - 1)) if has_children else []
        node.own = node.bytes - sum(child.bytes for child in children)
        node.children_left = len(children)
        node.bytes_left, node.count_left = node.bytes - node.own, sum(child.count for child in children)
        for child in children:
            heappush(known, ((-child.bytes, child.depth, node.place, child.frame), child))
    return taken


def _take(node: _Node, taken: list[_Node]) -> None:
    if node.parent >= 0:
        parent = taken[node.parent]
        parent.children_left -= 1
        parent.bytes_left -= node.bytes
        parent.count_left -= node.count
        node.place = (*parent.place, (-node.bytes, node.frame))
    taken.append(node)


def _children(weighed: WeighedStacks, lengths: Ints8, node: _Node, row: int) -> Iterator[_Node]:
    if node.frame == ROOT and weighed.silent[1]:
        yield _Node(row, NO_FRAMES, 1, np.zeros(0, dtype=np.int64), *weighed.silent)
    deeper = node.members[lengths[node.members] > node.depth]
    frames, code = np.unique(weighed.frames(deeper, node.depth), return_inverse=True)
    bytes = sum_by(code, weighed.bytes[deeper], len(frames)).tolist()
    counts = sum_by(code, weighed.counts[deeper], len(frames)).tolist()
    grouped = np.split(deeper[np.argsort(code, kind="stable")], np.cumsum(np.bincount(code))[:-1])
    for frame, members, size, count in zip(frames.tolist(), grouped, bytes, counts, strict=False):
        yield _Node(row, frame, node.depth + 1, members, size, count)


# A node's bytes are its own (stacks that end there) plus its children's, to the byte, however the tree is folded or
# pruned.

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
    stacks = fold_plumbing(trace, options.rule) if options.fold else trace.stacks
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
