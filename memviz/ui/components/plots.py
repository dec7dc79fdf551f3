"""Plots that the browser draws: timelines, their overlay, reserved bytes, ranks and segment maps.

Each has a folder with its scripts and styles.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from memviz.errors import UsageError
from memviz.figures.packed_timeline import PackedTimeline, as_sent
from memviz.trace.model import DeviceTrace, Trace
from memviz.ui.components.component import Component, Find, Request, requested_trace, served
from memviz.ui.payloads.segment_view import moment_in_replay, moment_of
from memviz.ui.payloads.timelines import piece

_MEMORY_TIMELINE = Path(__file__).parent / "memory_timeline"
Pieces = Callable[[Trace, DeviceTrace, Request], PackedTimeline]


class MemoryTimeline(Component):
    """`value` is what `payloads.timelines.timeline_value` makes; the event `select` carries what was chosen."""

    script = _MEMORY_TIMELINE / "timeline.js"
    looks = _MEMORY_TIMELINE / "timeline.css"
    tells = ("select",)

    def __init__(self, find: Find, pieces: Pieces = piece, **options: Any) -> None:
        super().__init__(server_functions=[piece_server(find, pieces)], **options)


def piece_server(find: Find, pieces: Pieces = piece) -> Callable[[Any], dict[str, Any]]:
    @served
    def timeline_piece(request: Request) -> dict[str, Any]:
        """Called by the browser: {key, piece, ...} -> {header, body}."""
        return as_sent(pieces(*requested_trace(find, request), request))

    return timeline_piece


class Overlay(Component):
    """`value`: `linked` (the timelines' name), `count` of them, `other` (which is compared), `shown`, `label`."""

    script = Path(__file__).parent / "overlay" / "overlay.js"


_RESERVED_PLOT = Path(__file__).parent / "reserved_plot"


class ReservedPlot(Component):
    """`value` is what `what_if.plots.plot_value` makes; `select` carries the event that was chosen."""

    script = _RESERVED_PLOT / "reserved_plot.js"
    looks = _RESERVED_PLOT / "reserved_plot.css"
    tells = ("select",)


_RANK_MAP = Path(__file__).parent / "rank_map"


class RankMap(Component):
    """`value` is made by `ranks.answer.rank_map_value`; `select` reports the chosen rank."""

    script = _RANK_MAP / "rank_map.js"
    looks = _RANK_MAP / "rank_map.css"
    tells = ("select",)


_SEGMENT_MAP = Path(__file__).parent / "segment_map"


class SegmentMap(Component):
    """`value` is {key, at, pin, colour, events}; see segment_map/README.md."""

    script = _SEGMENT_MAP / "segment_map.js"
    looks = _SEGMENT_MAP / "segment_map.css"

    def __init__(self, find: Find, **options: Any) -> None:
        super().__init__(server_functions=[moment_server(find)], **options)


def moment_server(find: Find) -> Callable[[Any], dict[str, Any]]:
    @served
    def segment_map(request: Request) -> dict[str, Any]:
        """Called by the browser: {key, at, colour, table} -> the map at that moment."""
        return moment_of(*requested_trace(find, request), request)

    return segment_map


_SEGMENT_PAIR = Path(__file__).parent / "segment_pair"


class SegmentPair(Component):
    """`value`: `maps`, one or two of {caption, map}; `map` is what a segment map is given."""

    script = _SEGMENT_PAIR / "segment_pair.js"
    looks = _SEGMENT_PAIR / "segment_pair.css"

    def __init__(self, find: Find, **options: Any) -> None:
        super().__init__(server_functions=[pair_server(find)], **options)


def pair_server(find: Find) -> Callable[[Any], dict[str, Any]]:
    @served
    def segment_map(request: Request) -> dict[str, Any]:
        """Like the segment map's own function, for a replay."""
        pair = find(str(request.get("key", "")))
        if pair is None:
            raise UsageError("This replay is gone. Ask again.")
        return moment_in_replay(*pair, request)

    return segment_map
