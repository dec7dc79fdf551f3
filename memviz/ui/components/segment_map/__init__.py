"""The allocator's map as one Gradio component; README.md beside this file describes it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from memviz.trace.model import DeviceTrace, Trace
from memviz.ui.components.component import Component, Find, Request, as_sent, served, trace_asked_for
from memviz.ui.explore.segments import segment_view

_HERE = Path(__file__).parent


class SegmentMap(Component):
    """`value` is {key, at, pin, colour, events}; see README.md."""

    script = _HERE / "segment_map.js"
    looks = _HERE / "segment_map.css"

    def __init__(self, find: Find, **options: Any) -> None:
        super().__init__(server_functions=[moment_server(find)], **options)


def moment_server(find: Find) -> Callable[[Any], dict[str, Any]]:
    @served
    def segment_map(request: Request) -> dict[str, Any]:
        """Called by the browser: {key, at, colour, table} -> the map at that moment."""
        return moment_of(*trace_asked_for(find, request), request)

    return segment_map


def moment_of(trace: Trace, device: DeviceTrace, request: Request) -> dict[str, Any]:
    wanted = request.get("at")
    event = wanted if isinstance(wanted, int) else -1
    event = min(max(event, -1), len(device.events) - 1)
    meaning = str(request.get("colour") or "category")
    view = segment_view(trace, device, event, meaning=meaning, with_table=bool(request.get("table")))
    return {
        "title": view.title,
        "figures": view.figures,
        "table": view.table,
        **as_sent(view.drawing),
    }
