"""Headline of a comparison, in two sentences that claim only what the bytes show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from memviz.analysis.callstacks.sites import NO_SITE
from memviz.analysis.comparing.changes import (
    Change,
    Changes,
    ComparisonSummary,
    diff_json,
    setting_differences,
    summarize_comparison,
)
from memviz.analysis.comparing.matching import Pair
from memviz.analysis.purpose.categories import SAYS_NOTHING
from memviz.headlines.headline import Headline, headline_json
from memviz.headlines.names import device_name, is_plural, kind_name, number, short, told_apart, trace_name
from memviz.units import bytes_text, count_text

_ALSO_SHARE = 0.15
_ENOUGH = 0.4
"""Share of the change: smaller parts tell little."""
_PLURALS = {"site": "sites", "category": "categories"}


@dataclass(frozen=True)
class _Part:
    name: str
    bytes: int
    is_ours: bool = False
    """The name is a word of this page. Names from a program stay as they are written."""
    is_plural: bool = False


def compare(told: ComparisonSummary, names: Sequence[str] = ()) -> Headline:
    """`names` are what the traces are called, where that is not their files' names."""
    said = _said(told, names)
    estimates = [moment for moment in told.found.moments if moment.is_estimate]
    limits = dict.fromkeys(moment.limit_of_start for moment in estimates if moment.limit_of_start)
    return said.as_estimate(" ".join(limits)) if estimates else said


def _said(told: ComparisonSummary, names: Sequence[str]) -> Headline:
    comparison = told.found
    called = _called(comparison, names)
    peaks = [moment.live_bytes for moment in comparison.moments]
    still = [name for name, moment in zip(called, comparison.moments, strict=True) if not moment.event_count]
    also = f"{_ran_out(called, comparison)} {_only_ends(still)}".strip()
    verb = "stand" if still else "peak"
    if len(peaks) > 2:
        return _many(called, peaks, verb).and_also(also)
    change = peaks[1] - peaks[0]
    if not change:
        return Headline(f"Both {verb} at {bytes_text(peaks[0])}.", _balanced(comparison)).and_also(also)
    how = "higher" if change > 0 else "lower"
    answer = f"{called[1]} {verb}s {bytes_text(abs(change))} {how} than {called[0]}."
    return Headline(answer, _sentence(comparison, _most_telling(told, change), change)).and_also(also)


def _ran_out(called: Sequence[str], comparison: Changes) -> str:
    """A peak is without what was refused, so a lower one may be no gain."""
    pairs = [(name, moment.ran_out_at) for name, moment in zip(called, comparison.moments, strict=True)]
    refused = [(name, event) for name, event in pairs if event is not None]
    if not refused:
        return ""
    whose = "its peak is" if len(refused) == 1 else "their peaks are"
    when = f" at event {count_text(refused[0][1])}" if len(refused) == 1 else ""
    return f"{_together([name for name, _ in refused])} ran out of memory{when}; {whose} without what was refused."


def _only_ends(still: Sequence[str]) -> str:
    """A state at the end is no peak."""
    return f"Of {_together(still)} only the end is known." if still else ""


def _called(comparison: Changes, names: Sequence[str]) -> list[str]:
    """With the device, where a trace has several it could be."""
    called = told_apart(names or [trace_name(moment.source) for moment in comparison.moments])
    devices = [moment.which for moment in comparison.moments]
    if not any(device.is_one_of_several for device in devices):
        return called
    return [f"{name} ({device_name(device)})" for name, device in zip(called, devices, strict=True)]


def _many(names: Sequence[str], peaks: Sequence[int], verb: str) -> Headline:
    if len(set(peaks)) == 1:
        return Headline(f"All {number(len(peaks))} {verb} at {bytes_text(peaks[0])}.")
    low, high = min(peaks), max(peaks)
    best = names[peaks.index(low)]
    highest = [name for name, peak in zip(names, peaks, strict=True) if peak == high]
    also = f", as {_as_low(names, peaks)}" if peaks.count(low) > 1 else ""
    answer = f"{best} {verb}s lowest of the {number(len(peaks))}, at {bytes_text(low)}{also}"
    answer += "." if low == peaks[0] else f", {bytes_text(peaks[0] - low)} less than A."
    if high == peaks[0]:
        also = f", as high as {_together(highest[1:])}" if highest[1:] else ""
        who = names[0] if "(A)" in names[0] else f"A, {names[0]},"
        return Headline(answer, f"{who} is the highest{also}.")
    take = "takes" if len(highest) == 1 else "take"
    return Headline(answer, f"The highest, {_together(highest)}, {take} {bytes_text(high - peaks[0])} more than A.")


