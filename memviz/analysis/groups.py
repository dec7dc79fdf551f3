"""Group any set of allocations by site or kind: the groups, largest first, and the exact remainder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from memviz.analysis.annotations import annotated, annotation_of_events
from memviz.analysis.callstacks.sites import sites, with_line
from memviz.analysis.holders import holder_rows
from memviz.analysis.lifetimes import BEFORE, lifetimes
from memviz.analysis.purpose.categories import KINDS, kinds
from memviz.analysis.purpose.phases import label_of_rows, phases
from memviz.analysis.sums import sum_by
from memviz.errors import UsageError
from memviz.trace.model import DeviceTrace, Ints8, Phase, Trace
from memviz.units import count_text


@dataclass(frozen=True)
class Group:
    key: str
    """The same in every trace for the same thing; two groups never share one."""
    label: str
    bytes: int
    count: int
    stack: int | None = None
    """The stack that most of its bytes have; None where none was recorded."""
    last_event: int = BEFORE
    """The alloc that came last; -1 where all were there before the first event."""


@dataclass(frozen=True)
class Groups:
    by: str
    groups: tuple[Group, ...]
    """Groups by bytes, largest first."""
    bytes: int
    count: int
    rest_bytes: int = 0
    """Bytes of the groups beyond the requested number."""
    rest_count: int = 0


@dataclass(frozen=True)
class GroupCodes:
    """Which group each row belongs to, as small numbers, and what such a number means."""

    codes: npt.NDArray[Any]
    name: Callable[[int], tuple[str, str]]
    """Key and label of a code."""


def group_rows(
    trace: Trace,
    device: DeviceTrace,
    rows: Ints8,
    by: str = "site",
    *,
    top: int | None = None,
    weight: Ints8 | None = None,
) -> Groups:
    """`rows` are rows of `lifetimes`; `by` is one of `GROUPINGS`; `weight` replaces bytes."""
    keyed = group_codes(trace, device, rows, by)
    all_rows = lifetimes(device)
    size, stack = all_rows.size[rows] if weight is None else weight, all_rows.stack[rows]
    distinct, codes = np.unique(keyed.codes, return_inverse=True)
    totals, counts = sum_by(codes, size, len(distinct)), np.bincount(codes, minlength=len(distinct))
    keys = [(*keyed.name(int(code)), i) for i, code in enumerate(distinct)]
    order = sorted(keys, key=lambda entry: (-int(totals[entry[2]]), entry[1], entry[0]))
    top_keys = order if top is None else order[:top]
    heaviest = _heaviest_stacks(codes, stack, size)
    last = np.full(len(distinct), BEFORE)
    np.maximum.at(last, codes, all_rows.start[rows])
    groups = tuple(
        Group(key, label, int(totals[i]), int(counts[i]), int(heaviest[i]) if heaviest[i] >= 0 else None, int(last[i]))
        for key, label, i in top_keys
    )
    total, count = int(size.sum()), len(rows)
    rest_bytes = total - sum(group.bytes for group in groups)
    return Groups(by, groups, total, count, rest_bytes, count - sum(group.count for group in groups))


def _heaviest_stacks(codes: Ints8, stack: npt.NDArray[Any], size: Ints8) -> Ints8:
    """Per code the stack with most bytes; the lowest number where several are equal."""
    if not len(codes):
        return codes
    width = int(stack.max()) + 2
    pairs, pair_of = np.unique(codes * width + stack + 1, return_inverse=True)
    order = np.lexsort((pairs, -sum_by(pair_of, size, len(pairs)), pairs // width))
    first = np.concatenate([np.ones(1, np.bool_), np.diff(pairs[order] // width) != 0])
    return np.asarray(pairs[order][first] % width - 1, dtype=np.int64)


def group_codes(trace: Trace, device: DeviceTrace, rows: Ints8, by: str = "site") -> GroupCodes:
    if by not in GROUPINGS:
        raise UsageError(f"Unknown grouping {by!r}. Choose one of {', '.join(GROUPINGS)}.")
    return GROUPINGS[by](trace, device, rows)


def _by_site(trace: Trace, device: DeviceTrace, rows: Ints8) -> GroupCodes:
    table = sites(trace)
    codes = table.of_stack[lifetimes(device).stack[rows]]
    return GroupCodes(codes, lambda code: (table.sites[code].key, table.sites[code].label))


def _by_line(trace: Trace, device: DeviceTrace, rows: Ints8) -> GroupCodes:
    """Sites of one line are one group, whichever function's they are: nested functions share lines."""
    table = sites(trace)
    lines = [
        (with_line(site.path, site.line), site.label.removesuffix(f" {site.function}"))
        if site.path
        else (site.key, site.label)
        for site in table.sites
    ]
    numbers = {line: i for i, line in enumerate(dict.fromkeys(lines))}
    code_of_site = np.array([numbers[line] for line in lines])
    names = list(numbers)
    return GroupCodes(code_of_site[table.of_stack[lifetimes(device).stack[rows]]], names.__getitem__)


