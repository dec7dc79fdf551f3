"""One field to search with. What is typed becomes Gradio's `input`, once the typing rests; page.js gives it `/`."""

from __future__ import annotations

from typing import Any

import gradio as gr

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
_LISTEN = """
const field = element.querySelector('input');
const tell = () => trigger('input', { query: field.value });
let resting;
field.addEventListener('input', () => {
  clearTimeout(resting);
  resting = setTimeout(tell, 150);
});
field.addEventListener('keydown', (event) => {
  if (event.key === 'Escape' && field.value) {
    event.stopPropagation();
    field.value = '';
    tell();
  } else if (event.key === 'Escape') field.blur();
});
"""


class FindField(gr.HTML):
    def __init__(self, **options: Any) -> None:
        super().__init__(html_template=_TEMPLATE, js_on_load=_LISTEN, apply_default_css=False, **options)


def typed(event: gr.EventData) -> str:
    """It comes from a browser: a text of bounded length."""
    query = event._data.get("query", "") if isinstance(event._data, dict) else ""
    return str(query)[:LONGEST]
