"""Differences between traces: rows that add up from peak to peak, a score per trace, and allocator settings.

The page, `diff`, reports and programs all show these rows. Each row has the bytes of both traces and its dominant
category.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from memviz.analysis.actions.proposals import limit_of_start
from memviz.analysis.cache import cached
from memviz.analysis.comparing.matching import MatchKey, Pair, match_allocations
from memviz.analysis.devices import DeviceName, name_device
from memviz.analysis.findings.finding import Facts
from memviz.analysis.lifetimes import clock, has_times, lifetimes, live_rows
from memviz.analysis.purpose.categories import KINDS, SAYS_NOTHING, kinds
from memviz.analysis.sums import sum_by
from memviz.analysis.timeline import sum_of_spans, timeline
from memviz.trace.model import Action, DeviceTrace, Trace, is_reserved_known


@dataclass(frozen=True)
class Setting:
    name: str
    values: tuple[str | None, ...]
    """Per trace; None where the file has no value."""

    @property
    def is_known_to_differ(self) -> bool:
        """Missing values do not count: an older file may have had the same."""
        return len(set(self.values) - {None}) > 1


def setting_differences(traces: Sequence[Trace]) -> tuple[Setting, ...]:
    flat = [dict(_flat_settings(trace.settings)) for trace in traces]
    names = sorted({name for values in flat for name in values})
    every = (Setting(name, tuple(values.get(name) for values in flat)) for name in names)
    return tuple(setting for setting in every if len(set(setting.values)) > 1)


def _flat_settings(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat_settings(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", str(value)


@dataclass(frozen=True)
class Moment:
    source: str
    """The file's name."""
    which: DeviceName
    event: int
    live_bytes: int
    reserved_peak_bytes: int
    event_count: int
    is_estimate: bool = False
    limit_of_start: str = ""
    """Sentence on memory from before the recording, which an estimate leaves as it is; else empty."""
    ran_out_at: int | None = None
    """The last event at which it was refused memory; None where it never was."""


@dataclass(frozen=True)
class Change:
    thing: MatchKey
    kind: str
    """Kind of most of its bytes, where it holds most: one of `categories.KINDS`; unknown where not computed."""
    bytes: tuple[int, ...]
    """Per trace, 0 where it has nothing there."""
    counts: tuple[int, ...]

    def delta(self, other: int) -> int:
        return self.bytes[other] - self.bytes[0]


@dataclass(frozen=True)
class Changes:
    by: str
    moments: tuple[Moment, ...]
    """The baseline first."""
    rows: tuple[Change, ...]
    """Rows by largest difference from the baseline. They add up to every moment's bytes."""

    def delta(self, other: int) -> int:
        return self.moments[other].live_bytes - self.moments[0].live_bytes

    def after(self, top: int | None) -> Change:
        """Return the totals of the rows beyond the first `top` as one row."""
        left, sides = self.rows[len(self.rows) if top is None else top :], range(len(self.moments))
        sizes, counts = (
            tuple(sum(values[side] for values in column) for side in sides)
            for column in ([row.bytes for row in left], [row.counts for row in left])
        )
        return Change(_REST, KINDS[0], sizes, counts)


_REST = MatchKey("", "everything else")


def changes(sides: Sequence[Pair], by: str = "site", *, with_kinds: bool = True) -> Changes:
    """Compare each side's peak. The kinds of the rows take longer than all else."""
    moments = tuple(map(_moment, sides))
    matched = match_allocations(sides, by)
    shape = len(matched.things), len(KINDS)
    largest_kinds = np.zeros(shape, dtype=np.int64)
    sums, allocations = [], []
    for number, (side, moment) in enumerate(zip(sides, moments, strict=True)):
        rows = live_rows(side[1], moment.event)
        thing, size = matched.of_rows(number, side, rows), lifetimes(side[1]).size[rows]
        sums.append(sum_by(thing, size, shape[0]))
        allocations.append(np.bincount(thing, minlength=shape[0]))
        if with_kinds:
            of_kinds = sum_by(thing * shape[1] + kinds(*side, rows), size, math.prod(shape)).reshape(shape)
            largest_kinds = np.maximum(largest_kinds, of_kinds)
    totals, counts, kind = np.stack(sums, axis=1), np.stack(allocations, axis=1), largest_kinds.argmax(axis=1)
    rows_changed = [
        Change(matched.things[i], KINDS[kind[i]], tuple(totals[i].tolist()), tuple(counts[i].tolist()))
        for i in np.flatnonzero(counts.any(axis=1)).tolist()
    ]
    rows_changed.sort(
        key=lambda row: (-max(abs(size - row.bytes[0]) for size in row.bytes), row.thing.label, row.thing.key)
    )
    return Changes(by, moments, tuple(rows_changed))


