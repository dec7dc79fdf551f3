"""Matching of allocations across traces: which of them come from the same site, stack, category or group.

A site is a line and the operator that took the memory, as long as the function's lines are the same in all traces
that have it; where they have moved, it is the function. Operators count only where every trace recorded them.
What is known per stack is decided per stack, so that a million allocations cost one look-up each.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TypeVar

import numpy as np

from memviz.analysis.cache import cached_on
from memviz.analysis.callstacks.frames import DEFAULT_RULE, FrameKind, SiteRule, frame_kinds, path_of
from memviz.analysis.callstacks.sites import NO_OPERATOR, Site, operator_name, operators, sites
from memviz.analysis.groups import keyed_by
from memviz.analysis.lifetimes import lifetimes
from memviz.analysis.purpose.categories import KINDS, kinds
from memviz.analysis.purpose.phases import label_of_rows
from memviz.errors import UsageError
from memviz.trace.model import DeviceTrace, Ints4, Ints8, Trace

# Two files are the same if their paths end alike: as many of the last parts are compared as it takes to tell the files
# of each single trace apart. So home, checkout and virtual environment never count, and a file at the same path in
# both always matches.

Place = tuple[str, str]
"""Path and function."""


def common_tails(sides: Sequence[Collection[Place]]) -> dict[Place, str]:
    """For each place the part of its path that counts."""
    alike: dict[Place, set[str]] = {}
    for path, function in (place for side in sides for place in side):
        alike.setdefault((path.rpartition("/")[2], function), set()).add(path)
    tails: dict[Place, str] = {}
    for (_, function), paths in alike.items():
        parts = {path: [part for part in path.split("/") if part] for path in paths}
        depth = _depth(parts, [[path for path in paths if (path, function) in side] for side in sides])
        tails.update(((path, function), "/".join(parts[path][-depth:])) for path in paths)
    return tails


def _depth(parts: dict[str, list[str]], sides: Sequence[Collection[str]]) -> int:
    """How many last parts tell the paths of each side apart."""
    deepest = max(map(len, parts.values()), default=1)
    for depth in range(1, deepest):
        if all(len({tuple(parts[path][-depth:]) for path in side}) == len(side) for side in sides):
            return depth
    return max(deepest, 1)


# An edit above a function moves its lines.

Home = TypeVar("Home", bound=Hashable)
Lines = dict[str, list[set[int]]]
"""Per function the lines that each trace has seen of it."""


def moved_functions(lines: Mapping[Home, Sequence[set[int]]]) -> set[Home]:
    """Functions of which two traces share no more than half of the lines that the one with fewer has seen.

    Another branch taken adds or leaves out a line or two; an edit above moves all of them.
    """
    return {home for home, places in lines.items() if not _share_lines(places)}


def _share_lines(places: Sequence[set[int]]) -> bool:
    by_size = sorted((lines for lines in places if lines), key=len)
    pairs = zip(by_size, by_size[1:], strict=False)
    return all(2 * len(small & large) > len(small) for small, large in pairs)


def lines_text(lines: Collection[int]) -> str:
    ordered = sorted(lines)
    return ", ".join(map(str, ordered)) if len(ordered) <= 3 else f"{ordered[0]}-{ordered[-1]}"


# Two stacks are the same if their user frames and the operator that took the memory are. Frames of libraries do not
# count, so another version of torch makes no other stack.

_SHOWN = 3


@dataclass(frozen=True)
class StackName:
    key: str
    label: str
    operator: str


def stack_names(
    traces: Sequence[Trace], operator_of: Sequence[Ints8], rule: SiteRule
) -> list[tuple[Ints8, list[StackName]]]:
    """Per trace the number of each stack's name (one more for NO_STACK), and the names."""
    frames = [_own_frames(trace, rule) for trace in traces]
    calls = [_calls(trace, own) for trace, own in zip(traces, frames, strict=True)]
    lines: Lines = {}
    for number, call in enumerate(calls):
        for home, line in call.values():
            lines.setdefault(home, [set() for _ in traces])[number].add(line)
    gone = moved_functions(lines)
    texts = [
        {frame: home if home in gone else f"{home}:{line}" for frame, (home, line) in call.items()} for call in calls
    ]
    return [
        _named_stacks(trace, _sequences(trace, own), text, operator, rule)
        for trace, own, text, operator in zip(traces, frames, texts, operator_of, strict=True)
    ]


