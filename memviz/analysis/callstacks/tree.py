"""A tree of stacks as columns, and what its nodes stand for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from memviz.trace.model import Columns, Ints4, Ints8

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
    """Of nodes in any order in which parents come before their children."""
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
    """By pointer doubling: each round every node looks twice as far up."""
    depth = (parent >= 0).astype(np.int64)
    up = np.maximum(parent, 0).astype(np.int64)
    while up.any():
        depth = depth + depth[up]
        up = up[up]
    return depth
