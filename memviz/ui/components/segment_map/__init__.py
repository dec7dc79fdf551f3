"""The allocator's map as one Gradio component; README.md beside this file describes it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from memviz.ui.components.component import Component, Find, Request, served, trace_asked_for
from memviz.ui.payloads.segment_view import moment_of

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