def _own_frames(trace: Trace, rule: SiteRule) -> Ints8:
    """Places in `Stacks.indices` that are a person's own."""
    return np.flatnonzero((frame_kinds(trace, rule) == FrameKind.USER)[trace.stacks.indices])


def _calls(trace: Trace, own: Ints8) -> dict[int, tuple[str, int]]:
    """Return the file and function, and the line, of each frame."""
    frames, strings = trace.stacks.frames, trace.strings
    return {
        frame: (f"{_file(strings[frames.filename[frame]])} {strings[frames.name[frame]]}", int(frames.line[frame]))
        for frame in np.unique(trace.stacks.indices[own]).tolist()
    }


def _file(path: str) -> str:
    return path_of(path).rpartition("/")[2]


def _sequences(trace: Trace, own: Ints8) -> list[tuple[int, ...]]:
    """Per stack its own frames, innermost first; the empty one at the end is NO_STACK's."""
    members = trace.stacks.indices[own].tolist()
    bounds = np.searchsorted(own, trace.stacks.offsets).tolist()
    return [*(tuple(members[a:b]) for a, b in zip(bounds, bounds[1:], strict=False)), ()]


def _named_stacks(
    trace: Trace, sequences: list[tuple[int, ...]], texts: dict[int, str], operator_of: Ints8, rule: SiteRule
) -> tuple[Ints8, list[StackName]]:
    site_of = sites(trace, rule).of_stack.tolist()
    numbers: dict[tuple[tuple[int, ...], int, int], int] = {}
    names: list[StackName] = []
    of_stack = []
    for sequence, site, operator in zip(sequences, site_of, operator_of.tolist(), strict=True):
        # Without frames of one's own, the site is all that tells two stacks apart.
        same = (sequence, NO_OPERATOR if sequence else site, operator)
        if same not in numbers:
            numbers[same] = len(names)
            names.append(
                _stack_name(
                    trace, sequence, texts, operator_name(trace, operator), sites(trace, rule).sites[site].label
                )
            )
        of_stack.append(numbers[same])
    return np.array(of_stack, dtype=np.int64), names


