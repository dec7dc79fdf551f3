"""One field to search with. What is typed becomes Gradio's `input`, once the typing rests; page.js gives it `/`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradio as gr

from memviz.ui.components.component import Component

LONGEST = 200
_TEMPLATE = f"""
<label class="mv-find" data-mv-find>
  <span>Find</span>
  <input type="search" maxlength="{LONGEST}" spellcheck="false" autocomplete="off"
    placeholder="function, file, &gt;10MiB, &lt;1s"
    title="All words must be found in functions, files, modules or categories.
Limits: &gt;10MiB, &lt;512KiB, &gt;1s, &lt;5ms, &gt;1000ev">
  <kbd>/</kbd>
</label>
"""


class FindField(Component):
    script = Path(__file__).parent / "find_field.js"
    tells = ("input",)

    def __init__(self, **options: Any) -> None:
        super().__init__(html_template=_TEMPLATE, **options)


def typed(event: gr.EventData) -> str:
    """It comes from a browser: a text of bounded length."""
    query = event._data.get("query", "") if isinstance(event._data, dict) else ""
    return str(query)[:LONGEST]
