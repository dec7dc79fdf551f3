"""All events of a device as one Gradio component that scrolls; README.md beside this file describes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path
from typing import Any

from memviz.trace.model import DeviceTrace, Trace
from memviz.ui.components.component import Component, Find, Request, served, trace_asked_for
from memviz.ui.payloads.event_rows import EventFilter, EventSelection, chosen_events, event_rows

_HERE = Path(__file__).parent
MOST_ROWS = 400
"""Of one answer, whatever a browser asks for."""
_LONGEST_TEXT = 200


class EventList(Component):
    """`value` is what `memviz.ui.payloads.event_rows.list_value` makes."""

    script = _HERE / "event_list.js"
    looks = _HERE / "event_list.css"

    def __init__(self, find: Find, **options: Any) -> None:
        super().__init__(server_functions=[page_server(find), place_server(find)], **options)


def page_server(find: Find) -> Callable[[Any], list[Any]]:
    @served
    def event_page(request: Request) -> list[Any]:
        """Called by the browser: {key, actions, text, first, last} -> rows first <= row < last, cells in order."""
        trace, device, chosen = _chosen(find, request)
        first = _whole(request.get("first"))
        events = chosen.rows(first, min(_whole(request.get("last")), first + MOST_ROWS))
        return [list(astuple(row)) for row in event_rows(trace, device, events)]

    return event_page


def place_server(find: Find) -> Callable[[Any], dict[str, Any]]:
    @served
    def event_place(request: Request) -> dict[str, Any]:
        """Called by the browser: {key, actions, text, at} -> how long the list is, and where that event stands."""
        _, _, chosen = _chosen(find, request)
        place = chosen.place_of(_whole(request.get("at")))
        return {"row": place.row, "is_there": place.is_there, "count": place.count}

    return event_place


def _chosen(find: Find, request: Request) -> tuple[Trace, DeviceTrace, EventSelection]:
    trace, device = trace_asked_for(find, request)
    return trace, device, chosen_events(trace, device, _filter(request))


def _filter(request: Request) -> EventFilter:
    actions = request.get("actions")
    numbers = tuple(sorted({_whole(action) for action in actions[:256]})) if isinstance(actions, list) else ()
    return EventFilter(numbers, str(request.get("text") or "").strip()[:_LONGEST_TEXT])


def _whole(value: Any) -> int:
    return value if isinstance(value, int) else 0