def _stack_name(trace: Trace, sequence: tuple[int, ...], texts: dict[int, str], operator: str, site: str) -> StackName:
    frames, strings = trace.stacks.frames, trace.strings
    full = "\n".join([operator, *(texts[frame] for frame in sequence)]) if sequence else f"{operator}\n\n{site}"
    key = blake2b(full.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    shown = [f"{_file(strings[frames.filename[frame]])}:{frames.line[frame]}" for frame in sequence[:_SHOWN]]
    return StackName(key, " ← ".join(shown) or site, operator)


Pair = tuple[Trace, DeviceTrace]
Named = tuple[Ints8, list["MatchKey"]]
"""Keys of one trace: a number per own code, and the key of each number."""
_ALL = slice(None)


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


@dataclass(frozen=True, eq=False)
class Matching:
    by: str
    things: tuple[MatchKey, ...]
    of_code: tuple[Ints8, ...]
    """Per trace: the thing of each of its own codes, which are stacks, categories or texts."""
    rule: SiteRule = DEFAULT_RULE

    def of_rows(self, number: int, side: Pair, rows: Ints8 | slice = _ALL) -> Ints8:
        """The thing of these rows of `lifetimes` of trace `number`."""
        return np.asarray(self.of_code[number][_codes(side, self.by, self.rule)[rows]], dtype=np.int64)

    def rows_of(self, number: int, side: Pair, key: str) -> Ints8:
        """All its allocations, wherever in time; none for a key that nothing has."""
        wanted = [i for i, thing in enumerate(self.things) if thing.key == key]
        return np.flatnonzero(np.isin(self.of_rows(number, side), wanted))


def match_allocations(sides: Sequence[Pair], by: str = "site", *, rule: SiteRule = DEFAULT_RULE) -> Matching:
    if by not in GROUPINGS:
        raise UsageError(f"{by!r} is nothing to compare by; there are {', '.join(GROUPINGS)}.")
    numbers: dict[str, int] = {}
    things: list[MatchKey] = []
    of_code = []
    for number_of_code, named in _NAMES[by](sides, rule) if by in _NAMES else _by_own_names(sides, by, rule):
        for thing in named:
            if numbers.setdefault(thing.key, len(things)) == len(things):
                things.append(thing)
        of_name = np.array([numbers[thing.key] for thing in named], dtype=np.int64)
        of_code.append(of_name[number_of_code])
    return Matching(by, tuple(things), tuple(of_code), rule)


def _stack_codes(trace: Trace, device: DeviceTrace) -> Ints4:
    """NO_STACK (-1) finds the last entry of a table, as in `sites.Sites.of_stack`."""
    return lifetimes(device).stack


def _module_codes(trace: Trace, device: DeviceTrace) -> Ints8:
    modules = label_of_rows(device, "module")
    return np.zeros(len(lifetimes(device)), np.int64) if modules is None else modules.astype(np.int64)


def has_modules(side: Pair) -> bool:
    return bool(_module_codes(*side).any())


def _by_category(sides: Sequence[Pair], rule: SiteRule) -> list[Named]:
    return [(np.arange(len(KINDS)), [MatchKey(kind, kind) for kind in KINDS]) for _ in sides]


def _by_module(sides: Sequence[Pair], rule: SiteRule) -> list[Named]:
    return [_modules(*side) for side in sides]


def _modules(trace: Trace, device: DeviceTrace) -> Named:
    # Text 0, no module, is there even in a trace without allocations.
    known = np.union1d([0], np.flatnonzero(np.bincount(_module_codes(trace, device))))
    numbers = np.zeros(len(trace.strings), dtype=np.int64)
    numbers[known] = np.arange(len(known))
    texts = [trace.strings[code] for code in known.tolist()]
    return numbers, [MatchKey(text, text or "no module recorded") for text in texts]


def _by_stack(sides: Sequence[Pair], rule: SiteRule) -> list[Named]:
    traces = [trace for trace, _ in sides]
    names_of_stacks = stack_names(traces, _operators_of(traces, rule), rule)
    return [
        (of_stack, [MatchKey(name.key, name.label, name.operator) for name in names])
        for of_stack, names in names_of_stacks
    ]


def _by_site(sides: Sequence[Pair], rule: SiteRule) -> list[Named]:
    naming = _Naming(sides, rule)
    return [_sites(number, naming) for number in range(len(sides))]


def _sites(number: int, naming: _Naming) -> Named:
    """One thing for all stacks of one site and operator."""
    site_of = sites(naming.traces[number], naming.rule).of_stack.astype(np.int64)
    operator_of = naming.operators[number]
    width = int(operator_of.max(initial=NO_OPERATOR)) + 2
    pairs, number_of_stack = np.unique(site_of * width + operator_of - NO_OPERATOR, return_inverse=True)
    things = [naming.thing(number, pair // width, pair % width + NO_OPERATOR) for pair in pairs.tolist()]
    return number_of_stack, things


def _operators_of(traces: Sequence[Trace], rule: SiteRule) -> list[Ints8]:
    """Per trace and stack. A trace without C++ frames would share no site with the others, if they counted."""
    by_trace = [operators(trace, rule) for trace in traces]
    seen_by_all = all((codes != NO_OPERATOR).any() for codes in by_trace)
    return by_trace if seen_by_all else [np.full(len(codes), NO_OPERATOR) for codes in by_trace]


class _Naming:
    """Sites of all traces together: which parts of paths count, and which functions' lines have moved."""

    def __init__(self, sides: Sequence[Pair], rule: SiteRule) -> None:
        self.traces = [trace for trace, _ in sides]
        self.rule = rule
        self.operators = _operators_of(self.traces, rule)
        used = [_used_sites(*side, rule) for side in sides]
        self.tails = common_tails([{_place_of(site) for site in of_side} for of_side in used])
        lines: dict[Place, list[set[int]]] = {}
        for number, of_side in enumerate(used):
            for site in of_side:
                lines.setdefault(self._home(site), [set() for _ in sides])[number].add(site.line)
        self.moved = moved_functions(lines)
        self.lines = {home: set().union(*lines[home]) for home in self.moved}

    def _home(self, site: Site) -> Place:
        return self.tails.get(_place_of(site), site.path), site.function

    def thing(self, number: int, code: int, operator: int) -> MatchKey:
        site = sites(self.traces[number], self.rule).sites[code]
        name = operator_name(self.traces[number], operator)
        if not site.path:
            return MatchKey(f"{site.key}\n{name}", site.label, "" if name in site.label else name)
        home = self._home(site)
        has_moved = home in self.moved
        lines = lines_text(self.lines[home]) if has_moved else str(site.line)
        key = " ".join(home) if has_moved else f"{home[0]}:{lines} {home[1]}"
        return MatchKey(f"{key}\n{name}", f"{home[0]}:{lines}", name, site.function)


def _used_sites(trace: Trace, device: DeviceTrace, rule: SiteRule) -> list[Site]:
    """Return the sites of allocations; a site that only frees tensors must not move a line."""
    table = sites(trace, rule)
    used = np.bincount(lifetimes(device).stack + 1, minlength=len(table.of_stack)) > 0
    # Counted from NO_STACK on, which `of_stack` keeps at its end.
    codes = np.unique(np.roll(table.of_stack, 1)[used])
    return [table.sites[code] for code in codes.tolist()]


def _place_of(site: Site) -> Place:
    return site.path, site.function


def _by_line(sides: Sequence[Pair], rule: SiteRule) -> list[Named]:
    """A line of a file, whatever function and operator; one that has moved is another."""
    used = [_used_sites(*side, rule) for side in sides]
    tails = common_tails([{(site.path, "") for site in of_side if site.path} for of_side in used])
    names_by_line = []
    for trace, _ in sides:
        table = sites(trace, rule)
        lines = [
            f"{tails.get((site.path, ''), site.path)}:{site.line}" if site.path else site.label for site in table.sites
        ]
        keys = [line if site.path else site.key for line, site in zip(lines, table.sites, strict=True)]
        things = [MatchKey(key, line) for key, line in zip(keys, lines, strict=True)]
        names_by_line.append((table.of_stack.astype(np.int64), things))
    return names_by_line


@dataclass(frozen=True, eq=False)
class _OwnNames:
    codes: Ints8
    """Per row of `lifetimes` an index into `things`."""
    things: list[MatchKey]


def _by_own_names(sides: Sequence[Pair], by: str, rule: SiteRule) -> list[Named]:
    """Groups that are called the same in every trace."""
    own_names = [_own_names(side, by, rule) for side in sides]
    return [(np.arange(len(side.things)), side.things) for side in own_names]


def _own_names(side: Pair, by: str, rule: SiteRule) -> _OwnNames:
    def make() -> _OwnNames:
        keyed = keyed_by(*side, np.arange(len(lifetimes(side[1]))), by, rule=rule)
        distinct, codes = np.unique(keyed.codes, return_inverse=True)
        return _OwnNames(codes, [MatchKey(*keyed.name(int(code))) for code in distinct])

    return cached_on(side[0], (_own_names, side[1], by, rule), make)


def _codes(side: Pair, by: str, rule: SiteRule) -> Ints8 | Ints4:
    return _CODES[by](*side) if by in _CODES else _own_names(side, by, rule).codes


_CODES: dict[str, Callable[[Trace, DeviceTrace], Ints8 | Ints4]] = {
    "site": _stack_codes,
    "line": _stack_codes,
    "stack": _stack_codes,
    "category": kinds,
    "module": _module_codes,
}
_NAMES: dict[str, Callable[[Sequence[Pair], SiteRule], list[Named]]] = {
    "site": _by_site,
    "line": _by_line,
    "stack": _by_stack,
    "category": _by_category,
    "module": _by_module,
}
GROUPINGS = (*_NAMES, "phase", "annotation", "stream", "pool", "size")
