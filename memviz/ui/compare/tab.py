"""Compare: two to eight traces on one scale, what makes their peaks differ, and the files they are saved as."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import gradio as gr

from memviz.analysis.comparing.changes import Changes, best_grouping, changes
from memviz.analysis.comparing.matching import Pair
from memviz.results.comparison import comparison_result
from memviz.trace.write import csv_text, safe
from memviz.ui.compare.answer import comparison_parts
from memviz.ui.compare.state import LETTERS, CompareState, changed, sides_of
from memviz.ui.components.component import Panel, clicked
from memviz.ui.components.plots import MemoryTimeline, Overlay
from memviz.ui.components.tables import WaterfallTable
from memviz.ui.saved.report import report_page
from memviz.ui.shell.gradio_events import PRIVATE, while_seen
from memviz.ui.shell.session import Context, Session
from memviz.ui.shell.temporary_files import SharedFiles, json_writer, text_writer


def shared_files(context: Context, session: Session, state: CompareState) -> SharedFiles:
    sides = sides_of(context, session)
    pairs = [side.pair for side in sides]
    if len(pairs) < 2:
        return {}
    named = [pair for side in sides if (pair := context.of(side.opened)) is not None]
    return comparison_files(named, state.by or best_grouping(pairs, state.number_of_other(sides)))


def comparison_files(sides: Sequence[Pair], by: str) -> SharedFiles:
    return {
        "page": ("comparison.html", text_writer(lambda: report_page(sides, by))),
        "csv": (f"comparison-by-{by}.csv", text_writer(lambda: changes_csv(changes(sides, by)))),
        "json": (f"comparison-by-{by}.json", json_writer(lambda: comparison_result(sides, by).as_json())),
    }


def changes_csv(comparison: Changes) -> str:
    """Every row, every trace, all digits, and the peaks they add up to."""
    rows = comparison.rows
    peaks = [moment.live_bytes for moment in comparison.moments]
    columns: dict[str, list[Any]] = {
        comparison.by: [*(safe(row.thing.label) for row in rows), "peak"],
        "function": [*(safe(row.thing.function) for row in rows), ""],
        "operator": [*(safe(row.thing.operator) for row in rows), ""],
        "mostly": [*(row.kind for row in rows), ""],
    }
    for number, peak in enumerate(peaks):
        columns[f"{LETTERS[number]}_bytes"] = [*(row.bytes[number] for row in rows), peak]
        counts = [row.counts[number] for row in rows]
        columns[f"{LETTERS[number]}_allocations"] = [*counts, sum(counts)]
    for other in range(1, len(peaks)):
        columns[f"{LETTERS[other]}_minus_A_bytes"] = [*(row.delta(other) for row in rows), comparison.delta(other)]
    return csv_text(columns)


ID, LABEL = "compare", "Compare"


_PARTS = ("drawn", "empty", "offer", "top", "controls", *LETTERS, "overlay", "differences", "place")
_DUE = {
    "by": ("differences",),
    "sort": ("differences",),
    "rows": ("differences",),
    "other": ("top", "controls", "overlay", "differences"),
    "align": ("controls", *LETTERS),
    "axis": ("controls", *LETTERS),
    "colour": ("controls", *LETTERS),
    "overlay": ("controls", "overlay"),
}
"""Which parts a click can change, where it leaves the traces as they are."""


class CompareTab:
    """The tab's components, which keeps nothing of any visitor."""

    def __init__(self, context: Context, session: gr.State, tabs: gr.Tabs, tab: gr.Tab) -> None:
        self.context = context
        with gr.Column(elem_classes="mv-compare"):
            self.empty, self.offer = Panel(elem_id="compare-empty"), Panel(elem_id="compare-offer")
            """The button of `offer` opens samples, which the page does."""
            self.top, self.controls = Panel(elem_id="compare-top"), Panel(elem_id="compare-bar")
            with gr.Row(elem_classes="mv-linked"):
                timelines = [MemoryTimeline(context.find, elem_id=f"compare-{letter}") for letter in LETTERS]
            overlay = Overlay(elem_id="compare-overlay")
            self.differences = WaterfallTable(context.find, elem_id="differences")
            place = Panel(elem_id="compare-place")
            """The tab's part of the address; address.js reads it."""
        self.traces = gr.State(())
        """The part of the session that this tab shows. A change redraws the tab if it is visible."""
        self.state = gr.State(CompareState())
        looked_at, drawn = gr.State(False), gr.State(())
        """`drawn`: the traces whose state is drawn, so that returning to the tab does not redraw it."""
        self.outputs = [self.traces]
        panels = [self.empty, self.offer, self.top, self.controls]
        self.drawing = [drawn, *panels, *timelines, overlay, self.differences, place]
        for panel in (self.empty, self.top, self.controls, self.differences):
            panel.click(self._act, [session, self.state], [session, self.traces, self.state, *self.drawing], **PRIVATE)
        inputs = [session, self.state, drawn]
        while_seen(tabs, tab, self.traces, looked_at, partial(draw, context), inputs=inputs, outputs=self.drawing)

    def _act(self, current: Session, state: CompareState, event: gr.EventData) -> list[Any]:
        data = clicked(event)
        after, then = current, changed(state, data)
        if current.of(key := data.get("key", "")) is not None:
            turns = {"baseline": current.with_baseline, "toggle": current.toggling}
            after = turns[data["act"]](key) if data.get("act") in turns else current
        values = draw(self.context, after, then)
        if after == current:
            due = (*_DUE.get(data.get("act", ""), ()), "place")
            values = [value if name in due else gr.skip() for name, value in zip(_PARTS, values, strict=True)]
        return [after, _open_traces(after), then, *values]


def show(session: Session) -> list[Any]:
    """The values of `CompareTab.outputs`: all that the tab needs to know to draw itself when it is looked at."""
    return [_open_traces(session)]


def _open_traces(session: Session) -> tuple[Any, ...]:
    return session.compared, tuple((trace.key, trace.device, trace.name) for trace in session.opened)


def draw(context: Context, session: Session, state: CompareState, drawn: tuple[Any, ...] = ()) -> list[Any]:
    """The values of `CompareTab.drawing`."""
    shown = _open_traces(session)
    if drawn == shown:
        return [gr.skip()] * len(_PARTS)
    return [shown, *comparison_parts(context, session, state)]
