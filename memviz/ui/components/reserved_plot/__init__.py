"""Live bytes, and what was reserved for them as recorded and as replayed, as one picture drawn in the browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradio as gr

_HERE = Path(__file__).parent


def scripts() -> str:
    """For the page's head, after those of `memory_timeline`, whose axes and words it shares."""
    return f"<script>{(_HERE / 'reserved_plot.js').read_text(encoding='utf-8')}</script>"


def style() -> str:
    return (_HERE / "reserved_plot.css").read_text(encoding="utf-8")


class ReservedPlot(gr.HTML):
    """`value` is what `what_if.reserved_plot.plot_value` makes; `select` carries the event that was chosen."""

    def __init__(self, **options: Any) -> None:
        super().__init__(
            html_template='<div class="mvr-place"></div>',
            js_on_load="""memvizReservedPlot.mount(element, { props, watch, trigger: (name, data) => {
                if (name === 'select') trigger('select', data);
            } });""",
            apply_default_css=False,
            **options,
        )

    def api_info(self) -> dict[str, Any]:
        return {"type": "object"}
