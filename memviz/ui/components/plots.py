"""Plots that the browser draws: timelines, their overlay, reserved bytes, ranks and segment maps.

Each has a folder with its scripts and styles.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from memviz.errors import UsageError
from memviz.figures.packed_timeline import PackedTimeline, as_sent
from memviz.trace.model import DeviceTrace, Trace
from memviz.ui.components.component import Component, Find, Request, requested_trace, served
from memviz.ui.payloads.segment_view import moment_in_replay, moment_of
from memviz.ui.payloads.timelines import piece

Pieces = Callable[[Trace, DeviceTrace, Request], PackedTimeline]


class MemoryTimeline(Component):
    """`value` is what `payloads.timelines.timeline_value` makes; the event `select` carries what was chosen."""

    source = "memory_timeline/timeline"
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

    source = "overlay/overlay"


class ReservedPlot(Component):
    """`value` is what `what_if.plots.plot_value` makes; `select` carries the event that was chosen."""

    source = "reserved_plot/reserved_plot"
    tells = ("select",)


class RankMap(Component):
    """`value` is made by `ranks.answer.rank_map_value`; `select` reports the chosen rank."""

    source = "rank_map/rank_map"
    tells = ("select",)


class SegmentMap(Component):
    """`value` is {key, at, pin, colour, events}; see segment_map/README.md."""

    source = "segment_map/segment_map"

    def __init__(self, find: Find, **options: Any) -> None:
        super().__init__(server_functions=[moment_server(find)], **options)


def moment_server(find: Find) -> Callable[[Any], dict[str, Any]]:
    @served
    def segment_map(request: Request) -> dict[str, Any]:
        """Called by the browser: {key, at, colour, table} -> the map at that moment."""
        return moment_of(*requested_trace(find, request), request)

    return segment_map


class SegmentPair(Component):
    """`value`: `maps`, one or two of {caption, map}; `map` is what a segment map is given."""

    source = "segment_pair/segment_pair"

    def __init__(self, find: Find, **options: Any) -> None:
        @served
        def segment_map(request: Request) -> dict[str, Any]:
            """Like the segment map's own function, for a replay."""
            pair = find(str(request.get("key", "")))
            if pair is None:
                raise UsageError("This replay is no longer available. Replay again.")
            return moment_in_replay(*pair, request)

        super().__init__(server_functions=[segment_map], **options)
