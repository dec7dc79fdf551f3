"""Allocations broken down by purpose, by group or below a path of calls, weighted by bytes, count or time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from memviz.analysis.callstacks.frames import DEFAULT_RULE, SiteRule
from memviz.analysis.callstacks.stack_tree import (
    NO_FRAMES,
    OTHER,
    StackTree,
    TreeOptions,
    depths,
    fold_plumbing,
    stack_tree,
)
from memviz.analysis.groups import Groups, grouped, keyed_by
from memviz.analysis.lifetimes import check_event, lifetimes
from memviz.analysis.purpose.categories import KINDS, categories, kinds
from memviz.analysis.purpose.reasons import REASON_TEXTS, Certainty, Reason
from memviz.analysis.sums import sum_by
from memviz.errors import UsageError
from memviz.trace.model import Bools, Category, DeviceTrace, Ints4, Ints8, Stacks, Trace


@dataclass(frozen=True)
class PurposeTotal:
    kind: str
    """One of `categories.KINDS`."""
    certainty: Certainty
    reason: str
    bytes: int
    count: int


def purpose_totals(trace: Trace, device: DeviceTrace, rows: Ints8) -> tuple[PurposeTotal, ...]:
    """Rows of `lifetimes`; by bytes, the largest first. They add up."""
    codes, width = _purpose_codes(trace, device, rows)
    distinct, of_row = np.unique(codes, return_inverse=True)
    sums = sum_by(of_row, lifetimes(device).size[rows], len(distinct))
    counts = np.bincount(of_row, minlength=len(distinct))
    order = np.argsort(-sums, kind="stable").tolist()
    return tuple(_total_of(int(distinct[i]), width, int(sums[i]), int(counts[i])) for i in order)


def largest_purpose_totals(
    trace: Trace, device: DeviceTrace, rows: Ints8, group: npt.NDArray[Any], kind: npt.NDArray[Any]
) -> list[PurposeTotal]:
    """For each group the largest reason among its rows of this kind (an index into KINDS, one for each group)."""
    codes, width = _purpose_codes(trace, device, rows)
    chosen = np.flatnonzero(codes // width == kind[group])
    span = len(KINDS) * width
    distinct, of_row = np.unique(group[chosen].astype(np.int64) * span + codes[chosen], return_inverse=True)
    sums = sum_by(of_row, lifetimes(device).size[rows][chosen], len(distinct))
    counts = np.bincount(of_row, minlength=len(distinct))
    order = np.lexsort((-sums, distinct // span))
    first = order[np.unique((distinct // span)[order], return_index=True)[1]]
    return [_total_of(int(distinct[i] % span), width, int(sums[i]), int(counts[i])) for i in first.tolist()]


def _purpose_codes(trace: Trace, device: DeviceTrace, rows: Ints8) -> tuple[Ints8, int]:
    """Kind, certainty and reason as one number each, and by how much a kind is larger than the last."""
    said = categories(trace, device)
    rest = said.certainty[rows].astype(np.int64) * len(Reason) + said.reason[rows]
    width = len(Certainty) * len(Reason)
    return kinds(trace, device, rows) * width + rest, width


def _total_of(code: int, width: int, size: int, count: int) -> PurposeTotal:
    kind, rest = divmod(code, width)
    certainty, reason = divmod(rest, len(Reason))
    return PurposeTotal(KINDS[kind], Certainty(certainty), REASON_TEXTS.get(Reason(reason), ""), size, count)


@dataclass(frozen=True)
class Dominant:
    kind: str
    """One of `categories.KINDS`."""
    bytes: int
    """Bytes of this kind; the rest of the group is of other kinds."""
    certainty: Certainty = Certainty.OPEN
    reason: str = ""
    """Why most of them are held to be of this kind."""


@dataclass(frozen=True)
class Breakdown:
    groups: Groups
    """All of them."""
    dominant: Mapping[str, Dominant]
    """Under each `Group.key`."""


def breakdown(trace: Trace, device: DeviceTrace, rows: Ints8, by: str, rule: SiteRule = DEFAULT_RULE) -> Breakdown:
    groups = grouped(trace, device, rows, by, rule=rule)
    return Breakdown(groups, dominant_by_group(trace, device, rows, by, rule))


def dominant_by_group(
    trace: Trace, device: DeviceTrace, rows: Ints8, by: str, rule: SiteRule = DEFAULT_RULE
) -> dict[str, Dominant]:
    """Under each `Group.key` of `groups.grouped` for the same rows."""
    keyed = keyed_by(trace, device, rows, by, rule=rule)
    distinct, codes = np.unique(keyed.codes, return_inverse=True)
    sums = bytes_by_kind(trace, device, rows, codes, count=len(distinct))
    names = [keyed.name(int(code))[0] for code in distinct]
    mostly = dominant_of(sums, counts_by_kind(trace, device, rows, codes, count=len(distinct)))
    kind = np.array([KINDS.index(one.kind) for one in mostly], dtype=np.int64)
    reasons = largest_purpose_totals(trace, device, rows, codes, kind)
    reasoned = (
        replace(one, certainty=why.certainty, reason=why.reason) for one, why in zip(mostly, reasons, strict=True)
    )
    return dict(zip(names, reasoned, strict=True))


def bytes_by_kind(trace: Trace, device: DeviceTrace, rows: Ints8, codes: npt.NDArray[Any], *, count: int) -> Ints8:
    """A row per code in 0..count-1, a column per kind."""
    width = len(KINDS)
    pairs = codes * width + kinds(trace, device, rows)
    return sum_by(pairs, lifetimes(device).size[rows], count * width).reshape(count, width)


def counts_by_kind(trace: Trace, device: DeviceTrace, rows: Ints8, codes: npt.NDArray[Any], *, count: int) -> Ints8:
    width = len(KINDS)
    pairs = codes * width + kinds(trace, device, rows)
    return np.bincount(pairs, minlength=count * width).reshape(count, width)


def dominant_of(sums: Ints8, counts: Ints8 | None = None) -> list[Dominant]:
    """Return each group's dominant kind. A known kind wins a tie with *unknown*; groups without bytes use counts."""
    order = np.append(np.arange(1, len(KINDS)), Category.UNKNOWN)
    weights = sums if counts is None else np.where(sums.any(axis=1, keepdims=True), sums, counts)
    largest = order[weights[:, order].argmax(axis=1)]
    return [Dominant(KINDS[code], int(row[code])) for code, row in zip(largest.tolist(), sums, strict=True)]


