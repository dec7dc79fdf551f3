"""A piece of the page that is plain HTML, and tells what was clicked in it.

Whatever has `data-act` is a control: a click on it, or Enter and Space on it, becomes Gradio's `click` with the
element's data. The HTML comes from our own makers of HTML, which escapes every text.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradio as gr

from memviz.ui.components.component import Component


class Panel(Component):
    script = Path(__file__).parent / "panel.js"
    tells = ("click",)

    def __init__(self, value: str = "", **options: Any) -> None:
        super().__init__(value, html_template="${value}", **options)

    def api_info(self) -> dict[str, Any]:
        return {"type": "string"}


def clicked(event: gr.EventData) -> dict[str, str]:
    """The data of what was clicked. It comes from a browser: texts only."""
    data = event._data if isinstance(event._data, dict) else {}
    return {str(key): str(value) for key, value in data.items()}
