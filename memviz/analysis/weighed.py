"""Allocations by more than their bytes: how many they are, or how long they held their bytes; and what they count as.

What an allocation counts as is whatever colours mean at the time: a category, a site, a module, a size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from memviz.analysis.callstacks.stack_paths import Path, StackBreakdown, rows_below, sums_by_node
from memviz.analysis.callstacks.stacks import TreeOptions, stack_tree
from memviz.analysis.groups import grouped, keyed_by
from memviz.analysis.lifetimes import lifetimes
from memviz.analysis.live import check_event
from memviz.analysis.purpose.dominant import Breakdown, Dominant
from memviz.analysis.sums import sum_by
from memviz.trace.model import DeviceTrace, Ints8, Trace


@dataclass(frozen=True, eq=False)
class Weighed:
    """Some allocations, with what each weighs and which of `parts` it counts as."""

    rows: Ints8
    """Of `lifetimes`."""
    weight: Ints8
    part: npt.NDArray[Any]
    parts: tuple[str, ...]

    def below(self, trace: Trace, device: DeviceTrace, path: Path) -> Weighed:
        kept = np.isin(self.rows, rows_below(trace, device, self.rows, path))
        return Weighed(self.rows[kept], self.weight[kept], self.part[kept], self.parts)

    def sums(self, codes: npt.NDArray[Any], count: int) -> Ints8:
        """A row per code in 0..count-1, a column per part."""
        width = len(self.parts)
        pairs = codes.astype(np.int64) * width + self.part
        return sum_by(pairs, self.weight, count * width).reshape(count, width)

    def largest(self, sums: Ints8) -> list[Dominant]:
        """Of equal parts the one that stands lower in the stack; *unknown* and *other* are on top of it."""
        return [Dominant(self.parts[part], int(row[part])) for part, row in zip(sums.argmax(axis=1), sums, strict=True)]


@dataclass(frozen=True, eq=False)
class Lived:
    """Allocations that were live at some moment of a range, and what their bytes times their events there are."""

    rows: Ints8
    byte_events: Ints8
    """They add up to the sum of the live bytes after each event of the range."""
    events: int
    """Moments of the range: what to divide by for bytes on average."""


def lived(device: DeviceTrace, first: int, last: int) -> Lived:
    """Both events belong to it; -1 is the moment before the first one."""
    check_event(device, first)
    check_event(device, last)
    spans = lifetimes(device)
    within = np.minimum(spans.end, last + 1) - np.maximum(spans.start, first)
    rows = np.flatnonzero(within > 0)
    return Lived(rows, spans.size[rows] * within[rows], last + 1 - first)


def weighed_breakdown(trace: Trace, device: DeviceTrace, weighed: Weighed, by: str) -> Breakdown:
    groups = grouped(trace, device, weighed.rows, by, weight=weighed.weight)
    keyed = keyed_by(trace, device, weighed.rows, by)
    codes, code = np.unique(keyed.codes, return_inverse=True)
    names = [keyed.name(int(number))[0] for number in codes]
    return Breakdown(groups, dict(zip(names, weighed.largest(weighed.sums(code, len(codes))), strict=True)))


def weighed_stacks(
    trace: Trace, device: DeviceTrace, weighed: Weighed, path: Path = (), *, most_nodes: int = 200
) -> StackBreakdown:
    """Of these allocations, those below the path."""
    below = weighed.below(trace, device, path)
    tree = stack_tree(trace, device, below.rows, TreeOptions(most_nodes=most_nodes + len(path)), weight=below.weight)
    used, code = np.unique(lifetimes(device).stack[below.rows], return_inverse=True)
    sums = sums_by_node(trace, tree, used, below.sums(code, len(used)))
    node = len(path) if len(below.rows) else 0
    return StackBreakdown(path, node, tree, tuple(below.largest(sums)))
