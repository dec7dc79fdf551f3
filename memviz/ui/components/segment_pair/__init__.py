"""Two segment maps beside each other: the same length in bytes is the same length in both."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gradio as gr

from memviz.errors import MemvizError
from memviz.ui.components.segment_map import Find
from memviz.ui.payloads.segment_view import moment_in_replay

_HERE = Path(__file__).parent


def scripts() -> str:
    """For the page's head, after those of `segment_map`."""
    return f"<script>{(_HERE / 'segment_pair.js').read_text(encoding='utf-8')}</script>"


def style() -> str:
    return (_HERE / "segment_pair.css").read_text(encoding="utf-8")


class SegmentPair(gr.HTML):
    """`value`: `maps`, one or two of {caption, map}; `map` is what a segment map is given."""

    def __init__(self, find: Find, **options: Any) -> None:
        super().__init__(
            html_template='<div class="mvp-place"></div>',
            js_on_load="memvizSegmentPair.mount(element, { props, watch, server });",
            server_functions=[pair_server(find)],
            apply_default_css=False,
            **options,
        )

    def api_info(self) -> dict[str, Any]:
        return {"type": "object"}


def pair_server(find: Find) -> Callable[[Any], dict[str, Any]]:
    def segment_map(request: Any) -> dict[str, Any]:
        asked = request[0] if isinstance(request, list) and request else request
        found = find(str(asked.get("key", ""))) if isinstance(asked, dict) else None
        if found is None:
            raise gr.Error("This replay is gone. Ask again.", print_exception=False)
        try:
            return moment_in_replay(*found, asked)
        except MemvizError as error:
            raise gr.Error(str(error), print_exception=False) from None

    return segment_map
