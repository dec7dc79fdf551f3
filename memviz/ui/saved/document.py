"""One self-contained HTML file: how much it holds, the views it can turn to, and the page's styles and scripts.

A policy in its head forbids every request, and every script but the one whose digest it names: text from a trace
that slipped through the escaping could not run. A control is a button of the page, whose `data-set` has the words
of the view's state that a click changes.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from html import unescape
from pathlib import Path
from typing import Any

from memviz.ui.components.scripts import bundle
from memviz.ui.html.markup import Html, dark_html, esc, tag


@dataclass(frozen=True)
class SizeBudget:
    columns: int
    """Characters that the timelines of all traces may take."""
    stacks: int
    """Characters of stacks as HTML, of all traces, before they are compressed to about a twentieth."""
    moments: int
    """With tables of their own, the peak first."""
    zooms: int
    """Boxes of the icicle that can be zoomed into."""
    every_row: bool
    """Tables have more rows than are seen at first."""


GENEROUS = SizeBudget(columns=2_100_000, stacks=2_000_000, moments=4, zooms=16, every_row=True)
SPARE = SizeBudget(columns=1_200_000, stacks=200_000, moments=1, zooms=0, every_row=False)
MOST_BYTES = 3_000_000
"""Size limit of a page."""


State = dict[str, str]
Follow = Callable[[Mapping[str, str]], State | None]
"""From the data of a control to what a click on it changes; None where that leads nowhere here."""

_BUTTON = re.compile(r"<button\b([^>]*)>(.*?)</button>", re.DOTALL)
_SWITCH = re.compile(r'<div class="mvt-switch"[^>]*>(.*?)</div>', re.DOTALL)
_LEFT = re.compile(" data-set=|<span")
"""Marks a switch that still has a choice or a label; an empty one is dropped."""
_DATA = re.compile(r' data-([\w-]+)(?:="([^"]*)")?')
_OF_BUTTONS = re.compile(r' (?:type|data-act|data-letter|draggable|role|tabindex|aria-[\w-]+)(?:="[^"]*")?')
_GONE = frozenset({"toggle", "home", "export", "close", "sample", "weight", "colour"})
"""Actions on the page's other traces, or without an equivalent in a saved page; their labels are dropped too."""
_NEEDS_THE_SERVER = ("csv", "take")


@dataclass(frozen=True)
class SavedPanel:
    place: str
    """The element's id."""
    fields: tuple[str, ...]
    """Fields of the state that the panel depends on."""
    views: Mapping[tuple[str, ...], Html]


def without_links(data: Mapping[str, str]) -> None:
    """Follow for a panel with a single view, which has no links."""


def rewrite_links(html: str, follow: Follow) -> Html:
    """Safe on our own HTML alone, in which no attribute has an angle bracket and no button is in another."""
    turned = _BUTTON.sub(lambda button: _kept(button, follow), html)
    return Html(_SWITCH.sub(lambda switch: switch[0] if _LEFT.search(switch[1]) else "", turned))


def _kept(button: re.Match[str], follow: Follow) -> str:
    attributes, words = button[1], button[2]
    data = {_camel(name): unescape(value) for name, value in _DATA.findall(attributes)}
    if any(name in data for name in _NEEDS_THE_SERVER) or data.get("act") in _GONE:
        return ""
    if "act" not in data:
        return button[0]
    change = follow(data)
    if change is None:
        return f"<span{_OF_BUTTONS.sub('', attributes)}>{words}</span>"
    return f'<button{attributes} data-set="{esc(json.dumps(change))}">{words}</button>'


def _camel(name: str) -> str:
    """Return a data attribute's name as browsers spell it in `dataset`."""
    first, *rest = name.split("-")
    return first + "".join(word.capitalize() for word in rest)


class Texts:
    """Each text once, by its number: panels have many in common."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        return self._numbers.setdefault(text, len(self._numbers))

    def all(self) -> list[str]:
        return list(self._numbers)


def panel_data(panel: SavedPanel, texts: Texts) -> dict[str, object]:
    views = {"|".join(state): texts.number(html) for state, html in panel.views.items()}
    return {"place": panel.place, "fields": panel.fields, "views": views}


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
