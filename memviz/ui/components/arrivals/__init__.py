"""Files on their way here, as rows beside the open traces. memviz/ui/upload/routes.py answers what worker.js asks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradio as gr

from memviz.ui.components import memory_timeline

_HERE = Path(__file__).parent


def scripts() -> str:
    """After those of `memory_timeline`. What a worker runs stands in the page as text, and needs no address."""
    worker = "\n".join((memory_timeline.raster(), _text("deflate.js"), _text("worker.js")))
    return f'<script type="text/plain" id="memviz-worker">{worker}</script><script>{_text("arrivals.js")}</script>'


def style() -> str:
    return _text("arrivals.css")


def _text(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


class Arrivals(gr.HTML):
    """Its `click` carries `stored`, a key of the store whose trace is open now; or `refused`, a name, and `reason`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(
            html_template='<div class="mv-arrivals"></div>',
            js_on_load="memvizArrivals.mount(element, (data) => trigger('click', data));",
            apply_default_css=False,
            **options,
        )
