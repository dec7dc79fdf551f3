"""All events of a device as one Gradio component that scrolls; README.md beside this file describes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path
from typing import Any

import gradio as gr

from memviz.trace.model import DeviceTrace, Trace
from memviz.ui.payloads.event_rows import EventFilter, EventSelection, chosen_events, event_rows

_HERE = Path(__file__).parent
Find = Callable[[str], tuple[Trace, DeviceTrace] | None]
MOST_ROWS = 400
"""Of one answer, whatever a browser asks for."""
_LONGEST_TEXT = 200


def scripts() -> str:
    """For the page's head: once, however many lists there are."""
    return f"<script>{(_HERE / 'event_list.js').read_text(encoding='utf-8')}</script>"


def style() -> str:
    return (_HERE / "event_list.css").read_text(encoding="utf-8")


class EventList(gr.HTML):
    """`value` is what `memviz.ui.payloads.event_rows.list_value` makes."""

    def __init__(self, find: Find, **options: Any) -> None:
        super().__init__(
            html_template='<div class="mve-place"></div>',
            js_on_load="memvizEventList.mount(element, { props, watch, server });",
            server_functions=[page_server(find), place_server(find)],
            apply_default_css=False,
            **options,
        )

    def api_info(self) -> dict[str, Any]:
        return {"type": "object"}


def page_server(find: Find) -> Callable[[Any], list[Any]]:
    def event_page(request: Any) -> list[Any]:
        """Called by the browser: {key, actions, text, first, last} -> rows first <= row < last, cells in order."""
        trace, device, chosen, asked = _chosen(find, request)
        first = _whole(asked.get("first"))
        events = chosen.rows(first, min(_whole(asked.get("last")), first + MOST_ROWS))
        return [list(astuple(each)) for each in event_rows(trace, device, events)]

    return event_page


def place_server(find: Find) -> Callable[[Any], dict[str, Any]]:
    def event_place(request: Any) -> dict[str, Any]:
        """Called by the browser: {key, actions, text, at} -> how long the list is, and where that event stands."""
        _, _, chosen, asked = _chosen(find, request)
        place = chosen.place_of(_whole(asked.get("at")))
        return {"row": place.row, "is_there": place.is_there, "count": place.count}

    return event_place


def _chosen(find: Find, request: Any) -> tuple[Trace, DeviceTrace, EventSelection, dict[str, Any]]:
    asked = request[0] if isinstance(request, list) and request else request
    found = find(str(asked.get("key", ""))) if isinstance(asked, dict) else None
    if found is None:
        raise gr.Error("This trace is not open any more.", print_exception=False)
    return (*found, chosen_events(*found, _filter(asked)), asked)


def _filter(asked: dict[str, Any]) -> EventFilter:
    actions = asked.get("actions")
    numbers = tuple(sorted({_whole(each) for each in actions[:256]})) if isinstance(actions, list) else ()
    return EventFilter(numbers, str(asked.get("text") or "").strip()[:_LONGEST_TEXT])


def _whole(value: Any) -> int:
    return value if isinstance(value, int) else 0
