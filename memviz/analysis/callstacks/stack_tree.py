"""Stacks of allocations as one tree, the program's start at its root, bounded to the largest nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from memviz.analysis.cache import cached
from memviz.analysis.callstacks.sites import (
    NO_SITE,
    NOWHERE,
    FrameKind,
    first_in_stack,
    frame_kinds,
    last_place,
    only_places,
    site_of_frame,
    sites,
)
from memviz.analysis.lifetimes import lifetimes
from memviz.analysis.sums import sum_by
from memviz.trace.model import Columns, DeviceTrace, Ints4, Ints8, Stacks, Trace

# Folding keeps the user's own frames and the first frame that they call.


@cached
def fold_plumbing(trace: Trace) -> Stacks:
    """The same stacks by number. One without any user's frame keeps the frame of its site alone."""
    stacks, of_frame = trace.stacks, frame_kinds(trace)
    kinds = of_frame[stacks.indices]
    lengths = np.diff(stacks.offsets)
    innermost = first_in_stack(stacks, of_frame == FrameKind.USER)
    keep = np.array(kinds == FrameKind.USER)

    # What the user's innermost frame called: the last library frame before it.
    library = (kinds == FrameKind.LIBRARY) | (kinds == FrameKind.TORCH)
    called = library & (np.arange(len(kinds)) < np.repeat(innermost, lengths))

    alone = np.repeat((innermost < 0), lengths) & (stacks.indices == np.repeat(sites(trace).frame[:-1], lengths))
    # A frame may recur in its stack; the site is kept once.
    places = np.concatenate([last_place(stacks, called), last_place(stacks, alone)])
    keep[places[places != NOWHERE]] = True
    return only_places(stacks, keep)


ROOT = -1
OTHER = -2
NO_FRAMES = -3
_NAMES = {ROOT: "all", OTHER: "(other)", NO_FRAMES: NO_SITE.label}


@dataclass(frozen=True, eq=False)
class StackTree(Columns):
    """Row 0 is the root; then level by level, siblings by bytes, largest first, OTHER last.

    A node's bytes are its own (stacks that end there) plus its children's, to the byte.
    """

    parent: Ints4
    """Row of the caller; -1 for the root."""
    frame: Ints4
    """Into `trace.stacks.frames`, or ROOT, OTHER (what was pruned below its parent) or NO_FRAMES."""
    bytes: Ints8
    self_bytes: Ints8
    count: Ints8
    """Allocations."""


def frame_name(trace: Trace, frame: int) -> str:
    """The function, in C++ without its parameters."""
    return _NAMES[frame] if frame < 0 else site_of_frame(trace, frame).function


def stack_tree(trace: Trace, device: DeviceTrace, rows: Ints8, *, most_nodes: int = 500) -> StackTree:
    """Return the tree of the stacks of these rows of `lifetimes`, folded."""
    return tree_with_ends(trace, device, rows, most_nodes=most_nodes)[0]


# The largest nodes are selected without building the whole tree: thousands of deep stacks have millions of nodes.
# Starting at the root, the largest candidate is selected and its children become candidates. A node is never larger
# than its parent, so nodes come in order of their bytes. Nodes left out become one OTHER below their parent.


def tree_with_ends(
    trace: Trace, device: DeviceTrace, rows: Ints8, *, most_nodes: int, weight: Ints8 | None = None
) -> tuple[StackTree, Ints8]:
    """Return the tree, and for each of these rows the node where its stack ends."""
    all_rows, stacks = lifetimes(device), fold_plumbing(trace)
    # NO_STACK (-1) becomes one more stack, whose only frame is NO_FRAMES.
    number = all_rows.stack[rows] % (len(stacks) + 1)
    weighted = _WeightedStacks(
        bounds=np.append(stacks.offsets, len(stacks.indices) + 1),
        frames=np.append(stacks.indices, np.int32(NO_FRAMES)),
        bytes=sum_by(number, all_rows.size[rows] if weight is None else weight, len(stacks) + 1),
        counts=np.bincount(number, minlength=len(stacks) + 1),
    )
    nodes, left = _take_largest(weighted, most_nodes)
    by_parent: dict[int, list[_Node]] = {}
    for node in left:
        by_parent.setdefault(node.parent, []).append(node)
    for parent, pruned in by_parent.items():
        size, count = sum(node.bytes for node in pruned), sum(node.count for node in pruned)
        members = np.concatenate([node.members for node in pruned])
        nodes.append(_Node(parent, OTHER, pruned[0].depth, members, size, count, own=size))
    # Parents come before their children, so that the last node to claim a stack is the innermost.
    end = np.zeros(len(weighted.counts), dtype=np.int64)
    for row, node in enumerate(nodes):
        end[node.members] = row

    order = _level_order(nodes)
    position = np.empty(len(nodes), dtype=np.int64)
    position[order] = np.arange(len(nodes))
    parents = [-1, *(position[nodes[row].parent] for row in order[1:])]
    columns = ([getattr(nodes[row], name) for row in order] for name in ("bytes", "own", "count"))
    frames = np.array([nodes[row].frame for row in order], dtype=np.int32)
    tree = StackTree(np.array(parents, dtype=np.int32), frames, *(np.array(column, np.int64) for column in columns))
    return tree, position[end[number]]


