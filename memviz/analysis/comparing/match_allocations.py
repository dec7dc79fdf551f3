"""Which allocations of several traces are of the same thing, wherever in time they were made.

A site is a line and the operator that took the memory, as long as the function's lines are the same in all traces
that have it; where they have moved, it is the function. Operators count only where every trace recorded them.

What is known per stack is decided per stack, so that a million allocations cost one look-up each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from memviz.analysis.cache import kept
from memviz.analysis.callstacks.frames import DEFAULT_RULE, SiteRule
from memviz.analysis.callstacks.operators import NO_OPERATOR, operator_name, operators
from memviz.analysis.callstacks.sites import Site, sites
from memviz.analysis.comparing.common_paths import Place, common_tails
from memviz.analysis.comparing.match_stacks import stack_names
from memviz.analysis.comparing.moved_lines import lines_text, moved
from memviz.analysis.groups import keyed_by
from memviz.analysis.lifetimes import lifetimes
from memviz.analysis.purpose.kinds import KINDS, kinds
from memviz.analysis.purpose.phases import label_of_rows
from memviz.errors import UsageError
from memviz.trace.model import DeviceTrace, Ints4, Ints8, Trace

Pair = tuple[Trace, DeviceTrace]
Named = tuple[Ints8, list["Thing"]]
"""Of one trace: per own code a number, and per number the thing."""
_ALL = slice(None)


@dataclass(frozen=True)
class Thing:
    key: str
    """The same in all traces of one comparison; two things never share one."""
    label: str
    operator: str = ""
    function: str = ""
    """Of a line in the source."""

    @property
    def detail(self) -> str:
        """What tells two things of one label apart."""
        return self.operator or self.function

    @property
    def name(self) -> str:
        """What a row is called, wherever it is shown."""
        return f"{self.label} {self.detail}".strip()


@dataclass(frozen=True, eq=False)
class Alike:
    by: str
    things: tuple[Thing, ...]
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


def alike(sides: Sequence[Pair], by: str = "site", *, rule: SiteRule = DEFAULT_RULE) -> Alike:
    if by not in GROUPINGS:
        raise UsageError(f"{by!r} is nothing to compare by; there are {', '.join(GROUPINGS)}.")
    numbers: dict[str, int] = {}
    things: list[Thing] = []
    of_code = []
    for number_of_code, named in _NAMES[by](sides, rule) if by in _NAMES else _by_own_names(sides, by, rule):
        for thing in named:
            if numbers.setdefault(thing.key, len(things)) == len(things):
                things.append(thing)
        of_name = np.array([numbers[thing.key] for thing in named], dtype=np.int64)
        of_code.append(of_name[number_of_code])
    return Alike(by, tuple(things), tuple(of_code), rule)


def _stack_codes(trace: Trace, device: DeviceTrace) -> Ints4:
    """NO_STACK (-1) finds the last entry of a table, as in `sites.Sites.of_stack`."""
    return lifetimes(device).stack


def _module_codes(trace: Trace, device: DeviceTrace) -> Ints8:
    modules = label_of_rows(device, "module")
    return np.zeros(len(lifetimes(device)), np.int64) if modules is None else modules.astype(np.int64)


def has_modules(side: Pair) -> bool:
    return bool(_module_codes(*side).any())


def _by_category(sides: Sequence[Pair], rule: SiteRule) -> list[Named]:
    return [(np.arange(len(KINDS)), [Thing(kind, kind) for kind in KINDS]) for _ in sides]


def _by_module(sides: Sequence[Pair], rule: SiteRule) -> list[Named]:
    return [_modules(*side) for side in sides]


def _modules(trace: Trace, device: DeviceTrace) -> Named:
    # Text 0, no module, is there even in a trace without allocations.
    known = np.union1d([0], np.flatnonzero(np.bincount(_module_codes(trace, device))))
    numbers = np.zeros(len(trace.strings), dtype=np.int64)
    numbers[known] = np.arange(len(known))
    texts = [trace.strings[code] for code in known.tolist()]
    return numbers, [Thing(text, text or "no module recorded") for text in texts]


def _by_stack(sides: Sequence[Pair], rule: SiteRule) -> list[Named]:
    traces = [trace for trace, _ in sides]
    names_of_stacks = stack_names(traces, _operators_of(traces, rule), rule)
    return [
        (of_stack, [Thing(name.key, name.label, name.operator) for name in names])
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
        self.tails = common_tails([{_place(site) for site in of_side} for of_side in used])
        lines: dict[Place, list[set[int]]] = {}
        for number, of_side in enumerate(used):
            for site in of_side:
                lines.setdefault(self._home(site), [set() for _ in sides])[number].add(site.line)
        self.moved = moved(lines)
        self.lines = {home: set().union(*lines[home]) for home in self.moved}

    def _home(self, site: Site) -> Place:
        return self.tails.get(_place(site), site.path), site.function

    def thing(self, number: int, code: int, operator: int) -> Thing:
        site = sites(self.traces[number], self.rule).sites[code]
        name = operator_name(self.traces[number], operator)
        if not site.path:
            return Thing(f"{site.key}\n{name}", site.label, "" if name in site.label else name)
        home = self._home(site)
        has_moved = home in self.moved
        lines = lines_text(self.lines[home]) if has_moved else str(site.line)
        key = " ".join(home) if has_moved else f"{home[0]}:{lines} {home[1]}"
        return Thing(f"{key}\n{name}", f"{home[0]}:{lines}", name, site.function)


def _used_sites(trace: Trace, device: DeviceTrace, rule: SiteRule) -> list[Site]:
    """Of allocations: what only frees a tensor moves no line."""
    table = sites(trace, rule)
    used = np.bincount(lifetimes(device).stack + 1, minlength=len(table.of_stack)) > 0
    # Counted from NO_STACK on, which `of_stack` keeps at its end.
    codes = np.unique(np.roll(table.of_stack, 1)[used])
    return [table.sites[code] for code in codes.tolist()]


def _place(site: Site) -> Place:
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
        things = [Thing(key, line) for key, line in zip(keys, lines, strict=True)]
        names_by_line.append((table.of_stack.astype(np.int64), things))
    return names_by_line


@dataclass(frozen=True, eq=False)
class _OwnNames:
    codes: Ints8
    """Per row of `lifetimes` an index into `things`."""
    things: list[Thing]


def _by_own_names(sides: Sequence[Pair], by: str, rule: SiteRule) -> list[Named]:
    """Groups that are called the same in every trace."""
    own_names = [_own_names(side, by, rule) for side in sides]
    return [(np.arange(len(side.things)), side.things) for side in own_names]


def _own_names(side: Pair, by: str, rule: SiteRule) -> _OwnNames:
    def make() -> _OwnNames:
        keyed = keyed_by(*side, np.arange(len(lifetimes(side[1]))), by, rule=rule)
        distinct, codes = np.unique(keyed.codes, return_inverse=True)
        return _OwnNames(codes, [Thing(*keyed.name(int(code))) for code in distinct])

    return kept(side[0], (_own_names, side[1], by, rule), make)


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
