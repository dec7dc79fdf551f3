"""A comparison of peaks: the headline, which claims only what the bytes show, the rows and the JSON of `diff`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from memviz.analysis.callstacks.sites import NO_SITE
from memviz.analysis.comparing.changes import (
    Change,
    Changes,
    ComparisonSummary,
    changes,
    setting_differences,
    summarize_comparison,
)
from memviz.analysis.comparing.matching import Pair
from memviz.analysis.purpose.categories import SAYS_NOTHING
from memviz.results.headline import (
    Headline,
    count_word,
    device_name,
    distinct_names,
    is_plural_purpose,
    letter,
    purpose_name,
    shorten,
    trace_name,
)
from memviz.results.result import Bar, Result, Table, TableRow, share
from memviz.trace.model import is_reserved_known
from memviz.units import bytes_text, count_text, delta_text

_ALSO_SHARE = 0.15
_ENOUGH = 0.4
"""Share of the change: smaller parts explain little."""
_PLURALS = {"site": "sites", "category": "categories"}


@dataclass(frozen=True, repr=False)
class Comparison(Result):
    """`memviz.open("before.pickle").compare("after.pickle")`."""

    sides: tuple[Pair, ...] = field(compare=False)
    """Traces and their devices, the baseline first."""
    found: Changes

    @property
    def peaks(self) -> tuple[int, ...]:
        return tuple(moment.live_bytes for moment in self.found.moments)

    @property
    def delta_bytes(self) -> int:
        """From the baseline's peak to the second trace's; the rows add up to it."""
        return self.found.delta(1)

    @property
    def rows(self) -> tuple[Change, ...]:
        """Rows with the largest difference from the baseline first."""
        return self.found.rows

    def by(self, by: str) -> Comparison:
        return comparison_result(self.sides, by)

    @cached_property
    def headline(self) -> Headline:
        return comparison_headline(summarize_comparison(self.sides))

    def as_json(self, top: int | None = None) -> dict[str, Any]:
        """Return the output of `diff --json`; pairs of more than two traces are under `comparisons`."""
        pairs = [self._pair_json(other, top) for other in range(1, len(self.found.moments))]
        return {"headline": self.headline.as_json(), **(pairs[0] if len(pairs) == 1 else {"comparisons": pairs})}

    def _pair_json(self, other: int, top: int | None) -> dict[str, Any]:
        settings = setting_differences([trace for trace, _ in self.sides])
        return {
            "a": _side_json(self.found, 0),
            "b": _side_json(self.found, other),
            "by": self.found.by,
            "delta_bytes": self.found.delta(other),
            "rows": [
                {
                    "site" if self.found.by == "site" else "key": row.thing.name,
                    "a_bytes": row.bytes[0],
                    "b_bytes": row.bytes[other],
                    "delta_bytes": row.delta(other),
                    "a_count": row.counts[0],
                    "b_count": row.counts[other],
                    "function": row.thing.function,
                    "operator": row.thing.operator,
                }
                for row in self.rows[:top]
            ],
            "rest_bytes": self.found.after(top).delta(other),
            "settings": {setting.name: [setting.values[0], setting.values[other]] for setting in settings},
        }

    def columns(self) -> Mapping[str, list[Any]]:
        sides, rows = range(len(self.found.moments)), self.rows
        letters = [letter(side).lower() for side in sides]
        deltas = {
            "delta_bytes" if len(letters) == 2 else f"{letters[side]}_delta_bytes": [row.delta(side) for row in rows]
            for side in sides[1:]
        }
        return {
            "site" if self.found.by == "site" else "key": [row.thing.name for row in rows],
            **{f"{letters[side]}_bytes": [row.bytes[side] for row in rows] for side in sides},
            **deltas,
            **{f"{letters[side]}_count": [row.counts[side] for row in rows] for side in sides},
            "function": [row.thing.function for row in rows],
            "operator": [row.thing.operator for row in rows],
        }

    def table(self, most: int | None = None) -> Table:
        letters = [letter(side) for side in range(len(self.found.moments))]
        largest = max((abs(row.delta(1)) for row in self.rows), default=0)
        rows = [TableRow(_sizes(row.bytes), row.thing.name, (_change_bar(row, largest),)) for row in self.rows[:most]]
        rest = self.found.after(most)
        if any(rest.counts):
            rows.append(TableRow(_sizes(rest.bytes), "(all others)"))
        rows.append(TableRow(_sizes(self.peaks), "peak"))
        return Table((*letters, *(f"{other} - A" for other in letters[1:]), self.found.by), tuple(rows))


def _sizes(sizes: tuple[int, ...]) -> tuple[str, ...]:
    return (*map(bytes_text, sizes), *(delta_text(size - sizes[0]) for size in sizes[1:]))


def _change_bar(change: Change, largest: int) -> Bar:
    """The second trace's change, to the left of the middle where it holds less."""
    length = share(change.delta(1), largest) / 2
    return Bar(0.5 + min(0.0, length), 0.5 + max(0.0, length))


