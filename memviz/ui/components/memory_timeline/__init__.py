"""The memory timeline as one Gradio component; README.md beside this file describes it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from memviz.figures.packed_timeline import PackedTimeline, as_sent
from memviz.trace.model import DeviceTrace, Trace
from memviz.ui.components.component import Component, Find, Request, served, trace_asked_for
from memviz.ui.payloads.timeline_pieces import piece

_HERE = Path(__file__).parent
Pieces = Callable[[Trace, DeviceTrace, Request], PackedTimeline]


class MemoryTimeline(Component):
    """`value` is what `timeline_value` makes; the event `select` carries what a person has chosen."""

    script = _HERE / "timeline.js"
    looks = _HERE / "timeline.css"
    tells = ("select",)

    def __init__(self, find: Find, pieces: Pieces = piece, **options: Any) -> None:
        super().__init__(server_functions=[piece_server(find, pieces)], **options)


def piece_server(find: Find, pieces: Pieces = piece) -> Callable[[Any], dict[str, Any]]:
    @served
    def timeline_piece(request: Request) -> dict[str, Any]:
        """Called by the browser: {key, piece, ...} -> {header, body}."""
        return as_sent(pieces(*trace_asked_for(find, request), request))

    return timeline_piece
