"""A form in plain HTML whose every change is told at once, a moment after the last key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradio as gr

_HERE = Path(__file__).parent


def scripts() -> str:
    return f"<script>{(_HERE / 'settings_form.js').read_text(encoding='utf-8')}</script>"


class SettingsForm(gr.HTML):
    """`value` is what `memviz.ui.views.settings_form.form_value` makes.

    `input` carries the fields after each change, `click` the fields and which button it was (`act`).
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(
            html_template='<div class="mv-form-place"></div>',
            js_on_load="""memvizSettingsForm.mount(element, { props, watch, trigger: (name, data) => {
                if (name === 'input') trigger('input', data);
                if (name === 'click') trigger('click', data);
            } });""",
            apply_default_css=False,
            **options,
        )

    def api_info(self) -> dict[str, Any]:
        return {"type": "object"}


def said(event: gr.EventData) -> dict[str, Any]:
    """The fields by name. They come from a browser."""
    data = event._data if isinstance(event._data, dict) else {}
    return {str(key): value if isinstance(value, bool) else str(value) for key, value in data.items()}
