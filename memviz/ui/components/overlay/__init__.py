"""Several traces over each other, drawn in the browser from the timelines that stand side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradio as gr

_HERE = Path(__file__).parent


def scripts() -> str:
    """For the page's head, after those of `memory_timeline`."""
    return f"<script>{(_HERE / 'overlay.js').read_text(encoding='utf-8')}</script>"


class Overlay(gr.HTML):
    """`value`: `linked` (the timelines' name), `count` of them, `other` (which is compared), `shown`, `label`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(
            html_template='<div class="mvt-place"></div>',
            js_on_load="memvizOverlay.mount(element, { props, watch });",
            apply_default_css=False,
            **options,
        )

    def api_info(self) -> dict[str, Any]:
        return {"type": "object"}
