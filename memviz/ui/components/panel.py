"""A piece of the page that is plain HTML, and tells what was clicked in it.

Whatever has `data-act` is a control: a click on it, or Enter and Space on it, becomes Gradio's `click` with the
element's data. The HTML comes from our own makers of HTML, which escapes every text.
"""

from __future__ import annotations

from typing import Any

import gradio as gr

_LISTEN = """
const tell = (target) => trigger('click', { ...target.dataset });
element.addEventListener('click', (event) => {
  const target = event.target.closest('[data-act]');
  if (target && element.contains(target)) tell(target);
});
element.addEventListener('keydown', (event) => {
  if (event.key !== 'Enter' && event.key !== ' ') return;
  const target = event.target.closest('[data-act]');
  if (!target || target.tagName === 'BUTTON' || target.tagName === 'A') return;
  event.preventDefault();
  tell(target);
});
"""


class Panel(gr.HTML):
    def __init__(self, value: str = "", **options: Any) -> None:
        super().__init__(value, js_on_load=_LISTEN, apply_default_css=False, **options)


def clicked(event: gr.EventData) -> dict[str, str]:
    """The data of what was clicked. It comes from a browser: texts only."""
    data = event._data if isinstance(event._data, dict) else {}
    return {str(key): str(value) for key, value in data.items()}
