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
from pathlib import Path
from typing import Any

from memviz.text import Attributes, Html, dark_html, esc, rewriting, tag
from memviz.ui.components.scripts import bundle


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

_DROPPED_ACTS = frozenset({"toggle", "home", "close", "sample", "weight", "colour", "open", "pin", "unpin", "compare"})
"""Actions on the page's other traces, or without an equivalent in a saved page; their labels are dropped too."""
_DROPPED_TABS = frozenset({"segments", "events"})
_BUTTONS_ONLY = frozenset({"type", "data_act", "data_letter", "role", "tabindex"})
"""Attributes that a button loses, besides those for screen readers, where it becomes plain text."""


@dataclass(frozen=True)
class SavedPanel:
    place: str
    """The element's id."""
    fields: tuple[str, ...]
    """Fields of the state that the panel depends on."""
    views: Mapping[tuple[str, ...], Html]


class SavedLinks:
    """Rewrites the elements of the page's views for a saved page, and notes which rows they highlight.

    A button whose click the saved page can follow gets `data-set`; one that leads nowhere becomes plain text.
    """

    def __init__(self, follow: Follow = lambda data: None, *, lights_paths: bool = True) -> None:
        self._follow = follow
        self._lights_paths = lights_paths
        self.lights: dict[tuple[str, str], None] = {}
        """Groupings and groups that elements highlight, in their order."""
        self.compared: dict[tuple[str, str], None] = {}
        """The same of the comparison's rows."""

    def __enter__(self) -> SavedLinks:
        self._rewriting = rewriting(self._rewrite)
        self._rewriting.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._rewriting.__exit__(*error)

    def _rewrite(self, name: str, attributes: Attributes, content: Html) -> tuple[str, Attributes] | None:
        for prefix, group, noted in (("light", "light_group", self.lights), ("compare", "compare_row", self.compared)):
            if f"data_{prefix}_by" in attributes:
                noted[str(attributes[f"data_{prefix}_by"]), str(attributes[f"data_{group}"])] = None
        # Of a switch without a choice or a label nothing is left to see.
        if attributes.get("class_") == "mvt-switch" and " data-set=" not in content and "<span" not in content:
            return None
        rewritten = self._button(attributes) if name == "button" else (name, attributes)
        if rewritten is not None and not self._lights_paths and attributes.get("data_light_by") == "path":
            unlit = {key: value for key, value in rewritten[1].items() if not key.startswith("data_light_")}
            return rewritten[0], unlit
        return rewritten

    def _button(self, attributes: Attributes) -> tuple[str, Attributes] | None:
        data = {
            # As browsers spell it in `dataset`.
            re.sub("_(.)", lambda match: match[1].upper(), name.removeprefix("data_")): ""
            if value is True
            else str(value)
            for name, value in attributes.items()
            if name.startswith("data_") and value is not None and value is not False
        }
        act = data.get("act")
        if act in _DROPPED_ACTS or "csv" in data or (act == "tab" and data.get("value") in _DROPPED_TABS):
            return None
        if act is None:
            return "button", attributes
        change = self._follow(data)
        if change is not None:
            return "button", {**attributes, "data_set": json.dumps(change)}
        dropped = _BUTTONS_ONLY | {name for name in attributes if name.startswith("aria_")}
        return "span", {name: value for name, value in attributes.items() if name not in dropped}


class Texts(dict[str, int]):
    """Numbered texts without duplicates: panels share many."""

    def number(self, text: str) -> int:
        return self.setdefault(text, len(self))


_UI = Path(__file__).parents[1]
_STYLES = (
    "shell/page_frame.css",
    "explore/explore.css",
    "compare/compare.css",
    "ranks/ranks.css",
    "what_if/what_if.css",
    "run/run.css",
    "run/fit.css",
    "components/rank_map/rank_map.css",
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
    style, script = _style_and_script()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    foot = "Made with memviz. This page loads nothing from other addresses."
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{esc(document.title)}</title>
<style>{style}</style>
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


@cache
def _style_and_script() -> tuple[str, str]:
    return "\n".join((_UI / name).read_text(encoding="utf-8") for name in _STYLES), bundle(*_SCRIPTS)


def _json(document: Document) -> str:
    panels = []
    for panel in document.panels:
        views = {"|".join(state): document.texts.number(html) for state, html in panel.views.items()}
        panels.append({"place": panel.place, "fields": panel.fields, "views": views})
    packed = zlib.compress(json.dumps(list(document.texts)).encode("ascii"), _LEVEL)
    payload = {
        **document.data,
        "panels": panels,
        "state": document.start,
        "texts": base64.b64encode(packed).decode("ascii"),
    }
    # All ASCII, and nothing in a text can end the script element or start another.
    text = json.dumps(payload, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