def _together(names: Sequence[str]) -> str:
    if len(names) == 1:
        return names[0]
    return f"{names[0]} and {names[1] if len(names) == 2 else f'{number(len(names) - 1)} others'}"


def _as_low(names: Sequence[str], peaks: Sequence[int]) -> str:
    others = [name for name, peak in zip(names, peaks, strict=True) if peak == min(peaks)][1:]
    return f"{others[0]} does" if len(others) == 1 else f"{number(len(others))} others do"


def _balanced(comparison: Changes) -> str:
    """Return what grew and what shrank, where they cancel out."""
    deltas = [row.delta(1) for row in comparison.rows if row.delta(1)]
    grown, shrunk = [delta for delta in deltas if delta > 0], [delta for delta in deltas if delta < 0]
    if not deltas:
        return f"Every {comparison.by} holds as many bytes in both."
    words = _plural(comparison.by) if len(grown) > 1 else comparison.by
    by_how_much = bytes_text(sum(grown))
    return f"{number(len(grown)).capitalize()} {words} grew by {by_how_much}, {number(len(shrunk))} shrank by as much."


def _plural(by: str) -> str:
    return _PLURALS.get(by, f"{by}s")


def _most_telling(told: ComparisonSummary, change: int) -> list[_Part]:
    parts = _parts(told.found, change)
    if sum(abs(part.bytes) for part in parts) >= _ENOUGH * abs(change):
        return parts
    by_kind = _parts(told.kinds, change)
    says_less = sum(abs(part.bytes) for part in by_kind) < _ENOUGH * abs(change)
    return parts if says_less else by_kind


def _parts(comparison: Changes, change: int) -> list[_Part]:
    """The largest in the direction of the change: one operator's places together, or a row or two."""
    rows = [row for row in comparison.rows if row.delta(1) * change > 0 and row.thing.key not in SAYS_NOTHING]
    together = _by_operator(comparison.by, rows)
    if together is not None:
        return [together]
    rows.sort(key=lambda row: -abs(row.delta(1)))
    also = [row for row in rows[1:2] if abs(row.delta(1)) >= _ALSO_SHARE * abs(change)]
    return [_named(row, comparison.by) for row in (*rows[:1], *also)]


def _by_operator(by: str, rows: Sequence[Change]) -> _Part | None:
    """One operator that makes most of the change in several places says more than the largest place."""
    parts: dict[str, list[int]] = {}
    for row in rows:
        if row.thing.operator:
            parts.setdefault(row.thing.operator, []).append(row.delta(1))
    largest = max(parts, key=lambda name: abs(sum(parts[name])), default="")
    deltas = parts.get(largest, [])
    if len(deltas) < 2 or 2 * abs(sum(deltas)) < abs(sum(row.delta(1) for row in rows)):
        return None
    return _Part(f"{short(largest)} at {number(len(deltas))} {_plural(by)}", sum(deltas))


def _named(row: Change, by: str) -> _Part:
    if row.thing.label == NO_SITE.label:
        return _Part("allocations without a stack", row.delta(1), is_ours=True, is_plural=True)
    if by != "category":
        return _Part(short(row.thing.name), row.delta(1))
    kind = row.thing.key
    return _Part(kind_name(kind), row.delta(1), is_ours=True, is_plural=is_plural(kind))


def _sentence(comparison: Changes, parts: Sequence[_Part], change: int) -> str:
    if not parts:
        return ""
    verb = ("add" if change > 0 else "hold") + ("" if parts[0].is_plural else "s")
    less = " less" if change < 0 else ""
    name = f"{parts[0].name[0].upper()}{parts[0].name[1:]}" if parts[0].is_ours else parts[0].name
    words = [f"{name} {verb} {bytes_text(abs(parts[0].bytes))}{less}"]
    words += [f"{part.name} {bytes_text(abs(part.bytes))}" for part in parts[1:]]
    named = sum(part.bytes for part in parts)
    others_moved = sum(abs(row.delta(1)) for row in comparison.rows) > abs(named)
    return f"{', '.join(words)}{_rest(change - named, change, comparison.by, others_moved=others_moved)}."


def _rest(rest: int, change: int, by: str, *, others_moved: bool) -> str:
    if not rest:
        if others_moved:
            return ", the rest evens out"
        return "; no other category differs" if by == "category" else "; all else is equal"
    size = bytes_text(abs(rest))
    if change > 0:
        return f", the rest {size}" if rest > 0 else f", the rest gives {size} back"
    return f", the rest {size}" if rest < 0 else f", the rest {size} more"


def compared_json(sides: Sequence[Pair], comparison: Changes, top: int | None = None) -> dict[str, Any]:
    headline = compare(summarize_comparison(sides))
    settings = setting_differences([trace for trace, _ in sides])
    return {"headline": headline_json(headline), **diff_json(comparison, settings, top=top)}
