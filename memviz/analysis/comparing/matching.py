"""Matching of allocations across traces: which of them come from the same site, stack, category or group.

A site is a line and the operator that allocated, as long as the function's lines are the same in all traces that
have it; where they have moved, it is the function. Operators count only where every trace recorded them. Keys are
computed per stack where possible, so that a million allocations cost one look-up each.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from typing import TypeVar

import numpy as np

from memviz.analysis.cache import cached
from memviz.analysis.callstacks.sites import (
    NO_OPERATOR,
    FrameKind,
    Site,
    frame_kinds,
    operator_name,
    operators,
    path_of,
    sites,
)
from memviz.analysis.groups import group_codes
from memviz.analysis.lifetimes import lifetimes
from memviz.analysis.purpose.phases import label_of_rows
from memviz.errors import UsageError
from memviz.trace.intern import distinct
from memviz.trace.model import DeviceTrace, Ints8, Trace

Pair = tuple[Trace, DeviceTrace]
Place = tuple[str, str]
"""Path and function."""


@dataclass(frozen=True)
class MatchKey:
    key: str
    """The same in all traces of one comparison; two things never share one."""
    label: str
    operator: str = ""
    function: str = ""
    """Function of a line in the source."""

    @property
    def detail(self) -> str:
        """Text that distinguishes two keys with the same label."""
        return self.operator or self.function

    @property
    def name(self) -> str:
        """Name of a row, the same wherever it is shown."""
        return f"{self.label} {self.detail}".strip()


Numbered = tuple[Ints8, list[MatchKey]]
"""Key index per stack or row of one trace, and the keys."""


@dataclass(frozen=True, eq=False)
class Matching:
    by: str
    things: tuple[MatchKey, ...]
    of_code: tuple[Ints8, ...]
    """Per trace: the thing of each stack (and last of no stack), or of each row of `lifetimes`."""

    def of_rows(self, number: int, side: Pair, rows: Ints8 | slice = slice(None)) -> Ints8:
        """The thing of these rows of `lifetimes` of trace `number`."""
        of_code = self.of_code[number]
        return np.asarray(of_code[lifetimes(side[1]).stack[rows] if self.by in _BY_STACK else rows], dtype=np.int64)

    def rows_of(self, number: int, side: Pair, key: str) -> Ints8:
        """All allocations with this key, at any time; empty for an unused key."""
        wanted = [i for i, thing in enumerate(self.things) if thing.key == key]
        return np.flatnonzero(np.isin(self.of_rows(number, side), wanted))


def match_allocations(sides: Sequence[Pair], by: str = "site") -> Matching:
    if by not in GROUPINGS:
        raise UsageError(f"Cannot compare by {by!r}. Choose one of {', '.join(GROUPINGS)}.")
    numbered = _BY_STACK[by](sides) if by in _BY_STACK else [_group_keys(*side, by) for side in sides]
    numbers: dict[str, int] = {}
    things: list[MatchKey] = []
    of_code = []
    for own_number, own_things in numbered:
        for thing in own_things:
            if numbers.setdefault(thing.key, len(things)) == len(things):
                things.append(thing)
        of_code.append(np.array([numbers[thing.key] for thing in own_things], dtype=np.int64)[own_number])
    return Matching(by, tuple(things), tuple(of_code))


@cached
def _group_keys(trace: Trace, device: DeviceTrace, by: str) -> Numbered:
    """Groups with the same names in every trace."""
    keyed = group_codes(trace, device, np.arange(len(lifetimes(device))), by)
    codes = distinct(keyed.codes)
    return np.searchsorted(codes, keyed.codes), [MatchKey(*keyed.name(int(code))) for code in codes]


def has_holders(side: Pair) -> bool:
    return side[1].holders is not None


def has_modules(side: Pair) -> bool:
    modules = label_of_rows(side[1], "module")
    return modules is not None and bool(modules.any())


# Two files match if their paths have the same tail: as many trailing parts are compared as make the files of each
# single trace unique. So home, checkout and virtual environment never count, and a file at the same path in both
# always matches.


def common_tails(sides: Sequence[Collection[Place]]) -> dict[Place, str]:
    """For each place the part of its path that counts."""
    matching: dict[Place, set[str]] = {}
    for path, function in (place for side in sides for place in side):
        matching.setdefault((path.rpartition("/")[2], function), set()).add(path)
    tails: dict[Place, str] = {}
    for (_, function), paths in matching.items():
        parts = {path: [part for part in path.split("/") if part] for path in paths}
        depth = _depth(parts, [[path for path in paths if (path, function) in side] for side in sides])
        tails.update(((path, function), "/".join(parts[path][-depth:])) for path in paths)
    return tails


def _depth(parts: dict[str, list[str]], sides: Sequence[Collection[str]]) -> int:
    """Number of trailing path parts that make the paths of each side unique."""
    deepest = max(map(len, parts.values()), default=1)
    for depth in range(1, deepest):
        if all(len({tuple(parts[path][-depth:]) for path in side}) == len(side) for side in sides):
            return depth
    return max(deepest, 1)


# An edit above a function moves its lines.

Home = TypeVar("Home", bound=Hashable)


def _moved_functions(calls: Sequence[Iterable[tuple[Home, int]]]) -> dict[Home, set[int]]:
    """Return the lines of functions of which two traces share no more than half of what the one with fewer has seen.

    `calls` are functions and lines, per trace. Another branch taken adds or leaves out a line or two; an edit above
    moves all of them.
    """
    seen: dict[Home, list[set[int]]] = {}
    for number, of_trace in enumerate(calls):
        for home, line in of_trace:
            seen.setdefault(home, [set() for _ in calls])[number].add(line)
    return {home: set().union(*lines) for home, lines in seen.items() if not _share_lines(lines)}


def _share_lines(places: Sequence[set[int]]) -> bool:
    by_size = sorted((lines for lines in places if lines), key=len)
    return all(2 * len(small & large) > len(small) for small, large in pairwise(by_size))


# Two stacks are the same if their user frames and the operator that took the memory are. Frames of libraries do not
# count, so another version of torch makes no other stack.

_SHOWN = 3


def _match_stacks(sides: Sequence[Pair]) -> list[Numbered]:
    traces = [trace for trace, _ in sides]
    user_places = [np.flatnonzero((frame_kinds(trace) == FrameKind.USER)[trace.stacks.indices]) for trace in traces]
    calls = [_calls(trace, places) for trace, places in zip(traces, user_places, strict=True)]
    moved = _moved_functions([call.values() for call in calls])
    texts = [
        {frame: home if home in moved else f"{home}:{line}" for frame, (home, line) in call.items()} for call in calls
    ]
    return [
        _stack_keys(trace, _sequences(trace, places), text, operator)
        for trace, places, text, operator in zip(traces, user_places, texts, _comparable_operators(traces), strict=True)
    ]


def _calls(trace: Trace, places: Ints8) -> dict[int, tuple[str, int]]:
    """Return the file and function, and the line, of each frame."""
    frames, strings = trace.stacks.frames, trace.strings
    return {
        frame: (f"{_file(trace, frame)} {strings[frames.name[frame]]}", int(frames.line[frame]))
        for frame in np.unique(trace.stacks.indices[places]).tolist()
    }


def _file(trace: Trace, frame: int) -> str:
    return path_of(trace.strings[trace.stacks.frames.filename[frame]]).rpartition("/")[2]


def _sequences(trace: Trace, places: Ints8) -> list[tuple[int, ...]]:
    """Per stack its user frames, innermost first; the empty one at the end is NO_STACK's."""
    members = trace.stacks.indices[places].tolist()
    bounds = np.searchsorted(places, trace.stacks.offsets).tolist()
    return [*(tuple(members[a:b]) for a, b in pairwise(bounds)), ()]