def _side_json(comparison: Changes, number: int) -> dict[str, Any]:
    moment = comparison.moments[number]
    return {
        "file": moment.source,
        "device": moment.which.name,
        "event": moment.event,
        "peak_bytes": moment.live_bytes,
        "reserved_peak_bytes": moment.reserved_peak_bytes,
        "reserved_is_known": is_reserved_known(moment.live_bytes, moment.reserved_peak_bytes),
        "events": moment.event_count,
        "ran_out_at_event": moment.ran_out_at,
    }


def comparison_result(sides: Sequence[Pair], by: str = "site") -> Comparison:
    return Comparison(tuple(sides), changes(sides, by, with_kinds=False))


@dataclass(frozen=True)
class _Part:
    name: str
    bytes: int
    is_own_word: bool = False
    """The name is a word of memviz, which may be capitalized; names from a program are not changed."""
    is_plural: bool = False


def comparison_headline(summary: ComparisonSummary, names: Sequence[str] = ()) -> Headline:
    """`names` are what the traces are called, where that is not their files' names."""
    headline = _peak_headline(summary, names)
    estimates = [moment for moment in summary.found.moments if moment.is_estimate]
    limits = dict.fromkeys(moment.limit_of_start for moment in estimates if moment.limit_of_start)
    return headline.as_estimate(" ".join(limits)) if estimates else headline


def _peak_headline(summary: ComparisonSummary, names: Sequence[str]) -> Headline:
    comparison = summary.found
    called = _trace_names(comparison, names)
    peaks = [moment.live_bytes for moment in comparison.moments]
    still = [name for name, moment in zip(called, comparison.moments, strict=True) if not moment.event_count]
    end_states = f"Only the final state of {_name_list(still)} is known." if still else ""
    also = f"{_ran_out(called, comparison)} {end_states}".strip()
    verb = "end" if still else "peak"
    if len(peaks) > 2:
        return _several_headline(called, peaks, verb).and_also(also)
    change = peaks[1] - peaks[0]
    if not change:
        return Headline(f"Both {verb} at {bytes_text(peaks[0])}.", _offsetting_changes(comparison)).and_also(also)
    how = "higher" if change > 0 else "lower"
    answer = f"{called[1]} {verb}s {bytes_text(abs(change))} {how} than {called[0]}."
    return Headline(answer, _sentence(comparison, _main_parts(summary, change), change)).and_also(also)


def _ran_out(called: Sequence[str], comparison: Changes) -> str:
    """Name the traces that ran out of memory: a peak is without the refused request, so a lower one may be no gain."""
    pairs = [(name, moment.ran_out_at) for name, moment in zip(called, comparison.moments, strict=True)]
    refused = [(name, event) for name, event in pairs if event is not None]
    if not refused:
        return ""
    whose = "its peak excludes" if len(refused) == 1 else "their peaks exclude"
    when = f" at event {count_text(refused[0][1])}" if len(refused) == 1 else ""
    return f"{_name_list([name for name, _ in refused])} ran out of memory{when}; {whose} the request that failed."


def _trace_names(comparison: Changes, names: Sequence[str]) -> list[str]:
    """Name the traces, with the device where one of them has several."""
    called = distinct_names(names or [trace_name(moment.source) for moment in comparison.moments])
    devices = [moment.which for moment in comparison.moments]
    if not any(device.is_one_of_several for device in devices):
        return called
    return [f"{name} ({device_name(device)})" for name, device in zip(called, devices, strict=True)]


def _several_headline(names: Sequence[str], peaks: Sequence[int], verb: str) -> Headline:
    if len(set(peaks)) == 1:
        return Headline(f"All {count_word(len(peaks))} {verb} at {bytes_text(peaks[0])}.")
    low, high = min(peaks), max(peaks)
    best = names[peaks.index(low)]
    highest = [name for name, peak in zip(names, peaks, strict=True) if peak == high]
    also = ""
    if others := [name for name, peak in zip(names, peaks, strict=True) if peak == low][1:]:
        also = f", like {others[0]}" if len(others) == 1 else f", like {count_word(len(others))} others"
    answer = f"{best} {verb}s lowest of the {count_word(len(peaks))}, at {bytes_text(low)}{also}"
    answer += "." if low == peaks[0] else f", {bytes_text(peaks[0] - low)} less than A."
    if high == peaks[0]:
        also = f", as high as {_name_list(highest[1:])}" if highest[1:] else ""
        who = names[0] if "(A)" in names[0] else f"A, {names[0]},"
        return Headline(answer, f"{who} is the highest{also}.")
    use = "uses" if len(highest) == 1 else "use"
    return Headline(answer, f"The highest, {_name_list(highest)}, {use} {bytes_text(high - peaks[0])} more than A.")


