"""Contents of a trace: the summary per device, the live allocations at a moment, and the segments then."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from memviz.analysis.as_json import live_json
from memviz.analysis.decimate import by_event
from memviz.analysis.groups import Group
from memviz.analysis.overview import overview
from memviz.analysis.peak import LiveSet, at
from memviz.analysis.segments import SegmentsAt, TileKind, segments_at
from memviz.analysis.sums import sum_by
from memviz.analysis.timeline import has_reserved, timeline
from memviz.analysis.which_device import chosen_device, which
from memviz.headlines.explore import explore, live_then, segments_then, summary_json
from memviz.headlines.headline import Headline
from memviz.headlines.names import reserved_text
from memviz.notebook.result import MOST_ROWS, Bar, Result, TableRow, area, render_table, share, stacked
from memviz.trace.model import DeviceTrace, Trace, address_text
from memviz.ui.html.markup import Html, joined, tag
from memviz.units import bytes_text, count_text, percent_text

_COLUMNS = 300
_FIGURES = (
    "device",
    "events",
    "start_bytes",
    "peak_bytes",
    "peak_event",
    "end_bytes",
    "reserved_peak_bytes",
    "reserved_end_bytes",
    "reserved_is_known",
    "history",
)


@dataclass(frozen=True)
class DeviceSummary:
    """Live bytes at three moments, and reserved ones at two; `as_json` has more."""

    device: str
    events: int
    start_bytes: int
    peak_bytes: int
    peak_event: int
    """-1 is before the first."""
    end_bytes: int
    reserved_peak_bytes: int
    reserved_end_bytes: int


@dataclass(frozen=True, repr=False)
class Summary(Result):
    """`memviz.open("run.pickle").summary()`."""

    trace: Trace = field(compare=False)
    device: str
    """The one that the sentence is about: of several, the one to look at first."""
    devices: tuple[DeviceSummary, ...]

    @property
    def headline(self) -> Headline:
        return explore(overview(self.trace, chosen_device(self.trace, self.device)))

    def as_json(self) -> dict[str, Any]:
        """Return the output of `summary --json`, findings included."""
        return summary_json(self.trace, [chosen_device(self.trace, summed.device) for summed in self.devices])

    def columns(self) -> Mapping[str, list[Any]]:
        devices = self.as_json()["devices"]
        failed = [len(device["oom"]) for device in devices]
        return {**{name: [device[name] for device in devices] for name in _FIGURES}, "oom": failed}

    def _html(self) -> Html:
        head = ["events", "at the start", "at the peak", "at the end", "reserved at most", "device"]
        above = joined(
            tag("p", f"{self.trace.about.source}, {self.trace.about.label}"), *map(self._picture, self.devices)
        )
        return render_table(str(self), head, [_device_row(device) for device in self.devices], above=above)

    def _picture(self, summed: DeviceSummary) -> Html:
        if not summed.events:
            return Html("")
        line = by_event(chosen_device(self.trace, summed.device), _COLUMNS)
        label = f"Live and reserved bytes of device {summed.device}"
        return area(line.live_max.tolist(), line.reserved_max.tolist(), label=label)


def _device_row(device: DeviceSummary) -> TableRow:
    sizes = (device.start_bytes, device.peak_bytes, device.end_bytes)
    reserved = reserved_text(device.peak_bytes, device.reserved_peak_bytes)
    return TableRow((count_text(device.events), *map(bytes_text, sizes), reserved), device.device)


def summary_result(trace: Trace, named: str | None) -> Summary:
    """Summarize the named device, or all devices."""
    first = chosen_device(trace, named)
    devices = trace.devices if named is None else (first,)
    return Summary(trace, first.name, tuple(_summed(device) for device in devices))


def _summed(device: DeviceTrace) -> DeviceSummary:
    line = timeline(device)
    return DeviceSummary(
        device=device.name,
        events=len(device.events),
        start_bytes=line.start_bytes,
        peak_bytes=line.peak_bytes,
        peak_event=line.peak_event,
        end_bytes=line.end_bytes,
        reserved_peak_bytes=line.reserved_peak_bytes,
        reserved_end_bytes=int(line.reserved[-1]),
    )


@dataclass(frozen=True, repr=False)
class Live(Result):
    """`memviz.open("run.pickle").peak()`, and `.live_at(event=1000)`."""

    trace: Trace = field(compare=False)
    device: str
    """Its name: a number, or 'host0' for pinned memory."""
    found: LiveSet
    is_peak: bool = False
    top: int | None = None
    """How many groups there are at most; what is left stands in `rest_bytes`."""

    @property
    def event(self) -> int:
        """The moment is after this event; -1 is before the first."""
        return self.found.event

    @property
    def live_bytes(self) -> int:
        return self.found.live_bytes

    @property
    def waiting_bytes(self) -> int:
        """Live bytes whose free is requested, but which another stream may still use."""
        return self.found.waiting_bytes

    @property
    def reserved_bytes(self) -> int:
        return self.found.reserved_bytes

    @property
    def groups(self) -> tuple[Group, ...]:
        """Groups by bytes, largest first. With `rest_bytes` they add up to `live_bytes`."""
        return self.found.live.groups

    @property
    def rest_bytes(self) -> int:
        return self.found.live.rest_bytes

    def by(self, by: str) -> Live:
        """The same moment by "site", "line", "stack", "category", "module", "phase", "annotation", "stream", "pool"
        or "size"."""
        found = at(self.trace, self._device, self.event, by, top=self.top)
        return Live(self.trace, self.device, found, self.is_peak, self.top)

    @property
    def headline(self) -> Headline:
        device = self._device
        if self.is_peak:
            return explore(overview(self.trace, device))
        return live_then(self.found, which(self.trace, device), len(device.events))

    def as_json(self) -> dict[str, Any]:
        """Return the output of `peak --json` or `at --json`."""
        total = "peak_bytes" if self.is_peak else "live_bytes"
        return live_json(self.trace, self._device, self.found, total)

    def columns(self) -> Mapping[str, list[Any]]:
        rows, groups = self.as_json()["rows"], self.groups
        name = "site" if self.found.live.by == "site" else "key"
        named = {name: [group.label for group in groups]}
        if self.found.live.by == "stack":
            named["stack"] = [_folded(row.get("stack", [])) for row in rows]
        plain = ("bytes", "count", "purpose", "purpose_bytes", "certainty", "reason")
        return {**named, **{column: [row[column] for row in rows] for column in plain}}

    @property
    def _device(self) -> DeviceTrace:
        return chosen_device(self.trace, self.device)

    def _html(self) -> Html:
        whole, largest = self.live_bytes, max((group.bytes for group in self.groups), default=0)
        shown = self.groups[:MOST_ROWS]
        rows = [_live_row(group.label, group.bytes, group.count, whole, largest) for group in shown]
        left = self.found.live.count - sum(group.count for group in shown)
        if left:
            rest = whole - sum(group.bytes for group in shown)
            rows.append(_live_row("(all others)", rest, left, whole, 0))
        return render_table(str(self), ["bytes", "share", "blocks", self.found.live.by], rows)


def _live_row(label: str, size: int, count: int, whole: int, largest: int) -> TableRow:
    numbers = (bytes_text(size), percent_text(size, whole), count_text(count))
    return TableRow(numbers, label, (Bar(0, share(size, largest)),) if largest else ())


def _folded(stack: list[dict[str, Any]]) -> str:
    """The caller first, as flame graphs have it."""
    return ";".join(f"{frame['filename']}:{frame['line']} {frame['name']}" for frame in reversed(stack))


def live_result(trace: Trace, device: DeviceTrace, event: int | None, by: str, top: int | None) -> Live:
    """Without an event, the peak."""
    moment = timeline(device).peak_event if event is None else event
    return Live(trace, device.name, at(trace, device, moment, by, top=top), event is None, top)


_OPACITIES = (0.75, 0.4, 0.12)
"""Live, waiting, free."""


@dataclass(frozen=True)
class SegmentUse:
    """One segment, or one mapped range of an expandable one. The three parts add up to `bytes`."""

    address: int
    bytes: int
    live_bytes: int
    """In blocks that are live, with what they lose to rounding."""
    waiting_bytes: int
    free_bytes: int
    blocks: int
    """Live and waiting."""
    stream: int
    pool: tuple[int, int]
    is_large: bool
    is_expandable: bool


@dataclass(frozen=True, repr=False)
class SegmentMapResult(Result):
    """`memviz.open("run.pickle").segments_at(event=1000)`."""

    trace: Trace = field(compare=False)
    device: str
    found: SegmentsAt = field(compare=False)
    segments: tuple[SegmentUse, ...]
    """Segments in order of address."""

    @property
    def event(self) -> int:
        return self.found.event

    @property
    def reserved_bytes(self) -> int:
        return self.found.reserved_bytes

    @property
    def free_bytes(self) -> int:
        return sum(segment.free_bytes for segment in self.segments)

    @property
    def headline(self) -> Headline:
        device = chosen_device(self.trace, self.device)
        return segments_then(self.found, which(self.trace, device), len(device.events), is_known=has_reserved(device))

    def as_json(self) -> dict[str, Any]:
        names = self.columns()
        return {
            "device": self.device,
            "event": self.event,
            "reserved_bytes": self.reserved_bytes,
            "reserved_is_known": has_reserved(chosen_device(self.trace, self.device)),
            "free_bytes": self.free_bytes,
            "outside_bytes": self.found.outside_bytes,
            "segments": [dict(zip(names, row, strict=True)) for row in zip(*names.values(), strict=True)],
        }

    def columns(self) -> Mapping[str, list[Any]]:
        rows = self.segments
        return {
            "address": [address_text(row.address) for row in rows],
            "bytes": [row.bytes for row in rows],
            "live_bytes": [row.live_bytes for row in rows],
            "waiting_bytes": [row.waiting_bytes for row in rows],
            "free_bytes": [row.free_bytes for row in rows],
            "blocks": [row.blocks for row in rows],
            "stream": [row.stream for row in rows],
            "pool": [list(row.pool) for row in rows],
            "is_large": [row.is_large for row in rows],
            "is_expandable": [row.is_expandable for row in rows],
        }

    def _html(self) -> Html:
        largest = sorted(self.segments, key=lambda segment: -segment.bytes)
        rows = [_segment_row(segment, largest[0].bytes) for segment in largest[:MOST_ROWS]]
        left = largest[MOST_ROWS:]
        if left:
            parts = [sum(part) for part in zip(*(_parts(segment) for segment in left), strict=True)]
            rows.append(TableRow(tuple(map(bytes_text, (sum(parts), *parts))), f"(all {len(left):,} others)"))
        return render_table(str(self), ["bytes", "live", "waiting", "free", "segment"], rows)


def _parts(segment: SegmentUse) -> tuple[int, int, int]:
    return segment.live_bytes, segment.waiting_bytes, segment.free_bytes


def _segment_row(segment: SegmentUse, largest: int) -> TableRow:
    numbers = tuple(map(bytes_text, (segment.bytes, *_parts(segment))))
    return TableRow(numbers, address_text(segment.address), stacked(_parts(segment), largest, _OPACITIES))


def segment_map(trace: Trace, device: DeviceTrace, event: int) -> SegmentMapResult:
    found = segments_at(trace, device, event)
    segments, tiles, count = found.segments, found.tiles, len(found.segments)
    sums = {kind: sum_by(tiles.segment, np.where(tiles.kind == kind, tiles.size, 0), count) for kind in TileKind}
    blocks = np.bincount(tiles.segment[tiles.kind != TileKind.FREE], minlength=count)
    uses = tuple(
        SegmentUse(
            address=int(segments.address[i]),
            bytes=int(segments.size[i]),
            live_bytes=int(sums[TileKind.LIVE][i]),
            waiting_bytes=int(sums[TileKind.WAITING][i]),
            free_bytes=int(sums[TileKind.FREE][i]),
            blocks=int(blocks[i]),
            stream=trace.streams[int(segments.stream[i])],
            pool=trace.pools[int(segments.pool[i])],
            is_large=bool(segments.is_large[i]),
            is_expandable=bool(segments.is_expandable[i]),
        )
        for i in range(count)
    )
    return SegmentMapResult(trace, device.name, found, uses)
