"""Paths from the root of a stack tree: which allocations lie below one, and what each node is made of.

A path is the frames from the program's start on, as the folded tree has them, so it means the same in the tree
of any moment of the trace.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from memviz.analysis.callstacks.folding import folded
from memviz.analysis.callstacks.frames import DEFAULT_RULE, SiteRule
from memviz.analysis.callstacks.stacks import TreeOptions, stack_tree
from memviz.analysis.callstacks.tree import NO_FRAMES, OTHER, StackTree, depths
from memviz.analysis.lifetimes import lifetimes
from memviz.analysis.purpose.dominant import Dominant, bytes_by_kind, dominant_of
from memviz.analysis.sums import sum_by
from memviz.errors import UsageError
from memviz.trace.model import Bools, DeviceTrace, Ints4, Ints8, Stacks, Trace

Path = tuple[int, ...]
"""Frames; or NO_FRAMES alone, for allocations without a stack."""


@dataclass(frozen=True)
class StackBreakdown:
    path: Path
    """Of the node that is looked at."""
    node: int
    """Its row in the tree; 0 where the path is empty, and where nothing below it is live."""
    tree: StackTree
    """Of what lies below the path: down to `node` it is a chain, and all bytes pass through it."""
    dominant: tuple[Dominant, ...]
    """Per node."""


def stack_breakdown(
    trace: Trace, device: DeviceTrace, rows: Ints8, path: Path = (), *, most_nodes: int = 200
) -> StackBreakdown:
    """Of these rows of `lifetimes`, those below the path."""
    below = rows_below(trace, device, rows, path)
    tree = stack_tree(trace, device, below, TreeOptions(most_nodes=most_nodes + len(path)))
    # Rows come level by level, so the chain's nodes are the first ones.
    node = len(path) if len(below) else 0
    return StackBreakdown(path, node, tree, tuple(dominant_by_node(trace, device, below, tree)))


def parse_path(trace: Trace, text: str) -> Path:
    """'12,45,3', as `path_text` writes it. It comes back from a browser, so it may be anything."""
    try:
        path = tuple(int(number) for number in text.split(",")) if text else ()
    except ValueError:
        path = (len(trace.stacks.frames),)
    if path != (NO_FRAMES,) and not all(0 <= frame < len(trace.stacks.frames) for frame in path):
        raise UsageError("This trace has no such path of frames.")
    return path


def path_text(path: Path) -> str:
    return ",".join(map(str, path))


def rows_below(trace: Trace, device: DeviceTrace, rows: Ints8, path: Path, rule: SiteRule = DEFAULT_RULE) -> Ints8:
    """Those of these rows of `lifetimes` whose stack begins with the path."""
    if not path:
        return rows
    stack = lifetimes(device).stack[rows]
    if path == (NO_FRAMES,):
        return np.asarray(rows[stack < 0], dtype=np.int64)
    below = np.append(_stacks_below(folded(trace, rule), path), False)
    return np.asarray(rows[below[stack]], dtype=np.int64)


def _stacks_below(stacks: Stacks, path: Path) -> Bools:
    """Stacks are kept innermost first, so the program's start is at their end."""
    lengths = np.diff(stacks.offsets)
    below = np.asarray(lengths >= len(path), dtype=np.bool_)
    for depth, frame in enumerate(path):
        candidates = np.flatnonzero(below)
        place = stacks.offsets[candidates + 1] - 1 - depth
        below[candidates] = stacks.indices[place] == frame
    return below


def dominant_by_node(
    trace: Trace, device: DeviceTrace, rows: Ints8, tree: StackTree, rule: SiteRule = DEFAULT_RULE
) -> list[Dominant]:
    """Per node of `stack_tree` of the same rows, folded and not inverted."""
    used, codes = np.unique(lifetimes(device).stack[rows], return_inverse=True)
    of_stack = bytes_by_kind(trace, device, rows, codes, count=len(used))
    return dominant_of(sums_by_node(trace, tree, used, of_stack, rule))


def sums_by_node(trace: Trace, tree: StackTree, used: Ints4, of_stack: Ints8, rule: SiteRule = DEFAULT_RULE) -> Ints8:
    """Per node of a tree of these stacks, folded and not inverted: what is known of each stack, one column a kind."""
    ends = _ends(folded(trace, rule), used, tree)
    sums = np.stack([sum_by(ends, of_kind, len(tree)) for of_kind in of_stack.T], axis=1)
    return _with_those_below(sums, tree)


def _with_those_below(sums: Ints8, tree: StackTree) -> Ints8:
    """Rows of a tree stand level by level, so that children of one parent lie side by side."""
    levels = np.cumsum(np.bincount(depths(tree.parent)))
    for first, last in zip(levels[-2::-1], levels[:0:-1], strict=True):
        parents, begins = np.unique(tree.parent[first:last], return_index=True)
        sums[parents] += np.add.reduceat(sums[first:last], begins, axis=0)
    return sums


def _ends(stacks: Stacks, used: Ints4, tree: StackTree) -> Ints8:
    """In which node each of the used stacks ends; one that was pruned does at OTHER."""
    children = _Children.of(tree)
    at = np.zeros(len(used), dtype=np.int64)
    silent = np.flatnonzero(used < 0)
    at[silent] = children.find(at[silent], np.full(len(silent), NO_FRAMES))[0]
    going = np.flatnonzero(used >= 0)
    lengths = np.diff(stacks.offsets)
    depth = 0
    while len(going := going[lengths[used[going]] > depth]):
        frame = stacks.indices[stacks.offsets[used[going] + 1] - 1 - depth].astype(np.int64)
        at[going], exact = children.find(at[going], frame)
        going = going[exact]
        depth += 1
    return at


@dataclass(frozen=True)
class _Children:
    """Which child of a node has which frame."""

    keys: Ints8
    row: Ints8
    width: int

    @staticmethod
    def of(tree: StackTree) -> _Children:
        width = int(tree.frame.max(initial=0)) + 1 - NO_FRAMES
        keys = tree.parent[1:].astype(np.int64) * width + tree.frame[1:] - NO_FRAMES
        order = np.argsort(keys)
        return _Children(keys[order], order + 1, width)

    def find(self, parent: Ints8, frame: Ints8) -> tuple[Ints8, Bools]:
        """The child's row, and whether it is the frame's own: else it is the parent's OTHER."""
        known = frame < self.width + NO_FRAMES
        row = self._row(parent, np.where(known, frame, OTHER))
        exact = np.asarray(known & (row >= 0), dtype=np.bool_)
        return np.where(exact, row, self._row(parent, np.full(len(parent), OTHER))), exact

    def _row(self, parent: Ints8, frame: Ints8) -> Ints8:
        if not len(self.keys):
            return np.full(len(parent), -1)
        wanted = parent * self.width + frame - NO_FRAMES
        place = np.minimum(np.searchsorted(self.keys, wanted), len(self.keys) - 1)
        return np.where(self.keys[place] == wanted, self.row[place], -1)