def _moment(side: Pair) -> Moment:
    trace, device = side
    line = timeline(device)
    refused = np.flatnonzero(device.events.action == Action.OOM)
    return Moment(
        source=trace.about.source,
        which=name_device(trace, device),
        event=line.peak_event,
        live_bytes=line.peak_bytes,
        reserved_peak_bytes=line.reserved_peak_bytes,
        event_count=len(device.events),
        is_estimate=trace.is_estimate,
        limit_of_start=limit_of_start(Facts(trace, device)) if trace.is_estimate else "",
        ran_out_at=int(refused[-1]) if len(refused) else None,
    )


def best_grouping(sides: Sequence[Pair], other: int = 1) -> str:
    """The grouping to show first: sites, unless most of the change is at sites that only one trace has.

    Two different steps share few sites; then categories explain more, as far as they are known.
    """
    pair = [sides[0], sides[other]]
    places = _bytes_by_site(changes(pair, "site", with_kinds=False).rows)
    moved = sum(abs(after - before) for before, after, _ in places)
    one_sided = sum(abs(after - before) for before, after, is_shared in places if not is_shared)
    if 2 * one_sided <= moved:
        return "site"
    rows_changed = changes(pair, "category", with_kinds=False).rows
    moved = sum(abs(row.delta(1)) for row in rows_changed)
    explained = sum(abs(row.delta(1)) for row in rows_changed if row.thing.key not in SAYS_NOTHING)
    return "category" if 2 * explained > moved else "site"


@dataclass(frozen=True)
class ComparisonSummary:
    """Input of a comparison's headline, independent of the rows shown."""

    found: Changes
    """Changes in the grouping that explains most."""
    sides: Sequence[Pair]

    @cached_property
    def kinds(self) -> Changes:
        """Changes by category, for changes spread over many sites. Few comparisons need it, and it costs the most."""
        return self.found if self.found.by == "category" else changes(self.sides, "category")


def summarize_comparison(sides: Sequence[Pair]) -> ComparisonSummary:
    return ComparisonSummary(changes(sides, best_grouping(sides), with_kinds=False), sides)


def _bytes_by_site(rows: Sequence[Change]) -> list[tuple[int, int, bool]]:
    """Per site: bytes before and after, and whether both traces have it; operators are merged."""
    places: dict[tuple[str, str], tuple[int, int, bool, bool]] = {}
    for row in rows:
        home = row.thing.label, row.thing.function
        before, after, first, second = places.get(home, (0, 0, False, False))
        there = bool(row.counts[0]), bool(row.counts[1])
        places[home] = (before + row.bytes[0], after + row.bytes[1], first or there[0], second or there[1])
    return [(before, after, first and second) for before, after, first, second in places.values()]


_LEAST_SHARE = 0.002


@dataclass(frozen=True)
class Score:
    kinds: tuple[tuple[str, int], ...]
    """Live bytes at the peak by `categories.KINDS`, those that have any."""
    highest: Mapping[str, int]
    """Most live bytes of each kind at any moment."""
    live_bytes: int
    """At the peak; the sum of the above."""
    reserved_bytes: int
    """Most at any time: the memory that a GPU must have."""
    delta_bytes: int
    """Live, over the baseline's."""
    duration_us: int | None
    """From the first event to the last; None where the file has no times."""

    @property
    def visible(self) -> set[str]:
        """Kinds that are more than a hairline in the timeline at some moment."""
        return {kind for kind, count in self.highest.items() if count > _LEAST_SHARE * max(self.live_bytes, 1)}

    @property
    def knows_reserved(self) -> bool:
        return is_reserved_known(self.live_bytes, self.reserved_bytes)

    @property
    def gap_bytes(self) -> int:
        """Reserved at most, and not live at the peak."""
        return self.reserved_bytes - self.live_bytes


def scores(sides: Sequence[Pair]) -> tuple[Score, ...]:
    """The baseline first."""
    baseline = timeline(sides[0][1]).peak_bytes
    return tuple(_score(side, baseline) for side in sides)


def _score(side: Pair, baseline: int) -> Score:
    device = side[1]
    line, times = timeline(device), clock(device)
    rows = live_rows(device, line.peak_event)
    live = sum_by(kinds(*side, rows), lifetimes(device).size[rows], len(KINDS)).tolist()
    return Score(
        kinds=tuple((kind, count) for kind, count in zip(KINDS, live, strict=True) if count),
        highest=_highest(*side),
        live_bytes=line.peak_bytes,
        reserved_bytes=line.reserved_peak_bytes,
        delta_bytes=line.peak_bytes - baseline,
        duration_us=int(times[-1]) - int(times[0]) if has_times(device) else None,
    )


@cached
def _highest(trace: Trace, device: DeviceTrace) -> dict[str, int]:
    rows, codes, count = lifetimes(device), kinds(trace, device), len(device.events)
    highest = {}
    for code in np.unique(codes).tolist():
        chosen = codes == code
        live = sum_of_spans(rows.start[chosen], rows.end[chosen], rows.size[chosen], count)
        highest[KINDS[code]] = int(live.max())
    return highest