Path = tuple[int, ...]
"""Frames; or NO_FRAMES alone, for allocations without a stack."""


@dataclass(frozen=True)
class StackBreakdown:
    path: Path
    """Path of the selected node."""
    node: int
    """Its row in the tree; 0 where the path is empty, and where nothing below it is live."""
    tree: StackTree
    """Tree of the stacks below the path: a chain down to `node`, through which all bytes pass."""
    dominant: tuple[Dominant, ...]
    """Per node."""


def stack_breakdown(
    trace: Trace, device: DeviceTrace, rows: Ints8, path: Path = (), *, most_nodes: int = 200
) -> StackBreakdown:
    """Return the breakdown of those rows of `lifetimes` that lie below the path."""
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
    below = np.append(_stacks_below(fold_plumbing(trace, rule), path), False)
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
    ends = _ends(fold_plumbing(trace, rule), used, tree)
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


@dataclass(frozen=True, eq=False)
class WeightedRows:
    """Some allocations, with what each weighs and which of `parts` it counts as."""

    rows: Ints8
    """Rows of `lifetimes`."""
    weight: Ints8
    part: npt.NDArray[Any]
    parts: tuple[str, ...]

    def below(self, trace: Trace, device: DeviceTrace, path: Path) -> WeightedRows:
        kept = np.isin(self.rows, rows_below(trace, device, self.rows, path))
        return WeightedRows(self.rows[kept], self.weight[kept], self.part[kept], self.parts)

    def sums(self, codes: npt.NDArray[Any], count: int) -> Ints8:
        """A row per code in 0..count-1, a column per part."""
        width = len(self.parts)
        pairs = codes.astype(np.int64) * width + self.part
        return sum_by(pairs, self.weight, count * width).reshape(count, width)

    def largest(self, sums: Ints8) -> list[Dominant]:
        """Return each row's largest part. In a tie the part lower in the stack wins, so *unknown* and *other* lose."""
        return [Dominant(self.parts[part], int(row[part])) for part, row in zip(sums.argmax(axis=1), sums, strict=True)]


@dataclass(frozen=True, eq=False)
class RangeRows:
    """Allocations that were live at some moment of a range, and what their bytes times their events there are."""

    rows: Ints8
    byte_events: Ints8
    """They add up to the sum of the live bytes after each event of the range."""
    events: int
    """Moments of the range: what to divide by for bytes on average."""


def rows_in_range(device: DeviceTrace, first: int, last: int) -> RangeRows:
    """Both events belong to it; -1 is the moment before the first one."""
    check_event(device, first)
    check_event(device, last)
    spans = lifetimes(device)
    within = np.minimum(spans.end, last + 1) - np.maximum(spans.start, first)
    rows = np.flatnonzero(within > 0)
    return RangeRows(rows, spans.size[rows] * within[rows], last + 1 - first)


def weighted_breakdown(trace: Trace, device: DeviceTrace, weighed: WeightedRows, by: str) -> Breakdown:
    groups = grouped(trace, device, weighed.rows, by, weight=weighed.weight)
    keyed = keyed_by(trace, device, weighed.rows, by)
    codes, code = np.unique(keyed.codes, return_inverse=True)
    names = [keyed.name(int(number))[0] for number in codes]
    return Breakdown(groups, dict(zip(names, weighed.largest(weighed.sums(code, len(codes))), strict=True)))


def weighted_stacks(
    trace: Trace, device: DeviceTrace, weighed: WeightedRows, path: Path = (), *, most_nodes: int = 200
) -> StackBreakdown:
    """Return the breakdown of those weighted allocations that lie below the path."""
    below = weighed.below(trace, device, path)
    tree = stack_tree(trace, device, below.rows, TreeOptions(most_nodes=most_nodes + len(path)), weight=below.weight)
    used, code = np.unique(lifetimes(device).stack[below.rows], return_inverse=True)
    sums = sums_by_node(trace, tree, used, below.sums(code, len(used)))
    node = len(path) if len(below.rows) else 0
    return StackBreakdown(path, node, tree, tuple(below.largest(sums)))