def _by_module(trace: Trace, device: DeviceTrace, rows: Ints8) -> GroupCodes:
    modules = label_of_rows(device, "module")
    codes = np.zeros(len(rows), dtype=np.int32) if modules is None else modules[rows]
    return GroupCodes(codes, lambda code: (trace.strings[code], trace.strings[code] or "no module recorded"))


def _by_pool(trace: Trace, device: DeviceTrace, rows: Ints8) -> GroupCodes:
    def name(code: int) -> tuple[str, str]:
        first, second = trace.pools[code]
        return f"{first},{second}", f"pool {first}, {second}" if (first, second) != (0, 0) else "default pool"

    return GroupCodes(lifetimes(device).pool[rows], name)


def _by_stream(trace: Trace, device: DeviceTrace, rows: Ints8) -> GroupCodes:
    def name(code: int) -> tuple[str, str]:
        handle = trace.streams[code]
        return str(handle), f"stream {handle}" if handle else "default stream"

    return GroupCodes(lifetimes(device).stream[rows], name)


def _by_annotation(trace: Trace, device: DeviceTrace, rows: Ints8) -> GroupCodes:
    """Innermost annotation around the alloc, with an own group for allocations from before the first event."""
    start, before, outside = lifetimes(device).start[rows], -2, -1
    names = np.append(annotated(device).name, outside)
    codes = np.full(len(rows), before)
    begun = start >= 0
    codes[begun] = names[annotation_of_events(device, start[begun])]

    def name(code: int) -> tuple[str, str]:
        # Keys of real annotations start with a quote, so that none collides with these two.
        if code >= 0:
            return f"'{trace.strings[code]}", trace.strings[code]
        return ("before the first event",) * 2 if code == before else ("no annotation",) * 2

    return GroupCodes(codes, name)


def _by_holder(trace: Trace, device: DeviceTrace, rows: Ints8) -> GroupCodes:
    """The variable that keeps an allocation, as last noted."""
    at, holders = holder_rows(device)[rows], device.holders
    codes = np.full(len(rows), -1) if holders is None else np.where(at >= 0, holders.owner[at], -1)

    def name(code: int) -> tuple[str, str]:
        # Quoted, so that no variable's key is that of the rest.
        return (f"'{trace.strings[code]}", trace.strings[code]) if code >= 0 else ("no holder recorded",) * 2

    return GroupCodes(codes, name)


GROUPINGS: dict[str, Callable[[Trace, DeviceTrace, Ints8], GroupCodes]] = {
    "site": _by_site,
    "line": _by_line,
    "stack": lambda trace, device, rows: GroupCodes(
        lifetimes(device).stack[rows], lambda stack: (f"stack {stack}", sites(trace).of(stack).label)
    ),
    "category": lambda trace, device, rows: GroupCodes(kinds(trace, device, rows), lambda code: (KINDS[code],) * 2),
    "module": _by_module,
    "holder": _by_holder,
    "phase": lambda trace, device, rows: GroupCodes(
        phases(trace, device)[rows], lambda code: (Phase(code).name.lower(),) * 2
    ),
    "annotation": _by_annotation,
    "stream": _by_stream,
    "pool": _by_pool,
    "size": lambda trace, device, rows: GroupCodes(
        lifetimes(device).size[rows], lambda size: (str(size), f"{count_text(size)} B each")
    ),
}
