"""The memory timeline as one Gradio component; README.md beside this file describes it."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gradio as gr

from memviz.errors import MemvizError
from memviz.trace.model import DeviceTrace, Trace
from memviz.ui.payloads.timeline_pieces import piece

_HERE = Path(__file__).parent
Find = Callable[[str], tuple[Trace, DeviceTrace] | None]
"""The trace and device behind a key; None for a key that nobody (any more) has."""


def scripts() -> str:
    """For the page's head: once, however many timelines there are."""
    texts = ((_HERE / name).read_text(encoding="utf-8") for name in ("words.js", "timeline.js", "total.js"))
    return "".join(f"<script>{text}</script>" for text in (raster(), *texts))


def raster() -> str:
    """What draws and unpacks; it needs no page."""
    return (_HERE / "raster.js").read_text(encoding="utf-8")


def style() -> str:
    return (_HERE / "timeline.css").read_text(encoding="utf-8")


class MemoryTimeline(gr.HTML):
    """`value` is what `timeline_value` makes; the event `select` carries what a person has chosen."""

    def __init__(self, find: Find, **options: Any) -> None:
        super().__init__(
            html_template='<div class="mvt-place"></div>',
            js_on_load="""memvizTimeline.mount(element, { props, watch, server, trigger: (name, data) => {
                if (name === 'select') trigger('select', data);
            } });""",
            server_functions=[piece_server(find)],
            apply_default_css=False,
            **options,
        )

    def api_info(self) -> dict[str, Any]:
        return {"type": "object"}


def piece_server(find: Find) -> Callable[[Any], dict[str, Any]]:
    def timeline_piece(request: Any) -> dict[str, Any]:
        """Called by the browser: {key, piece, ...} -> {header, body}."""
        asked = request[0] if isinstance(request, list) and request else request
        found = find(str(asked.get("key", ""))) if isinstance(asked, dict) else None
        if found is None:
            raise gr.Error("This trace is not open any more.", print_exception=False)
        try:
            packed = piece(*found, asked)
        except MemvizError as error:
            raise gr.Error(str(error), print_exception=False) from None
        return {"header": packed.header, "body": base64.b64encode(packed.body).decode("ascii")}

    return timeline_piece
