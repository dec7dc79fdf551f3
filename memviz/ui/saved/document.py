"""One self-contained HTML file: the page's own styles and scripts, and what the page's server would be asked for.

A policy in its head forbids every request, and every script but the one whose digest it names: so a text from a
trace that slipped through the escaping still could not run.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from memviz.ui.components.scripts import bundle
from memviz.ui.html.markup import Html, esc, tag
from memviz.ui.html.words import dark_html
from memviz.ui.saved.views import SavedPanel, State, Texts, panel_data

_UI = Path(__file__).parents[1]
_STYLES = (
    "shell/page_frame.css",
    "explore/explore.css",
    "compare/compare.css",
    "what_if/what_if.css",
    "components/memory_timeline/timeline.css",
    "components/segment_map/segment_map.css",
    "components/reserved_plot/reserved_plot.css",
    "components/segment_pair/segment_pair.css",
    "saved/saved.css",
)
_SCRIPTS = (_UI / "shell" / "page.js", _UI / "saved" / "saved.js")
_LEVEL = 6


@dataclass(frozen=True)
class Document:
    title: str
    body: Html
    panels: Sequence[SavedPanel] = ()
    start: State = field(default_factory=dict)
    texts: Texts = field(default_factory=Texts)
    data: dict[str, Any] = field(default_factory=dict)


def html_text(document: Document) -> str:
    script = _script()
    foot = "Made with memviz. Nothing on this page was loaded from elsewhere."
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_policy(script)}">
<title>{esc(document.title)}</title>
<style>{_style()}</style>
</head>
<body>
<div class="gradio-container mv-saved"><main>
{document.body}
</main>
{tag("div", foot, " ", dark_html(), class_="mv-foot")}
</div>
<script type="application/json" id="mv-saved">{_json(document)}</script>
<script>{script}</script>
</body>
</html>
"""


def _policy(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


@cache
def _style() -> str:
    return "\n".join(_read(name) for name in _STYLES)


@cache
def _script() -> str:
    return bundle(*_SCRIPTS)


def _read(name: str) -> str:
    return (_UI / name).read_text(encoding="utf-8")


def _json(document: Document) -> str:
    panels = [panel_data(panel, document.texts) for panel in document.panels]
    packed = zlib.compress(json.dumps(document.texts.all()).encode("ascii"), _LEVEL)
    whole = {
        **document.data,
        "panels": panels,
        "state": document.start,
        "texts": base64.b64encode(packed).decode("ascii"),
    }
    # All ASCII, and nothing in a text can end the script element or start another.
    text = json.dumps(whole, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
