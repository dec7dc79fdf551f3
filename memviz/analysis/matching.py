"""The same place in the source of two programs: on another machine, in another folder, some lines further down.

Two files are the same if they end alike: as many of the last parts of their paths are compared as it takes to
tell the files of each single trace apart. So the machine's part of a path (home, checkout, virtual environment)
never counts, and a file that lies at the same path in both always matches.

Lines move between versions of a program. Where two traces have most lines of a function in common, the function
has not changed, and each line is a site of its own (a model in one file has many that are called `forward`);
where they have not, all its lines are one site. A stack is the files and functions of its Python frames.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from memviz.analysis.frames import LAST_PYTHON_KIND, SiteRule, frame_kinds, path_of
from memviz.analysis.lifetimes import lifetimes
from memviz.analysis.sites import NO_SITE, Site, short_native, sites
from memviz.analysis.sums import sum_by
from memviz.trace.model import DeviceTrace, Ints8, Trace

Place = tuple[str, str]
"""Path and function. The path is empty below Python, where the function alone tells."""

PLACES = ("site", "line", "stack")
"""Groupings whose keys depend on the machine."""


@dataclass(frozen=True)
class Held:
    """What one trace has at one place."""

    key: str
    label: str
    bytes: int
    count: int
    site: Site = NO_SITE


def held_by_place(trace: Trace, device: DeviceTrace, rows: Ints8, by: str, *, rule: SiteRule) -> list[Held]:
    """Per site; per stack where `by` is that. Keys are the trace's own until `held_alike` compares them."""
    table, stack = sites(trace, rule), lifetimes(device).stack[rows]
    found, codes = np.unique(stack if by == "stack" else table.of_stack[stack], return_inverse=True)
    totals, counts = sum_by(codes, lifetimes(device).size[rows], len(found)), np.bincount(codes, minlength=len(found))
    held = []
    for code, total, count in zip(found.tolist(), totals.tolist(), counts.tolist(), strict=True):
        site = table.of(code) if by == "stack" else table.sites[code]
        key = "\n".join(_calls(trace, code, rule)) if by == "stack" else site.key
        held.append(Held(key, site.label, total, count, site))
    return held


def _calls(trace: Trace, stack: int, rule: SiteRule) -> Iterator[str]:
    """File and function of each Python frame, innermost first; of a stack without any, the C++ functions."""
    frames, strings = trace.stacks.frames, trace.strings
    members = trace.stacks.of(stack)
    python = members[frame_kinds(trace, rule)[members] <= LAST_PYTHON_KIND]
    for frame in python if len(python) else members:
        name = strings[frames.name[frame]]
        file = path_of(strings[frames.filename[frame]]).rpartition("/")[2]
        yield f"{file} {name}" if len(python) else short_native(name)


def held_alike(held: Sequence[Sequence[Held]], by: str) -> list[list[Held]]:
    """The same, with one key for what is the same place everywhere, and each key once per trace."""
    renamed = _renamed(held, with_line=by == "line") if by in ("site", "line") else held
    return [_merged(side) for side in renamed]


def _renamed(held: Sequence[Sequence[Held]], *, with_line: bool) -> list[list[Held]]:
    def place(site: Site) -> Place:
        return site.path, "" if with_line else site.function

    tails = common_tails([{place(each.site) for each in side} for side in held])

    def function_of(site: Site) -> Place:
        return tails[place(site)], site.function

    lines = [_lines_by_function(side, function_of) for side in held]
    apart = {each for side in lines for each in side if with_line or _unchanged([other.get(each) for other in lines])}

    def named(each: Held) -> Held:
        site = each.site
        if not site.path:
            return replace(each, key=site.key)
        tail, function = function_of(site)
        if (tail, function) in apart:
            label = f"{tail}:{site.line}" if with_line else f"{tail}:{site.line} {function}"
            return replace(each, key=label, label=label)
        every = {line for side in lines for line in side.get((tail, function), ())}
        return replace(each, key=f"{tail} {function}", label=f"{tail}:{_lines_text(every)} {function}")

    return [[named(each) for each in side] for side in held]


def _lines_by_function(side: Sequence[Held], function_of: Callable[[Site], Place]) -> dict[Place, set[int]]:
    lines: dict[Place, set[int]] = {}
    for each in side:
        lines.setdefault(function_of(each.site), set()).add(each.site.line)
    return lines


def _unchanged(sides: Sequence[set[int] | None]) -> bool:
    """Whether any two traces that have the function have at least half of the lesser one's lines in common."""
    found = [each for each in sides if each]
    return all(2 * len(one & other) >= min(len(one), len(other)) for one, other in combinations(found, 2))


def _lines_text(lines: Collection[int]) -> str:
    ordered = sorted(lines)
    return ", ".join(map(str, ordered)) if len(ordered) <= 3 else f"{ordered[0]}-{ordered[-1]}"


def _merged(side: Sequence[Held]) -> list[Held]:
    by_key: dict[str, Held] = {}
    for each in side:
        known = by_key.get(each.key)
        if known is not None:
            each = replace(known, bytes=known.bytes + each.bytes, count=known.count + each.count)
        by_key[each.key] = each
    return list(by_key.values())


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
