"""The largest nodes of a tree of stacks, found without making all of it: thousands of deep stacks have millions.

From the root on, the largest node that is known is taken next, and its children become known. A node is never larger
than its parent, so this is the order of their bytes, and it ends when no more of them are wanted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from memviz.analysis.callstacks.tree import NO_FRAMES, OTHER, ROOT, StackTree, tree_of
from memviz.analysis.sums import sum_by
from memviz.trace.model import Ints4, Ints8, Stacks

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
    """Of children that are not taken."""


def largest_nodes(weighed: WeighedStacks, most_nodes: int) -> StackTree:
    """As many as fit together with an OTHER below each parent that loses a child."""
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