def _stack_keys(trace: Trace, sequences: list[tuple[int, ...]], texts: dict[int, str], operator_of: Ints8) -> Numbered:
    table = sites(trace)
    numbers: dict[tuple[tuple[int, ...], int, int], int] = {}
    keys: list[MatchKey] = []
    of_stack = []
    for sequence, site, operator in zip(sequences, table.of_stack.tolist(), operator_of.tolist(), strict=True):
        # Without user frames, stacks differ only by their site.
        same = (sequence, NO_OPERATOR if sequence else site, operator)
        if same not in numbers:
            numbers[same] = len(keys)
            keys.append(_stack_key(trace, sequence, texts, operator_name(trace, operator), table.sites[site].label))
        of_stack.append(numbers[same])
    return np.array(of_stack, dtype=np.int64), keys


def _stack_key(trace: Trace, sequence: tuple[int, ...], texts: dict[int, str], operator: str, site: str) -> MatchKey:
    full = "\n".join([operator, *(texts[frame] for frame in sequence)]) if sequence else f"{operator}\n\n{site}"
    key = blake2b(full.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    visible = [f"{_file(trace, frame)}:{trace.stacks.frames.line[frame]}" for frame in sequence[:_SHOWN]]
    return MatchKey(key, " ← ".join(visible) or site, operator)


def _comparable_operators(traces: Sequence[Trace]) -> list[Ints8]:
    """Per trace and stack. A trace without C++ frames would share no site with the others, if they counted."""
    by_trace = [operators(trace) for trace in traces]
    seen_by_all = all((codes != NO_OPERATOR).any() for codes in by_trace)
    return by_trace if seen_by_all else [np.full(len(codes), NO_OPERATOR) for codes in by_trace]


def _match_sites(sides: Sequence[Pair]) -> list[Numbered]:
    """One thing for all stacks of one site and operator."""
    used = [_used_sites(*side) for side in sides]
    tails = common_tails([{(site.path, site.function) for site in of_side} for of_side in used])

    def home_of(site: Site) -> Place:
        return tails.get((site.path, site.function), site.path), site.function

    moved = _moved_functions([[(home_of(site), site.line) for site in of_side] for of_side in used])

    def key_of(site: Site, operator: str) -> MatchKey:
        if not site.path:
            return MatchKey(f"{site.key}\n{operator}", site.label, "" if operator in site.label else operator)
        home = path, function = home_of(site)
        lines = str(site.line)
        if home in moved:
            ordered = sorted(moved[home])
            lines = ", ".join(map(str, ordered)) if len(ordered) <= 3 else f"{ordered[0]}-{ordered[-1]}"
        key = f"{path} {function}" if home in moved else f"{path}:{lines} {function}"
        return MatchKey(f"{key}\n{operator}", f"{path}:{lines}", operator, function)

    numbered = []
    for (trace, _), operator_of in zip(sides, _comparable_operators([trace for trace, _ in sides]), strict=True):
        table = sites(trace)
        width = int(operator_of.max(initial=NO_OPERATOR)) + 2
        codes = table.of_stack.astype(np.int64) * width + operator_of - NO_OPERATOR
        pairs, number_of_stack = np.unique(codes, return_inverse=True)
        keys = [
            key_of(table.sites[pair // width], operator_name(trace, pair % width + NO_OPERATOR))
            for pair in pairs.tolist()
        ]
        numbered.append((number_of_stack, keys))
    return numbered


def _used_sites(trace: Trace, device: DeviceTrace) -> list[Site]:
    """Return the sites of allocations; a site that only frees tensors must not move a line."""
    table = sites(trace)
    used = np.bincount(lifetimes(device).stack + 1, minlength=len(table.of_stack)) > 0
    # Counted from NO_STACK on, which `of_stack` keeps at its end.
    codes = np.unique(np.roll(table.of_stack, 1)[used])
    return [table.sites[code] for code in codes.tolist()]


def _match_lines(sides: Sequence[Pair]) -> list[Numbered]:
    """Match by file and line, ignoring function and operator; a line that moved does not match."""
    used = [_used_sites(*side) for side in sides]
    tails = common_tails([{(site.path, "") for site in of_side if site.path} for of_side in used])

    def key_of(site: Site) -> MatchKey:
        line = f"{tails.get((site.path, ''), site.path)}:{site.line}" if site.path else site.label
        return MatchKey(line if site.path else site.key, line)

    tables = [sites(trace) for trace, _ in sides]
    return [(table.of_stack.astype(np.int64), [key_of(site) for site in table.sites]) for table in tables]


_BY_STACK: dict[str, Callable[[Sequence[Pair]], list[Numbered]]] = {
    "site": _match_sites,
    "line": _match_lines,
    "stack": _match_stacks,
}
"""Matched for each stack, however many rows share it."""
GROUPINGS = (*_BY_STACK, "category", "module", "holder", "phase", "annotation", "stream", "pool", "size")
