"""Which tab the page turns to by itself.

An answer that leads to another tab says so here, and `turn.js` turns the page: unless its visitor has turned to a tab
since asking, who would be taken from where they went. Gradio's own `selected` knows nothing of that. `submit` is the
page's affair alone; `select` tells of a turn that was left out, with the tab that is shown, as a click on it would.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

from memviz.ui.components.component import Component


class Turn(Component):
    script = Path(__file__).parent / "turn.js"
    tells = ("submit", "select")
    chosen = "() => memviz.turn.chosen()"
    """The update for Gradio's tabs, in the browser, where nothing else has to travel."""

    def __init__(self, **options: Any) -> None:
        super().__init__("", html_template="${value}", **options)

    def api_info(self) -> dict[str, Any]:
        return {"type": "string"}


def turn_to(tab: str) -> str:
    """The value that turns the page; to the same tab again is another turn."""
    return f"{tab} {secrets.token_hex(4)}"
