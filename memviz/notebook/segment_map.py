"""The allocator's map at a moment: its segments, and how each is used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from memviz.analysis.segments import SegmentsAt, TileKind, segments_at
from memviz.analysis.sums import sum_by
from memviz.analysis.timeline import has_reserved
from memviz.analysis.which_device import chosen_device, which
from memviz.headlines.explore import segments_then
from memviz.headlines.headline import Headline
from memviz.notebook.result import Result
from memviz.notebook.table import MOST_ROWS, TableRow, drawn, stacked
from memviz.trace.model import DeviceTrace, Trace, address_text
from memviz.ui.html.markup import Html
from memviz.units import bytes_text

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
class SegmentMap(Result):
    """`memviz.open("run.pickle").segments_at(event=1000)`."""

    trace: Trace = field(compare=False)
    device: str
    found: SegmentsAt = field(compare=False)
    segments: tuple[SegmentUse, ...]
    """By address."""

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
        rows = [_row(segment, largest[0].bytes) for segment in largest[:MOST_ROWS]]
        left = largest[MOST_ROWS:]
        if left:
            parts = [sum(part) for part in zip(*(_parts(segment) for segment in left), strict=True)]
            rows.append(TableRow(tuple(map(bytes_text, (sum(parts), *parts))), f"(all {len(left):,} others)"))
        return drawn(str(self), ["bytes", "live", "waiting", "free", "segment"], rows)


def _parts(segment: SegmentUse) -> tuple[int, int, int]:
    return segment.live_bytes, segment.waiting_bytes, segment.free_bytes


def _row(segment: SegmentUse, largest: int) -> TableRow:
    numbers = tuple(map(bytes_text, (segment.bytes, *_parts(segment))))
    return TableRow(numbers, address_text(segment.address), stacked(_parts(segment), largest, _OPACITIES))


def segment_map(trace: Trace, device: DeviceTrace, event: int) -> SegmentMap:
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
    return SegmentMap(trace, device.name, found, uses)