def _name_list(names: Sequence[str]) -> str:
    if len(names) == 1:
        return names[0]
    return f"{names[0]} and {names[1] if len(names) == 2 else f'{count_word(len(names) - 1)} others'}"


def _offsetting_changes(comparison: Changes) -> str:
    """Return what grew and what shrank, where they cancel out."""
    deltas = [row.delta(1) for row in comparison.rows if row.delta(1)]
    grown, shrunk = [delta for delta in deltas if delta > 0], [delta for delta in deltas if delta < 0]
    if not deltas:
        return f"Every {comparison.by} holds the same bytes in both."
    noun = _plural(comparison.by) if len(grown) > 1 else comparison.by
    grew = f"{count_word(len(grown)).capitalize()} {noun} grew by {bytes_text(sum(grown))}"
    return f"{grew}, {count_word(len(shrunk))} shrank by the same amount."


def _plural(by: str) -> str:
    return _PLURALS.get(by, f"{by}s")


def _main_parts(summary: ComparisonSummary, change: int) -> list[_Part]:
    parts = _largest_parts(summary.found, change)
    if sum(abs(part.bytes) for part in parts) >= _ENOUGH * abs(change):
        return parts
    by_kind = _largest_parts(summary.kinds, change)
    says_less = sum(abs(part.bytes) for part in by_kind) < _ENOUGH * abs(change)
    return parts if says_less else by_kind


def _largest_parts(comparison: Changes, change: int) -> list[_Part]:
    """Return the largest rows in the direction of the change, or one operator's rows together."""
    rows = [row for row in comparison.rows if row.delta(1) * change > 0 and row.thing.key not in SAYS_NOTHING]
    together = _by_operator(comparison.by, rows)
    if together is not None:
        return [together]
    rows.sort(key=lambda row: -abs(row.delta(1)))
    also = [row for row in rows[1:2] if abs(row.delta(1)) >= _ALSO_SHARE * abs(change)]
    return [_part_of_row(row, comparison.by) for row in (*rows[:1], *also)]


def _by_operator(by: str, rows: Sequence[Change]) -> _Part | None:
    """Return the rows of one operator, where it makes most of the change in several places."""
    parts: dict[str, list[int]] = {}
    for row in rows:
        if row.thing.operator:
            parts.setdefault(row.thing.operator, []).append(row.delta(1))
    largest = max(parts, key=lambda name: abs(sum(parts[name])), default="")
    deltas = parts.get(largest, [])
    if len(deltas) < 2 or 2 * abs(sum(deltas)) < abs(sum(row.delta(1) for row in rows)):
        return None
    return _Part(f"{shorten(largest)} at {count_word(len(deltas))} {_plural(by)}", sum(deltas))


def _part_of_row(row: Change, by: str) -> _Part:
    if row.thing.label == NO_SITE.label:
        return _Part("allocations without a stack", row.delta(1), is_own_word=True, is_plural=True)
    if by != "category":
        return _Part(shorten(row.thing.name), row.delta(1))
    kind = row.thing.key
    return _Part(purpose_name(kind), row.delta(1), is_own_word=True, is_plural=is_plural_purpose(kind))


def _sentence(comparison: Changes, parts: Sequence[_Part], change: int) -> str:
    if not parts:
        return ""
    verb = ("add" if change > 0 else "hold") + ("" if parts[0].is_plural else "s")
    less = " less" if change < 0 else ""
    name = f"{parts[0].name[0].upper()}{parts[0].name[1:]}" if parts[0].is_own_word else parts[0].name
    clauses = [f"{name} {verb} {bytes_text(abs(parts[0].bytes))}{less}"]
    clauses += [f"{part.name} {bytes_text(abs(part.bytes))}" for part in parts[1:]]
    listed = sum(part.bytes for part in parts)
    others_moved = sum(abs(row.delta(1)) for row in comparison.rows) > abs(listed)
    return f"{', '.join(clauses)}{_rest_clause(change - listed, change, comparison.by, others_moved=others_moved)}."


def _rest_clause(rest: int, change: int, by: str, *, others_moved: bool) -> str:
    if not rest:
        if others_moved:
            return ", the rest cancels out"
        return "; no other category differs" if by == "category" else "; all else is equal"
    size = bytes_text(abs(rest))
    if change > 0:
        return f", the rest {size}" if rest > 0 else f", the rest {size} less"
    return f", the rest {size}" if rest < 0 else f", the rest {size} more"
