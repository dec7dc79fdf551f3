"""Two or more traces, the first as the baseline: which places hold how many bytes more, at their peaks.

Rows and rest add up to each trace's bytes, and so to every difference, to the byte. A place that holds more in
one trace than in another is one row with both figures, not two things that have nothing to do with each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memviz.analysis.frames import DEFAULT_RULE, SiteRule
from memviz.analysis.groups import grouped
from memviz.analysis.live import check_event, live_rows
from memviz.analysis.matching import PLACES, Held, held_alike, held_by_place
from memviz.analysis.timeline import timeline
from memviz.trace.model import DeviceTrace, Trace

Pair = tuple[Trace, DeviceTrace]


@dataclass(frozen=True)
class Moment:
    source: str
    """The file's name."""
    device: str
    event: int
    live_bytes: int
    reserved_bytes: int
    reserved_peak_bytes: int
    event_count: int

    @property
    def gap_bytes(self) -> int:
        """Reserved and not live: cached, and lost to rounding."""
        return self.reserved_bytes - self.live_bytes


@dataclass(frozen=True)
class Row:
    key: str
    label: str
    bytes: tuple[int, ...]
    """Per trace, 0 where it has nothing there."""
    counts: tuple[int, ...]

    @property
    def delta_bytes(self) -> tuple[int, ...]:
        return _less_first(self.bytes)


@dataclass(frozen=True)
class Setting:
    name: str
    values: tuple[str | None, ...]
    """Per trace; None where the file does not say."""


@dataclass(frozen=True)
class Comparison:
    by: str
    moments: tuple[Moment, ...]
    """The baseline first."""
    rows: tuple[Row, ...]
    """By the largest difference from the baseline."""
    rest_bytes: tuple[int, ...]
    """Per trace, what the rows leave over."""
    rest_counts: tuple[int, ...]
    settings: tuple[Setting, ...]
    """Allocator settings that are not the same everywhere."""

    @property
    def delta_bytes(self) -> tuple[int, ...]:
        """Always the sum of the rows' and the rest's."""
        return _less_first(tuple(each.live_bytes for each in self.moments))

    @property
    def rest_delta_bytes(self) -> tuple[int, ...]:
        return _less_first(self.rest_bytes)


def compare(
    sides: Sequence[Pair],
    by: str = "site",
    *,
    top: int | None = None,
    events: Sequence[int] | None = None,
    rule: SiteRule = DEFAULT_RULE,
) -> Comparison:
    """At each side's peak, or after these events, one per side."""
    moments = tuple(
        _moment(device, trace.about.source, events[i] if events else None) for i, (trace, device) in enumerate(sides)
    )
    held = [_held(pair, moment.event, by, rule) for pair, moment in zip(sides, moments, strict=True)]
    every = _rows(held_alike(held, by))
    rows = every[:top]
    return Comparison(
        by=by,
        moments=moments,
        rows=rows,
        rest_bytes=_left([each.live_bytes for each in moments], [row.bytes for row in rows]),
        rest_counts=_left([sum(group.count for group in each) for each in held], [row.counts for row in rows]),
        settings=setting_differences([trace for trace, _ in sides]),
    )


def _moment(device: DeviceTrace, source: str, event: int | None) -> Moment:
    bytes_then = timeline(device)
    chosen = bytes_then.peak_event if event is None else event
    check_event(device, chosen)
    return Moment(
        source=source,
        device=device.name,
        event=chosen,
        live_bytes=int(bytes_then.live[chosen + 1]),
        reserved_bytes=int(bytes_then.reserved[chosen + 1]),
        reserved_peak_bytes=bytes_then.reserved_peak_bytes,
        event_count=len(device.events),
    )


def _held(pair: Pair, event: int, by: str, rule: SiteRule) -> list[Held]:
    trace, device = pair
    rows = live_rows(device, event)
    if by in PLACES:
        return held_by_place(trace, device, rows, by, rule=rule)
    groups = grouped(trace, device, rows, by, rule=rule).groups
    return [Held(group.key, group.label, group.bytes, group.count) for group in groups]


def _rows(held: Sequence[Sequence[Held]]) -> tuple[Row, ...]:
    labels = {each.key: each.label for side in reversed(held) for each in side}
    by_key = [{each.key: each for each in side} for side in held]
    rows = [
        Row(
            key,
            label,
            tuple(side[key].bytes if key in side else 0 for side in by_key),
            tuple(side[key].count if key in side else 0 for side in by_key),
        )
        for key, label in labels.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-max(map(abs, row.delta_bytes)), row.label, row.key)))


def _left(totals: Sequence[int], rows: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(total - sum(row[i] for row in rows) for i, total in enumerate(totals))


def _less_first(values: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(each - values[0] for each in values)


def setting_differences(traces: Sequence[Trace]) -> tuple[Setting, ...]:
    flat = [dict(_flat(trace.settings)) for trace in traces]
    names = sorted({name for each in flat for name in each})
    every = (Setting(name, tuple(each.get(name) for each in flat)) for name in names)
    return tuple(each for each in every if len(set(each.values)) > 1)


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", str(value)
