"""What a saved page can turn to: each panel's HTML for every state that was worked out beforehand.

A state is a few words by name, as `by: site`. A control is a button of the page's own HTML; it is given `data-set`,
the words that a click on it changes. What leads to nothing that was saved is no button: its words stay, or it goes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html import unescape

from memviz.ui.html.markup import Html, esc

State = dict[str, str]
Follow = Callable[[Mapping[str, str]], State | None]
"""From the data of a control to what a click on it changes; None where that leads nowhere here."""

_BUTTON = re.compile(r"<button\b([^>]*)>(.*?)</button>", re.DOTALL)
_SWITCH = re.compile(r'<div class="mvt-switch"[^>]*>(.*?)</div>', re.DOTALL)
_LEFT = re.compile(" data-set=|<span")
"""Of a switch: a choice, or the words of one. One that is off says nothing by itself."""
_DATA = re.compile(r' data-([\w-]+)(?:="([^"]*)")?')
_OF_BUTTONS = re.compile(r' (?:type|data-act|data-letter|draggable|role|tabindex|aria-[\w-]+)(?:="[^"]*")?')
_GONE = frozenset({"toggle", "home", "export", "close", "sample", "weight", "colour"})
"""What acts on the page's other traces, or asks for what no saved page has; its words alone would say nothing."""
_NEEDS_THE_SERVER = ("csv", "take")


@dataclass(frozen=True)
class SavedPanel:
    place: str
    """The element's id."""
    fields: tuple[str, ...]
    """Of the state, those that it depends on."""
    views: Mapping[tuple[str, ...], Html]


def nowhere(data: Mapping[str, str]) -> None:
    """Of a panel that has one view."""


def with_ways(html: str, follow: Follow) -> Html:
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
    """As browsers spell it in `dataset`."""
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
