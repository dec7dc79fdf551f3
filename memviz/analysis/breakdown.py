"""Allocations broken down by purpose, by group or below a path of calls, weighted by bytes, count or time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from memviz.analysis.callstacks.stack_tree import NO_FRAMES, StackTree, fold_plumbing, tree_with_ends
from memviz.analysis.groups import Groups, group_codes, group_rows
from memviz.analysis.lifetimes import check_event, lifetimes
from memviz.analysis.purpose.categories import KINDS, categories, kinds
from memviz.analysis.purpose.reasons import REASON_TEXTS, Certainty, Reason
from memviz.analysis.sums import sum_by
from memviz.errors import UsageError
from memviz.trace.model import Category, DeviceTrace, Ints8, Trace


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
    return tuple(total for _, total in _purposes_by_group(trace, device, rows, np.zeros(len(rows), dtype=np.int64)))


def _purposes_by_group(
    trace: Trace, device: DeviceTrace, rows: Ints8, group: Ints8
) -> Iterator[tuple[int, PurposeTotal]]:
    """Yield group by group its purposes, the largest first."""
    inferred, (_, certainties, reasons) = categories(trace, device), _PURPOSE
    purpose = (kinds(trace, device, rows) * certainties + inferred.certainty[rows]) * reasons + inferred.reason[rows]
    distinct, of_row = np.unique(group * math.prod(_PURPOSE) + purpose, return_inverse=True)
    sums = sum_by(of_row, lifetimes(device).size[rows], len(distinct))
    counts = np.bincount(of_row, minlength=len(distinct))
    groups, *codes = np.unravel_index(distinct, (int(group.max(initial=0)) + 1, *_PURPOSE))
    order = np.lexsort((-sums, groups))
    for number, kind, certainty, reason, size, count in zip(
        *(column[order].tolist() for column in (groups, *codes, sums, counts)), strict=True
    ):
        yield number, PurposeTotal(KINDS[kind], Certainty(certainty), REASON_TEXTS[reason], size, count)


_PURPOSE = (len(KINDS), len(Certainty), len(Reason))


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


def breakdown(trace: Trace, device: DeviceTrace, rows: Ints8, by: str) -> Breakdown:
    return Breakdown(group_rows(trace, device, rows, by), dominant_by_group(trace, device, rows, by))


def dominant_by_group(trace: Trace, device: DeviceTrace, rows: Ints8, by: str) -> dict[str, Dominant]:
    """Under each `Group.key` of `groups.grouped` for the same rows."""
    keyed = group_codes(trace, device, rows, by)
    distinct, group = np.unique(keyed.codes, return_inverse=True)
    totals: list[list[PurposeTotal]] = [[] for _ in distinct]
    for number, total in _purposes_by_group(trace, device, rows, group):
        totals[number].append(total)
    return {keyed.name(int(code))[0]: _dominant(of_group) for code, of_group in zip(distinct, totals, strict=True)}


def _dominant(totals: Sequence[PurposeTotal]) -> Dominant:
    """Return the largest kind, by count where nothing has bytes; a known kind wins a tie with *unknown*."""
    has_bytes = any(total.bytes for total in totals)
    weights: Counter[str] = Counter()
    for total in totals:
        weights[total.kind] += total.bytes if has_bytes else total.count
    kind = max(weights, key=lambda kind: (weights[kind], kind != Category.UNKNOWN.label, -KINDS.index(kind)))
    largest = next(total for total in totals if total.kind == kind)
    return Dominant(kind, weights[kind] if has_bytes else 0, largest.certainty, largest.reason)


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


def parse_path(trace: Trace, text: str) -> Path:
    """'12,45,3', as `path_text` writes it. It comes back from a browser, so it may be anything."""
    try:
        path = tuple(int(number) for number in text.split(",")) if text else ()
    except ValueError:
        path = (len(trace.stacks.frames),)
    if path != (NO_FRAMES,) and not all(0 <= frame < len(trace.stacks.frames) for frame in path):
        raise UsageError("This trace has no such stack.")
    return path


def path_text(path: Path) -> str:
    return ",".join(map(str, path))


def rows_below(trace: Trace, device: DeviceTrace, rows: Ints8, path: Path) -> Ints8:
    """Filter rows of `lifetimes` to those whose stack begins with the path."""
    if not path:
        return rows
    stack = lifetimes(device).stack[rows]
    if path == (NO_FRAMES,):
        return np.asarray(rows[stack < 0], dtype=np.int64)
    # Stacks are kept innermost first, so the program's start is at their end.
    stacks = fold_plumbing(trace)
    lengths = np.diff(stacks.offsets)
    matches = np.asarray(lengths >= len(path), dtype=np.bool_)
    for depth, frame in enumerate(path):
        candidates = np.flatnonzero(matches)
        place = stacks.offsets[candidates + 1] - 1 - depth
        matches[candidates] = stacks.indices[place] == frame
    starts_with_path = np.append(matches, False)
    return np.asarray(rows[starts_with_path[stack]], dtype=np.int64)


@dataclass(frozen=True, eq=False)
class WeightedRows:
    """Some allocations, with what each weighs and which of `parts` it counts as."""

    rows: Ints8
    """Rows of `lifetimes`."""
    weight: Ints8
    part: npt.NDArray[Any]
    parts: tuple[str, ...]

    def below(self, trace: Trace, device: DeviceTrace, path: Path) -> WeightedRows:
        selected = np.isin(self.rows, rows_below(trace, device, self.rows, path))
        return WeightedRows(self.rows[selected], self.weight[selected], self.part[selected], self.parts)

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
    """Allocations live at some moment of a range, with bytes times events there."""

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
    in_range = np.minimum(spans.end, last + 1) - np.maximum(spans.start, first)
    rows = np.flatnonzero(in_range > 0)
    return RangeRows(rows, spans.size[rows] * in_range[rows], last + 1 - first)


def weighted_breakdown(trace: Trace, device: DeviceTrace, weighted: WeightedRows, by: str) -> Breakdown:
    groups = group_rows(trace, device, weighted.rows, by, weight=weighted.weight)
    keyed = group_codes(trace, device, weighted.rows, by)
    codes, code = np.unique(keyed.codes, return_inverse=True)
    names = [keyed.name(int(number))[0] for number in codes]
    return Breakdown(groups, dict(zip(names, weighted.largest(weighted.sums(code, len(codes))), strict=True)))


def weighted_stacks(
    trace: Trace, device: DeviceTrace, weighted: WeightedRows, path: Path = (), *, most_nodes: int = 200
) -> StackBreakdown:
    """Return the breakdown of the weighted allocations below the path."""
    under_path = weighted.below(trace, device, path)
    most = most_nodes + len(path)
    tree, ends = tree_with_ends(trace, device, under_path.rows, most_nodes=most, weight=under_path.weight)
    sums = under_path.sums(ends, len(tree))
    for row in range(len(tree) - 1, 0, -1):
        sums[tree.parent[row]] += sums[row]
    # Rows come level by level, so that the nodes of the path are the first ones.
    node = len(path) if len(under_path.rows) else 0
    return StackBreakdown(path, node, tree, tuple(under_path.largest(sums)))
