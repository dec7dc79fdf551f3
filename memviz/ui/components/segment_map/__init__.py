"""The allocator's map as one Gradio component; README.md beside this file describes it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gradio as gr

from memviz.errors import MemvizError
from memviz.trace.model import DeviceTrace, Trace
from memviz.ui.payloads.segment_view import moment_of

_HERE = Path(__file__).parent
Find = Callable[[str], tuple[Trace, DeviceTrace] | None]


def scripts() -> str:
    """For the page's head, after the timeline's: it unpacks with that one's reader."""
    texts = ((_HERE / name).read_text(encoding="utf-8") for name in ("layout.js", "segment_map.js"))
    return "".join(f"<script>{text}</script>" for text in texts)


def style() -> str:
    return (_HERE / "segment_map.css").read_text(encoding="utf-8")


class SegmentMap(gr.HTML):
    """`value` is {key, at, pin, colour, events}; see README.md."""

    def __init__(self, find: Find, **options: Any) -> None:
        super().__init__(
            html_template='<div class="mvs-place"></div>',
            js_on_load="memvizSegmentMap.mount(element, { props, watch, server });",
            server_functions=[moment_server(find)],
            apply_default_css=False,
            **options,
        )

    def api_info(self) -> dict[str, Any]:
        return {"type": "object"}


def moment_server(find: Find) -> Callable[[Any], dict[str, Any]]:
    def segment_map(request: Any) -> dict[str, Any]:
        """Called by the browser: {key, at, colour, table} -> the map at that moment."""
        asked = request[0] if isinstance(request, list) and request else request
        found = find(str(asked.get("key", ""))) if isinstance(asked, dict) else None
        if found is None:
            raise gr.Error("This trace is not open any more.", print_exception=False)
        try:
            return moment_of(*found, asked)
        except MemvizError as error:
            raise gr.Error(str(error), print_exception=False) from None

    return segment_map
