"""A form in plain HTML: its fields are told a moment after the last change, its buttons at once.

`value` is a dict: `html` is drawn when `version` changes, `faults` go by field to what has `data-fault`, and `parts`,
made by our views, replace what is inside the elements with `data-part`. So a visitor is never interrupted while typing.
A select with `data-for` holds usual values for that field. One with `data-fills` says that field's value, the
`data-usable` of what is chosen, until something else is typed there. The text of a file that is chosen where
`data-reads` names a field, or dropped on one with `data-dropped`, becomes that field's value.

It travels as one text. Of an object Gradio would send the differences from one yield to the next and apply them in
the page to the very object that it has handed over, and a value that is not drawn yet when `gr.skip()` follows is lost.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gradio as gr

from memviz.ui.components.component import Component


class PlainForm(Component):
    """`input` carries the fields after a change, `click` the fields and the data of the button (`act` and more)."""

    script = Path(__file__).parent / "plain_form.js"
    tells = ("input", "click")

    def postprocess(self, value: Any) -> str:
        return json.dumps(value) if isinstance(value, dict) else ""


def form_fields(event: gr.EventData) -> dict[str, Any]:
    """The fields by name. They come from a browser: texts and booleans only."""
    data = event._data if isinstance(event._data, dict) else {}
    return {str(key): value if isinstance(value, bool) else str(value) for key, value in data.items()}
