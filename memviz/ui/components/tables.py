"""Tables in the browser: the list of events, and panels whose rows highlight allocations in the timelines.

Each has a folder with its scripts and styles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from typing import Any

from memviz.analysis.comparing.matching import Pair, match_allocations
from memviz.analysis.lifetimes import lifetimes
from memviz.errors import UsageError
from memviz.figures.packed_timeline import PackedTimeline, as_sent, pack_selection
from memviz.trace.model import DeviceTrace, Trace
from memviz.ui.components.component import Component, Find, Panel, Request, requested_trace, served
from memviz.ui.payloads.event_rows import EventFilter, EventSelection, chosen_events, event_rows

MOST_ROWS = 400
"""Limit per answer, for any number that a browser requests."""
_LONGEST_TEXT = 200


class EventList(Component):
    """`value` is what `memviz.ui.payloads.event_rows.list_value` makes."""

    source = "event_list/event_list"

    def __init__(self, find: Find, **options: Any) -> None:
        super().__init__(server_functions=[page_server(find), place_server(find)], **options)


def page_server(find: Find) -> Callable[[Any], list[Any]]:
    @served
    def event_page(request: Request) -> list[Any]:
        """Called by the browser: {key, actions, text, first, last} -> rows first <= row < last, cells in order."""
        trace, device, chosen = _chosen_events(find, request)
        first = _integer(request.get("first"))
        events = chosen.rows(first, min(_integer(request.get("last")), first + MOST_ROWS))
        return [list(astuple(row)) for row in event_rows(trace, device, events)]

    return event_page


def place_server(find: Find) -> Callable[[Any], dict[str, Any]]:
    @served
    def event_place(request: Request) -> dict[str, Any]:
        """Called by the browser: {key, actions, text, at} -> length of the list and position of that event."""
        return _chosen_events(find, request)[2].place_of(_integer(request.get("at")))

    return event_place


def _chosen_events(find: Find, request: Request) -> tuple[Trace, DeviceTrace, EventSelection]:
    trace, device = requested_trace(find, request)
    actions = request.get("actions")
    numbers = tuple(sorted({_integer(action) for action in actions[:256]})) if isinstance(actions, list) else ()
    wanted = EventFilter(numbers, str(request.get("text") or "").strip()[:_LONGEST_TEXT])
    return trace, device, chosen_events(trace, device, wanted)


def _integer(value: Any) -> int:
    return value if isinstance(value, int) else 0


MakeCsv = Callable[[Mapping[str, str]], str]
"""From a button's data to the table. Raises MemvizError for what it cannot know."""


class HighlightPanel(Panel):
    """A panel whose rows highlight allocations in the timeline; a clicked row stays highlighted.

    A row, of a table or a list, has `data-light-by` and `data-light-group`, as page.js has it, and a button with
    `data-keep`. An element with `data-light-rest` and `data-light-rest-group` says what is highlighted while no row is
    pointed at or kept. A button with `data-csv` asks the server function `table_csv` with all its data; `data-name`
    is the file's. Icicles are walked with arrow keys.
    """

    source = "lit_panel/lit_panel"

    def __init__(self, make_csv: MakeCsv, **options: Any) -> None:
        @served
        def table_csv(request: Request) -> str:
            """Called by the browser with the data of the button."""
            return make_csv({str(key): str(value) for key, value in request.items()})

        super().__init__(server_functions=[table_csv], **options)


_MOST_SIDES = 8


class WaterfallTable(Panel):
    """`value` is made by `compare.waterfall.waterfall_html`; an element with `data-act` becomes a `click`."""

    source = "waterfall/waterfall"

    def __init__(self, find: Find, **options: Any) -> None:
        @served
        def compared_rows(request: Request) -> dict[str, Any]:
            """{sides, by, row} -> per side which of its allocations belong to that row, one bit each."""
            keys = request.get("sides")
            pairs = [find(str(key)) for key in keys[:_MOST_SIDES]] if isinstance(keys, list) else []
            sides = [pair for pair in pairs if pair is not None]
            if not sides or len(sides) != len(pairs):
                raise UsageError("One of these traces is no longer open.")
            masks = highlighted_rows(sides, str(request.get("by")), str(request.get("row")))
            return {"lit": [as_sent(mask) for mask in masks]}

        super().__init__(server_functions=[compared_rows], **options)


def highlighted_rows(sides: Sequence[Pair], by: str, row: str) -> list[PackedTimeline]:
    alikes = match_allocations(sides, by)
    return [pack_selection(alikes.rows_of(i, side, row), len(lifetimes(side[1]))) for i, side in enumerate(sides)]