@dataclass(frozen=True, eq=False)
class _WeightedStacks:
    """Frames of all stacks, innermost first, with the bytes and allocations of each."""

    bounds: Ints8
    frames: Ints4
    bytes: Ints8
    counts: Ints8


@dataclass(eq=False)
class _Node:
    parent: int
    """Row among the nodes taken."""
    frame: int
    depth: int
    members: Ints8
    """Stacks that pass through it."""
    bytes: int
    count: int
    place: tuple[tuple[int, int], ...] = ()
    """Bytes, negative, and frame of each node from the root to this one: the order among equals of one depth."""
    own: int = 0
    children_left: int = 0


def _take_largest(weighted: _WeightedStacks, most_nodes: int) -> tuple[list[_Node], list[_Node]]:
    """Return the largest nodes that fit, counting an OTHER below each parent that loses a child, and those left."""
    used = np.flatnonzero(weighted.counts)
    root = _Node(-1, ROOT, 0, used, int(weighted.bytes.sum()), int(weighted.counts.sum()))
    heap = [((-root.bytes, 0, root.place, ROOT), root)]
    nodes: list[_Node] = []
    needed = 0
    while heap:
        node = heap[0][1]
        children = list(_children(weighted, node, len(nodes)))
        is_last = node.parent >= 0 and nodes[node.parent].children_left == 1
        needed += 1 + bool(children) - is_last
        if nodes and needed > most_nodes:
            break
        heappop(heap)
        nodes.append(node)
        if node.parent >= 0:
            nodes[node.parent].children_left -= 1
            node.place = (*nodes[node.parent].place, (-node.bytes, node.frame))
        node.own = node.bytes - sum(child.bytes for child in children)
        node.children_left = len(children)
        for child in children:
            heappush(heap, ((-child.bytes, child.depth, node.place, child.frame), child))
    return nodes, [node for _, node in heap]


def _children(weighted: _WeightedStacks, node: _Node, row: int) -> Iterator[_Node]:
    place = weighted.bounds[node.members + 1] - 1 - node.depth
    goes_on = place >= weighted.bounds[node.members]
    deeper = node.members[goes_on]
    following = weighted.frames[place[goes_on]]
    if len(following) and (following == following[0]).all():
        # Most frames call one other, in all stacks that pass through them.
        size, count = int(weighted.bytes[deeper].sum()), int(weighted.counts[deeper].sum())
        yield _Node(row, int(following[0]), node.depth + 1, deeper, size, count)
        return
    frames, code = np.unique(following, return_inverse=True)
    sizes = sum_by(code, weighted.bytes[deeper], len(frames)).tolist()
    counts = sum_by(code, weighted.counts[deeper], len(frames)).tolist()
    grouped = np.split(deeper[np.argsort(code, kind="stable")], np.cumsum(np.bincount(code))[:-1])
    for frame, members, size, count in zip(frames.tolist(), grouped, sizes, counts, strict=False):
        yield _Node(row, frame, node.depth + 1, members, size, count)


def _level_order(nodes: Sequence[_Node]) -> list[int]:
    children: list[list[int]] = [[] for _ in nodes]
    for row, node in enumerate(nodes[1:], 1):
        children[node.parent].append(row)
    order = [0]
    for row in order:
        order += sorted(children[row], key=lambda row: (nodes[row].frame == OTHER, -nodes[row].bytes, nodes[row].frame))
    return order
