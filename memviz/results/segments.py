"""The allocator's segments at a moment, and how each is used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from memviz.analysis.devices import choose_device, name_device
from memviz.analysis.segments import SegmentsAt, TileKind, segments_at
from memviz.analysis.sums import sum_by
from memviz.analysis.timeline import has_reserved
from memviz.results.headline import Headline
from memviz.results.live import moment_text
from memviz.results.result import Result, Table, TableRow, stacked_bars
from memviz.trace.model import DeviceTrace, Trace, address_text
from memviz.units import bytes_text, counted, percent_text

_OPACITIES = (0.75, 0.4, 0.12)
"""Live, waiting, free."""


@dataclass(frozen=True)
class SegmentUse:
    """One segment, or one mapped range of an expandable one. The three parts add up to `bytes`."""

    address: int
    bytes: int
    live_bytes: int
    """Live blocks, rounding included."""
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
        device = choose_device(self.trace, self.device)
        which = name_device(self.trace, device)
        event_count = len(device.events)
        is_reserved_known = has_reserved(device)
        reserved, segments = self.found.reserved_bytes, counted(len(self.found.segments), "segment")
        where = moment_text(which, self.found.event, event_count)
        if not is_reserved_known:
            return Headline(f"The file does not say what is reserved{where}.")
        if not reserved:
            return Headline(f"Nothing is reserved{where}.")
        free = int(self.found.tiles.size[self.found.tiles.kind == TileKind.FREE].sum())
        share = f"{bytes_text(free)} ({percent_text(free, reserved)})"
        return Headline(
            f"{bytes_text(reserved)} are reserved in {segments}{where}.",
            f"Blocks use {bytes_text(reserved - free)}; {share} are free.",
        )

    def as_json(self) -> dict[str, Any]:
        names = self.columns()
        return {
            "device": self.device,
            "event": self.event,
            "reserved_bytes": self.reserved_bytes,
            "reserved_is_known": has_reserved(choose_device(self.trace, self.device)),
            "free_bytes": self.free_bytes,
            "outside_bytes": self.found.outside_bytes,
            "segments": [dict(zip(names, row, strict=True)) for row in zip(*names.values(), strict=True)],
        }

    def columns(self) -> Mapping[str, list[Any]]:
        columns = {name: [getattr(segment, name) for segment in self.segments] for name in SegmentUse.__annotations__}
        return {
            **columns,
            "address": [address_text(segment.address) for segment in self.segments],
            "pool": [list(segment.pool) for segment in self.segments],
        }

    def table(self, most: int | None = None) -> Table:
        largest = sorted(self.segments, key=lambda segment: -segment.bytes)
        rows = []
        for segment in largest[:most]:
            numbers = tuple(map(bytes_text, (segment.bytes, *_bytes_of_states(segment))))
            bars = stacked_bars(_bytes_of_states(segment), largest[0].bytes, _OPACITIES)
            rows.append(TableRow(numbers, address_text(segment.address), bars))
        if rest := largest[len(rows) :]:
            parts = [sum(part) for part in zip(*map(_bytes_of_states, rest), strict=True)]
            rows.append(TableRow(tuple(map(bytes_text, (sum(parts), *parts))), f"(all {len(rest):,} others)"))
        return Table(("bytes", "live", "waiting", "free", "segment"), tuple(rows))


def _bytes_of_states(segment: SegmentUse) -> tuple[int, int, int]:
    return segment.live_bytes, segment.waiting_bytes, segment.free_bytes


def segments_result(trace: Trace, device: DeviceTrace, event: int) -> SegmentMapResult:
    moment = segments_at(trace, device, event)
    segments, tiles, count = moment.segments, moment.tiles, len(moment.segments)
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
    return SegmentMapResult(trace, device.name, moment, uses)
